"""A cluster of somebody else's, made without eksctl: its network is used, our nodes go into it, it outlives `down`."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diptych.eks import cluster, inventory
from diptych.eks.down import is_gone, take_down
from diptych.eks.going import users_of
from diptych.eks.plugins_of_others import TAG, remove_ours
from diptych.eks.up import bring_up
from diptych.errors import ClusterError
from eks.world import REGION, World, world
from fakes.programs.eksctl import plugins

STEPS = ("cluster", "nodes")


BY_EKSCTL = {"alpha.eksctl.io/cluster-name": "llm"}
"""What eksctl tags the clusters with that it makes for anybody."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world(tmp_path, monkeypatch) as made:
        _make_cluster(made)
        yield made


def _make_cluster(here: World) -> None:
    ec2, eks = here.aws.client("ec2"), here.aws.client("eks")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{index}.0/24", AvailabilityZone=f"{REGION}{letter}")[
            "Subnet"
        ]["SubnetId"]
        for index, letter in enumerate("ab")
    ]
    ec2.create_tags(Resources=subnets, Tags=[{"Key": "kubernetes.io/role/internal-elb", "Value": "1"}])
    eks.create_cluster(
        name="llm",
        version="1.35",
        roleArn="arn:aws:iam::123456789012:role/theirs",
        resourcesVpcConfig={"subnetIds": subnets, "publicAccessCidrs": ["203.0.113.7/32"]},
        tags={"team": "platform"},
    )
    while eks.describe_cluster(name="llm")["cluster"]["status"] != "ACTIVE":
        time.sleep(0.05)


def test_nodes_go_into_its_network_and_it_is_said_not_to_be_ours(here: World) -> None:
    bring_up(here.job(), STEPS)
    assert here.state()["nodes"] == ["decode", "prefill", "system"]
    assert "llm was not made by Diptych: it is used, not owned" in here.view.text
    assert here.aws.eks.clusters["llm"].about["tags"] == {"team": "platform"}  # not even a tag is changed
    assert here.aws.eks.clusters["llm"].addons == {}
    assert cluster.look(here.job()).state == "foreign"


def test_down_removes_our_nodes_and_leaves_it_as_it_was(here: World) -> None:
    before = here.state()
    bring_up(here.job(), STEPS)
    assert not is_gone(here.job())
    take_down(here.job(), STEPS)
    assert here.state() == before
    assert here.aws.eks.clusters["llm"].about["status"] == "ACTIVE"
    assert is_gone(here.job())


def test_a_cluster_that_others_made_by_eksctl_is_not_taken_for_ours(here: World) -> None:
    second = here.job(name="second", eks={"cluster": "llm"})
    for job in (here.job(), second):
        bring_up(job, STEPS)
        take_down(job, ["nodes"])
    here.aws.eks.clusters["llm"].about["tags"].update(BY_EKSCTL)
    assert not is_gone(here.job()) and not is_gone(second)  # by name on the system nodes, which run and cost
    assert users_of(here.job(), inventory.take(here.job())) == ("second",)
    take_down(here.job(), STEPS)
    assert is_gone(here.job()) and not is_gone(second)
    take_down(second, STEPS)
    assert is_gone(second)


def test_the_documents_own_nodes_go_before_those_that_it_shares(here: World) -> None:
    bring_up(here.job(), STEPS)
    before = here.state()
    with pytest.raises(ClusterError, match=r"llm still has nodes in llm: .*llm-decode"):
        take_down(here.job(), ["cluster"])
    assert here.state() == before


def test_the_system_nodes_stay_while_others_pods_are_on_them_or_nobody_can_look(here: World) -> None:
    before = here.state()
    bring_up(here.job(), STEPS)
    take_down(here.job(), ["nodes"])
    (node,) = here.kubernetes.all("Node")
    for name, owner in (("theirs", {}), ("head", {"labels": {"diptych.dev/service": "llm"}})):
        here.kubernetes.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default", **owner},
                "spec": {
                    "nodeName": node["metadata"]["name"],
                    "containers": [{"name": "main", "image": "image"}],
                },
                "status": {"phase": "Running"},
            }
        )
    with pytest.raises(ClusterError, match="can't be looked into"):
        cluster.down(here.job(), None)
    with pytest.raises(ClusterError, match="Removing the nodes of system would take away"):
        take_down(here.job(), STEPS)
    assert here.state()["nodes"] == ["system"]
    here.kubernetes.delete("Pod", "theirs", "default", grace_s=0)
    take_down(here.job(), STEPS)
    assert f"draining {node['metadata']['name']}" in here.view.text
    assert here.state() == before


