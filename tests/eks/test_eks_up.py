"""`up` on EKS: cluster and nodes as the document says, from wherever an earlier run has left them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diptych.eks import cluster, nodes
from diptych.eks.capacity import ShortageError
from diptych.eks.down import take_down
from diptych.eks.job import EksJob
from diptych.eks.up import bring_up
from diptych.errors import AccountError, ClusterError, DiptychError
from diptych.render.helm import EFA_PLUGIN
from eks.world import ACCOUNT, Heard, World, interruptions, place, world

ACCOUNT_STEPS = ("cluster", "nodes")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world(tmp_path, monkeypatch) as made:
        yield made


def up(job: EksJob) -> None:
    bring_up(job, ACCOUNT_STEPS)


def test_up_makes_the_cluster_the_system_nodes_and_a_group_for_each_phase_in_one_zone(here: World) -> None:
    up(here.job())
    state = here.state()
    assert state["instances"] == ["g6.8xlarge", "g6.8xlarge", "m7i.xlarge"]
    assert state["nodes"] == ["decode", "prefill", "system"]
    assert state["clusters"]["llm"]["status"] == "ACTIVE"
    assert state["clusters"]["llm"]["tags"]["diptych.dev/account"] == ACCOUNT
    zones = {
        node["metadata"]["labels"]["topology.kubernetes.io/zone"]
        for node in here.kubernetes.all("Node")
        if node["metadata"]["labels"]["diptych.dev/phase"] != "system"
    }
    assert len(zones) == 1
    there = here.reach()
    assert (cluster.look(here.job()).state, nodes.look(here.job(), there).state) == ("ready", "ready")


def test_a_second_up_changes_nothing(here: World) -> None:
    up(here.job())
    before, asked = here.state(), len(here.aws.calls)
    up(here.job())
    assert here.state() == before
    assert not [call.action for call in here.aws.calls[asked:] if _changes(call.action)]


def test_progress_comes_from_cloudformation_with_elapsed_and_usual_time(here: World) -> None:
    here.aws.clock.scale = 0.003
    up(here.job())
    assert "control plane: " in here.view.text and "(usually 15 min 0 s)" in here.view.text


def test_a_dry_run_says_every_change_and_makes_none(here: World) -> None:
    up(here.job(dry_run=True))
    assert not [call.action for call in here.aws.calls if _changes(call.action)]
    said = "\n".join(here.view.said)
    assert "would run eksctl create cluster --config-file=" in said
    assert "would run eksctl create nodegroup" in said and "--include=llm-prefill,llm-decode" in said


@pytest.mark.parametrize("before", [{"account": "999999999999"}, {"region": "eu-west-1"}])
def test_another_account_or_region_than_is_remembered_stops_before_anything_is_made(
    here: World, before: dict[str, str]
) -> None:
    with pytest.raises(AccountError, match="Nothing was changed"):
        up(here.job(remembered=place(**before)))
    assert not [call.action for call in here.aws.calls if _changes(call.action)]


def test_a_cluster_of_another_account_by_its_tags_stops(here: World) -> None:
    up(here.job())
    here.aws.eks.clusters["llm"].about["tags"]["diptych.dev/account"] = "999999999999"
    with pytest.raises(AccountError, match="another account: this is 123456789012"):
        up(here.job())


@pytest.mark.parametrize("status", ["DELETE_FAILED", "ROLLBACK_COMPLETE"])
def test_a_cluster_that_is_active_is_never_removed_though_its_stack_is_dead(here: World, status: str) -> None:
    up(here.job())
    (stack,) = [each for each in here.aws.stacks.all if each.name == "eksctl-llm-cluster"]
    stack.status = status
    before = here.state()
    with pytest.raises(
        AccountError, match=f"eksctl-llm-cluster is {status}, and the cluster llm is ACTIVE"
    ) as failed:
        up(here.job())
    assert "diptych down" in failed.value.hint
    assert here.state() == before


def test_differences_of_an_existing_cluster_are_shown_and_never_overwritten(here: World) -> None:
    up(here.job())
    here.view.said.clear()
    up(here.job(eks={"public_access_cidrs": ["198.51.100.0/24"], "kubernetes_version": "1.36"}))
    said = "\n".join(here.view.said)
    assert "Kubernetes 1.35, not 1.36" in said
    assert "its API is open to 203.0.113.7/32, not 198.51.100.0/24" in said
    assert here.aws.eks.clusters["llm"].about["version"] == "1.35"
    assert not here.aws.called("eks:UpdateClusterConfig")


def test_two_documents_share_a_cluster_and_say_so_on_it(here: World) -> None:
    up(here.job())
    up(here.job(name="second", eks={"cluster": "llm"}))
    tags = here.aws.eks.clusters["llm"].about["tags"]
    assert {"diptych.dev/document/llm", "diptych.dev/document/second"} <= tags.keys()
    assert here.state()["instances"] == ["g6.8xlarge"] * 4 + ["m7i.xlarge"]


# Capacity


@pytest.mark.report("B11")
def test_without_capacity_the_next_zone_is_taken_where_the_document_leaves_it_to_us(here: World) -> None:
    here.aws.machines.left["g6.8xlarge", "us-east-2a"] = 1  # for prefill; none for decode
    up(here.job())
    assert "AWS has no g6.8xlarge free in us-east-2a just now" in here.view.text
    zones = [
        node["metadata"]["labels"]["topology.kubernetes.io/zone"]
        for node in here.kubernetes.all("Node")
        if node["metadata"]["labels"]["diptych.dev/phase"] != "system"
    ]
    assert zones == ["us-east-2b", "us-east-2b"]
    assert not [name for name, status in here.state()["stacks"] if status != "CREATE_COMPLETE"]


def test_without_capacity_for_one_group_another_that_serves_stays_and_no_other_zone_is_tried(
    here: World,
) -> None:
    up(here.job())
    [name, zone] = next(
        (node["metadata"]["name"], node["metadata"]["labels"]["topology.kubernetes.io/zone"])
        for node in here.kubernetes.all("Node")
        if node["metadata"]["labels"]["diptych.dev/phase"] == "prefill"
    )
    here.kubernetes.put(_pod("worker", name, {"diptych.dev/service": "llm"}))
    here.aws.eks.clusters["llm"].nodegroups["llm-decode"]["status"] = "CREATE_FAILED"
    here.aws.machines.left["g6.8xlarge", zone] = -1  # none, once the dead group's has gone
    with pytest.raises(ShortageError, match=f"llm-decode got no nodes: AWS has no .* in {zone}") as short:
        up(here.job())
    assert "eks.zone=" not in short.value.hint
    assert here.state()["nodes"] == ["prefill", "system"]
    assert "llm-decode" not in here.state()["clusters"]["llm"]["groups"]


def test_capacity_that_a_growing_group_lacks_ends_the_wait_and_other_issues_are_told(here: World) -> None:
    up(here.job())
    grown, health = (
        here.job(decode={"nodes": {"count": 3}}),
        here.aws.eks.clusters["llm"].nodegroups["llm-decode"]["health"],
    )
    health["issues"] = [
        {
            "code": "AsgInstanceLaunchFailures",
            "message": "We currently do not have sufficient g6.8xlarge capacity in us-east-2a.",
        }
    ]
    seen = nodes.allocatable(grown, here.reach())
    assert seen.fatal == seen.blocker
    assert "AWS has no g6.8xlarge free in us-east-2a just now" in seen.blocker and "reservation" in seen.hint
    health["issues"] = [{"code": "NodeCreationFailure", "message": "Instances failed to join."}]
    seen = nodes.allocatable(grown, here.reach())
    assert (seen.done, seen.fatal) == (False, None)
    assert seen.blocker.endswith("1 of 3 nodes are ready. NodeCreationFailure: Instances failed to join.")


@pytest.mark.report("T2")
def test_without_capacity_in_the_zone_of_the_document_the_dead_stack_goes_and_the_next_zone_is_offered(
    here: World,
) -> None:
    here.aws.machines.left["g6.8xlarge", "us-east-2a"] = 0
    with pytest.raises(ShortageError, match=r"no g6\.8xlarge free in us-east-2a") as short:
        up(here.job(eks={"zone": "us-east-2a"}))
    assert "diptych up --set eks.zone=us-east-2b" in short.value.hint
    assert [name for name, _ in here.state()["stacks"]] == [
        "eksctl-llm-cluster",
        "eksctl-llm-nodegroup-system",
    ]
    here.aws.machines.left["g6.8xlarge", "us-east-2a"] = 2
    up(here.job(eks={"zone": "us-east-2a"}))
    assert here.state()["nodes"] == ["decode", "prefill", "system"]


@pytest.mark.report("T2")
def test_a_dead_group_that_eksctl_takes_for_a_living_one_is_made_anew(here: World) -> None:
    up(here.job())
    here.aws.machines.left["g6.8xlarge", "us-east-2a"] = 0
    take_down(here.job(), ["nodes"])
    with pytest.raises(ShortageError):
        here.aws.machines.left["g6.8xlarge", "us-east-2a"] = 0
        config = nodes.config_of(here.job(eks={"zone": "us-east-2a"}), None)
        from diptych.eks import groups

        groups.ensure(here.job(eks={"zone": "us-east-2a"}), "nodes", config, ["llm-decode"])
    assert ("eksctl-llm-nodegroup-llm-decode", "ROLLBACK_COMPLETE") in here.state()["stacks"]
    here.aws.machines.left["g6.8xlarge", "us-east-2a"] = 2
    up(here.job())
    assert here.state()["nodes"] == ["decode", "prefill", "system"]
    assert {status for _, status in here.state()["stacks"]} == {"CREATE_COMPLETE"}


def test_a_quota_that_is_too_small_is_named_and_no_other_zone_is_tried(here: World) -> None:
    here.aws.quotas.values["L-DB2E81BA"] = 32.0  # one g6.8xlarge
    with pytest.raises(ShortageError, match="quota of vCPUs does not hold another"):
        up(here.job())
    assert "us-east-2b" not in here.view.text


# Plugins


@pytest.mark.report("T1")
def test_types_that_eksctls_efa_plugin_leaves_out_get_theirs_by_helm(here: World) -> None:
    up(here.job(nodes={"instance_type": "g7e.8xlarge"}))
    for node in here.kubernetes.all("Node"):
        if node["metadata"]["labels"]["diptych.dev/phase"] != "system":
            assert node["status"]["allocatable"]["vpc.amazonaws.com/efa"] == "1"
            assert node["status"]["allocatable"]["nvidia.com/gpu"] == "1"


def test_a_helm_that_was_killed_while_it_installed_a_plugin_is_cleared_away(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = here.job(nodes={"instance_type": "g7e.8xlarge"})
    up(job)
    [record] = [
        each
        for each in here.kubernetes.all("Secret", EFA_PLUGIN.namespace)
        if each["metadata"]["labels"].get("name") == EFA_PLUGIN.name
    ]
    record["metadata"]["labels"]["status"] = "pending-upgrade"
    here.kubernetes.put(record)
    for each in here.kubernetes.all("DaemonSet", EFA_PLUGIN.namespace):
        if each["metadata"]["name"].startswith(EFA_PLUGIN.name):
            here.kubernetes.delete("DaemonSet", each["metadata"]["name"], EFA_PLUGIN.namespace)
    monkeypatch.setattr("diptych.kube.release._PENDING_S", 0.0)
    up(job)
    assert any(
        each["metadata"]["name"].startswith(EFA_PLUGIN.name)
        for each in here.kubernetes.all("DaemonSet", EFA_PLUGIN.namespace)
    )


@pytest.mark.report("B12")
def test_a_plugin_that_runs_and_offers_nothing_is_named_when_time_is_up(here: World) -> None:
    here.aws.nodes.broken_plugins.add("vpc.amazonaws.com/efa")
    with pytest.raises(ClusterError, match="EFA device plugin"):
        up(here.job(timeout_s=3))


# Sizes


def test_a_larger_count_grows_the_group_in_place(here: World) -> None:
    up(here.job())
    up(here.job(decode={"nodes": {"count": 3}}))
    assert here.state()["nodes"] == ["decode", "decode", "decode", "prefill", "system"]
    assert len([1 for name, _ in here.state()["stacks"] if "nodegroup" in name]) == 3


def test_a_smaller_count_drains_the_emptiest_node_and_ends_that_one(here: World) -> None:
    up(here.job(decode={"nodes": {"count": 2}}))
    first, second = (
        node["metadata"]["name"]
        for node in here.kubernetes.all("Node")
        if node["metadata"]["labels"]["diptych.dev/phase"] == "decode"
    )
    here.kubernetes.put(_pod("worker", first, {"diptych.dev/service": "llm"}))
    up(here.job(decode={"nodes": {"count": 1}}))
    left = [node["metadata"]["name"] for node in here.kubernetes.all("Node")]
    assert first in left and second not in left
    assert here.kubernetes.get("Pod", "worker", "default") is not None
    assert here.state()["clusters"]["llm"]["groups"]["llm-decode"][1] == {
        "minSize": 1,
        "desiredSize": 1,
        "maxSize": 1,
    }


def test_foreign_pods_on_a_node_that_is_to_go_are_listed_and_refused(here: World) -> None:
    up(here.job(decode={"nodes": {"count": 2}}))
    for number, node in enumerate(here.kubernetes.all("Node")):
        if node["metadata"]["labels"]["diptych.dev/phase"] == "decode":
            here.kubernetes.put(_pod(f"theirs-{number}", node["metadata"]["name"], {}))
    before = here.state()
    with pytest.raises(ClusterError, match=r"pod default/theirs-.* on ip-.* \(not ours\)"):
        up(here.job(decode={"nodes": {"count": 1}}))
    assert here.state() == before


def test_another_instance_type_is_refused_with_what_to_do(here: World) -> None:
    up(here.job())
    with pytest.raises(
        ClusterError, match=r"instance type is g6\.8xlarge, and the document says g6\.12xlarge"
    ):
        up(here.job(nodes={"instance_type": "g6.12xlarge"}))


# Interruptions

MOMENTS = [
    ("detail", "cluster", "control plane"),
    ("done", "cluster", ""),
    ("detail", "nodes", "node group"),
]
MORE_MOMENTS = [
    ("start", "cluster", ""),
    ("detail", "cluster", "eksctl is at work"),
    ("detail", "cluster", "node group"),
    ("start", "nodes", ""),
    ("done", "nodes", ""),
]


@pytest.mark.parametrize("moment", interruptions(MOMENTS, MORE_MOMENTS))
def test_after_ctrl_c_at_any_moment_another_up_comes_to_the_same_end(
    here: World, moment: tuple[str, str, str]
) -> None:
    here.aws.clock.scale = 0.005  # so that each moment is seen
    heard = Heard(moment)
    with pytest.raises(KeyboardInterrupt):
        up(here.job(view=heard))
    assert heard.interrupt_at is None
    here.aws.clock.scale = 0.0005
    up(here.job())
    _is_whole(here)


@pytest.mark.parametrize(
    "action",
    ["eks:DescribeCluster", "cloudformation:DescribeStacks", "eks:DescribeNodegroup", "eks:TagResource"],
)
def test_after_an_error_of_aws_in_the_middle_another_up_comes_to_the_same_end(
    here: World, action: str
) -> None:
    here.aws.faults.denied.add(action)
    with pytest.raises(DiptychError):
        up(here.job())
        raise DiptychError("it was not asked")
    here.aws.faults.denied.clear()
    up(here.job())
    _is_whole(here)


def _is_whole(here: World) -> None:
    state = here.state()
    assert state["instances"] == ["g6.8xlarge", "g6.8xlarge", "m7i.xlarge"]
    assert state["nodes"] == ["decode", "prefill", "system"]
    assert {status for _, status in state["stacks"]} == {"CREATE_COMPLETE"}
    assert state["clusters"]["llm"]["addons"] == [
        "coredns",
        "eks-node-monitoring-agent",
        "kube-proxy",
        "vpc-cni",
    ]
    assert nodes.look(here.job(), here.reach()).state == "ready"


def _changes(action: str) -> bool:
    words = ("Create", "Delete", "Update", "Tag", "Untag", "Terminate", "Run", "Modify")
    return action.partition(":")[2].startswith(words)


def _pod(name: str, node: str, labels: dict[str, str]) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "image"}]},
        "status": {"phase": "Running"},
    }


def test_node_groups_that_a_changed_topology_leaves_behind_are_refused(here: World) -> None:
    up(here.job())
    with pytest.raises(ClusterError, match="no use any more for llm-decode, llm-prefill"):
        up(here.job(topology="aggregated"))
    assert here.state()["nodes"] == ["decode", "prefill", "system"]