def test_the_system_nodes_stay_until_the_last_document_goes(here: World) -> None:
    before = here.state()
    second = {"name": "second", "eks": {"cluster": "llm"}}
    bring_up(here.job(), STEPS)
    bring_up(here.job(**second), STEPS)
    take_down(here.job(), STEPS)
    assert here.state()["nodes"] == ["decode", "prefill", "system"]
    assert is_gone(here.job()) and not is_gone(here.job(**second))
    take_down(here.job(**second), STEPS)
    assert here.state() == before


G7E = {"nodes": {"instance_type": "g7e.8xlarge"}}
"""Of a type that eksctl's EFA plugin leaves out: Helm installs one."""


def test_device_plugins_that_came_with_our_nodes_go_with_the_last_document(here: World) -> None:
    before = here.state()
    second = {"name": "second", "eks": {"cluster": "llm"}}
    bring_up(here.job(**G7E), STEPS)
    bring_up(here.job(**second), STEPS)
    made = here.state()
    assert made["releases"] == ["diptych-efa-device-plugin"] and len(made["daemon sets"]) == 3
    take_down(here.job(**G7E), STEPS)
    assert here.state()["daemon sets"] == made["daemon sets"]
    take_down(here.job(**second), STEPS)
    assert here.state() == before


def test_device_plugins_that_were_there_before_stay(here: World) -> None:
    theirs = plugins.nvidia([])
    here.kubernetes.put(theirs)
    before = here.state()
    assert before["daemon sets"] == ["nvidia-device-plugin-daemonset"]
    bring_up(here.job(), STEPS)
    assert "aws-efa-k8s-device-plugin-daemonset" in here.state()["daemon sets"]
    take_down(here.job(), STEPS)
    assert here.state() == before


def test_a_device_plugin_that_others_have_come_to_use_or_that_nobody_knows_of_stays_and_is_told(
    here: World,
) -> None:
    bring_up(here.job(), STEPS)
    tags = here.aws.eks.clusters["llm"].nodegroups["system"]["tags"]
    assert tags[TAG] == "none"
    with here.reach() as there:
        remove_ours(here.job(dry_run=True), there, {}, "cluster")
        assert (
            "nvidia-device-plugin-daemonset stays: nobody wrote down whether it was there before"
            in here.view.text
        )
        others = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "theirs", "labels": {}}}
        here.kubernetes.put({**others, "status": {"allocatable": {"nvidia.com/gpu": "8"}}})
        take_down(here.job(), ["nodes"])
        remove_ours(here.job(), there, tags, "cluster")
    assert "nvidia-device-plugin-daemonset stays: theirs has nvidia.com/gpu by it" in here.view.text
    assert here.state()["daemon sets"] == ["nvidia-device-plugin-daemonset"]


def test_a_device_plugin_of_eksctls_name_that_others_wrote_stays_and_is_told(here: World) -> None:
    bring_up(here.job(), STEPS)
    theirs = plugins.nvidia([])
    theirs["metadata"]["labels"] = {"team": "platform"}
    here.kubernetes.put(theirs, manager="kubectl-client-side-apply")
    take_down(here.job(), STEPS)
    assert (
        "nvidia-device-plugin-daemonset stays: kubectl-client-side-apply changed it after eksctl. "
        "Where nobody needs it: kubectl --namespace kube-system delete daemonset nvidia-device-plugin-daemonset"
    ) in here.view.text
    assert here.state()["daemon sets"] == ["nvidia-device-plugin-daemonset"]


@pytest.mark.parametrize("lacks", ["helm", "the right to list secrets"])
def test_plugins_that_cannot_be_removed_are_told_and_the_system_nodes_go(
    here: World, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    bring_up(here.job(**G7E), STEPS)
    if lacks == "helm":
        monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
        why = "The program helm is not in PATH"
    else:
        here.kubernetes.denied.add(("list", "secrets"))
        why = "secrets"
    take_down(here.job(**G7E), STEPS)
    assert here.state()["nodes"] == []
    [told] = [line for line in here.view.said if "diptych-efa-device-plugin" in line and "stays" in line]
    assert why in told and told.endswith("helm --namespace kube-system uninstall diptych-efa-device-plugin")
