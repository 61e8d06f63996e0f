"""`down` on EKS: what the document has goes, what others have stays, and the end is proven by an inventory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diptych.eks import cluster, control_plane, inventory, nodes, ownership
from diptych.eks.down import take_down
from diptych.eks.job import EksJob
from diptych.eks.up import bring_up
from diptych.errors import AccountError, ClusterError, DiptychError, LeftError
from eks.world import Heard, World, interruptions, place, world

STEPS = ("cluster", "nodes")
NOTHING = {
    "clusters": {},
    "instances": [],
    "stacks": [],
    "placement groups": [],
    "interfaces": 0,
    "volumes": 0,
    "providers": 0,
    "daemon sets": [],
    "releases": [],
    "nodes": [],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world(tmp_path, monkeypatch) as made:
        yield made


def up(job: EksJob) -> None:
    bring_up(job, STEPS)


def down(job: EksJob) -> None:
    take_down(job, STEPS)


@pytest.mark.report("I4")
def test_down_leaves_nothing_and_proves_it_by_an_inventory(here: World) -> None:
    up(here.job())
    assert {each.kind for each in inventory.take(here.job()).resources} >= {
        "cluster",
        "instance",
        "NAT gateway",
    }
    down(here.job())
    assert here.state() == NOTHING
    assert "an inventory by tag finds nothing" in here.view.text
    assert (cluster.look(here.job()).state, nodes.look(here.job(), None).state) == ("absent", "absent")


def test_down_where_nothing_is_finds_nothing_and_changes_nothing(here: World) -> None:
    down(here.job())
    down(here.job())
    assert here.state() == NOTHING


def test_a_dry_run_says_every_change_and_makes_none(here: World) -> None:
    up(here.job())
    before = here.state()
    down(here.job(dry_run=True))
    assert here.state() == before
    said = "\n".join(here.view.said)
    assert "would call cloudformation:DeleteStack: eksctl-llm-nodegroup-llm-decode" in said
    assert "would run eksctl delete cluster" in said


@pytest.mark.long
def test_the_nodes_alone_go_and_come_back(here: World) -> None:
    up(here.job())
    before = here.state()
    take_down(here.job(), ["nodes"])
    assert here.state()["nodes"] == ["system"]
    up(here.job())
    assert here.state() == before


def test_the_cluster_alone_is_refused_while_nodes_of_the_document_are_in_it(here: World) -> None:
    up(here.job())
    with pytest.raises(ClusterError, match="still has nodes in llm: llm-"):
        take_down(here.job(), ["cluster"])


# Whose


def test_of_a_shared_cluster_only_what_no_other_document_uses_goes(here: World) -> None:
    up(here.job())
    second = {"name": "second", "eks": {"cluster": "llm"}}
    up(here.job(**second))
    down(here.job())
    state = here.state()
    assert state["instances"] == ["g6.8xlarge", "g6.8xlarge", "m7i.xlarge"]
    tags = here.aws.eks.clusters["llm"].about["tags"]
    assert "diptych.dev/document/llm" not in tags and "diptych.dev/document/second" in tags
    assert "llm stays: second uses it" in here.view.text
    up(here.job(**second))  # still whole
    down(here.job(**second))
    assert here.state() == NOTHING


def test_of_two_documents_that_leave_at_once_one_removes_the_cluster(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(here.job())
    tags = here.aws.eks.clusters["llm"].about["tags"]
    tags["diptych.dev/document/second"] = "inference"
    leave = ownership.leave

    def both_leave(job: EksJob, arn: str) -> None:
        leave(job, arn)
        del tags["diptych.dev/document/second"]

    monkeypatch.setattr(ownership, "leave", both_leave)
    asked = len(here.aws.calls)
    down(here.job())
    assert here.state() == NOTHING
    actions = [call.action for call in here.aws.calls[asked:]]
    assert actions.index("eks:UntagResource") < actions.index("eks:TagResource")


@pytest.mark.long
def test_a_cluster_that_stays_loses_the_pod_identity_of_the_document_that_leaves(here: World) -> None:
    bucket = {"model": {"source": "s3://models/qwen/3-8b"}}
    second = {"name": "second", "eks": {"cluster": "llm"}}
    up(here.job(**bucket))
    up(here.job(**bucket, **second))
    found = here.aws.eks.clusters["llm"]
    assert sorted(each["serviceAccount"] for each in found.identities.values()) == ["llm", "second"]
    down(here.job(**bucket))
    assert [each["serviceAccount"] for each in found.identities.values()] == ["second"]
    roles = [name for name, _ in here.state()["stacks"] if "podidentity" in name]
    assert [name.rpartition("-")[2] for name in roles] == ["second"]
    down(here.job(**bucket, **second))
    assert here.state() == NOTHING


def test_what_iam_trusts_a_clusters_tokens_by_goes_whatever_tags_eksctl_put_on_it(here: World) -> None:
    up(here.job())
    found = control_plane.find(here.job())
    iam = here.aws.client("iam")
    (arn,) = [each["Arn"] for each in iam.list_open_id_connect_providers()["OpenIDConnectProviderList"]]
    iam.create_open_id_connect_provider(
        Url="https://oidc.example.org/id/0", ClientIDList=["sts.amazonaws.com"]
    )
    assert found is not None
    control_plane.distrust_tokens(here.job(), found)
    left = [each["Arn"] for each in iam.list_open_id_connect_providers()["OpenIDConnectProviderList"]]
    assert arn not in left and len(left) == 1


@pytest.mark.parametrize(
    ("before", "what"), [({"account": "999999999999"}, "account"), ({"region": "eu-west-1"}, "region")]
)
def test_another_account_or_region_stops_before_anything_goes(
    here: World, before: dict[str, str], what: str
) -> None:
    up(here.job())
    state = here.state()
    with pytest.raises(AccountError, match=f"another {what}"):
        down(here.job(remembered=place(**before)))
    assert here.state() == state


def test_a_cluster_that_is_not_ours_is_never_touched(here: World) -> None:
    up(here.job())
    take_down(here.job(), ["nodes"])
    tags = here.aws.eks.clusters["llm"].about["tags"]
    for key in [key for key in tags if key.startswith("diptych.dev/")]:
        del tags[key]
    asked = len(here.aws.calls)
    take_down(here.job(), ["cluster"])
    assert here.aws.eks.clusters["llm"].about["status"] == "ACTIVE"
    assert "was not made by Diptych: it is left as it is" in here.view.text
    assert "cloudformation:DeleteStack" not in [
        call.action
        for call in here.aws.calls[asked:]
        if call.parameters.get("StackName") == "eksctl-llm-cluster"
    ]


def running_pod(here: World, phase: str, name: str, labels: dict[str, str] | None = None) -> None:
    """Have a pod run on the first node of a phase."""
    node = next(
        node["metadata"]["name"]
        for node in here.kubernetes.all("Node")
        if node["metadata"]["labels"]["diptych.dev/phase"] == phase
    )
    here.kubernetes.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "image"}]},
            "status": {"phase": "Running"},
        }
    )


def test_foreign_workloads_and_volumes_are_listed_and_refused(here: World) -> None:
    up(here.job())
    running_pod(here, "system", "theirs")
    here.kubernetes.put(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }
    )
    with pytest.raises(ClusterError, match="Removing llm would take away what is not Diptych's") as refused:
        down(here.job(replace=True))
    assert "pod default/theirs (not ours)" in refused.value.message
    assert "PersistentVolumeClaim default/data (it holds data)" in refused.value.message
    assert here.aws.eks.clusters["llm"].about["status"] == "ACTIVE"
    here.kubernetes.delete("Pod", "theirs", "default", grace_s=0)
    here.kubernetes.delete("PersistentVolumeClaim", "data", "default")
    down(here.job())
    assert here.state() == NOTHING


def test_nodes_with_pods_of_the_service_on_them_are_refused(here: World) -> None:
    up(here.job())
    running_pod(here, "decode", "worker", {"diptych.dev/service": "llm"})
    with pytest.raises(ClusterError, match="still up on these nodes") as refused:
        down(here.job())
    assert "diptych down --step service" in refused.value.hint


# Leftovers


@pytest.mark.report("I1")
def test_a_dangling_network_interface_in_a_stacks_way_is_deleted_and_the_stack_tried_again(
    here: World,
) -> None:
    up(here.job())
    here.aws.eks.dangling.add("llm-decode")
    down(here.job())
    assert here.state() == NOTHING
    assert "deleting the dangling network interface eni-" in here.view.text


def test_a_volume_that_a_claim_made_is_never_deleted_but_told_with_price_and_command(here: World) -> None:
    up(here.job())
    volume = here.aws.client("ec2").create_volume(
        AvailabilityZone="us-east-2a",
        Size=100,
        VolumeType="gp3",
        TagSpecifications=[
            {"ResourceType": "volume", "Tags": [{"Key": "kubernetes.io/cluster/llm", "Value": "owned"}]}
        ],
    )["VolumeId"]
    with pytest.raises(LeftError) as left:
        down(here.job())
    assert f"volume {volume}  0.01096 USD/h  it may hold somebody's data" in left.value.message
    assert f"aws ec2 delete-volume --volume-id {volume} --region us-east-2" in left.value.message
    assert here.state() == {**NOTHING, "volumes": 1}
    here.aws.client("ec2").delete_volume(VolumeId=volume)
    down(here.job())


def test_what_carries_our_tag_and_is_left_goes(here: World) -> None:
    up(here.job())
    tags = [{"Key": "diptych.dev/cluster", "Value": "llm"}]
    ec2 = here.aws.client("ec2")
    ec2.create_volume(
        AvailabilityZone="us-east-2a", Size=1, TagSpecifications=[{"ResourceType": "volume", "Tags": tags}]
    )
    ec2.create_placement_group(
        GroupName="left",
        Strategy="cluster",
        TagSpecifications=[{"ResourceType": "placement-group", "Tags": tags}],
    )
    ec2.create_volume(AvailabilityZone="us-east-2a", Size=2)  # nobody's: stays
    down(here.job())
    assert here.state() == {**NOTHING, "volumes": 1}


def test_a_stack_that_can_not_be_deleted_is_in_the_error_with_its_reason(here: World) -> None:
    up(here.job())
    here.aws.faults.denied.add("cloudformation:DeleteStack")
    with pytest.raises(DiptychError, match="cloudformation:DeleteStack"):
        down(here.job())
    here.aws.faults.denied.clear()
    down(here.job())
    assert here.state() == NOTHING


def test_an_inventory_that_may_not_be_taken_whole_is_no_proof(here: World) -> None:
    up(here.job())
    here.aws.faults.denied.add("elasticloadbalancing:DescribeLoadBalancers")
    with pytest.raises(
        LeftError, match="Not looked for, since that may not be asked: AWS does not let you"
    ) as left:
        down(here.job())
    assert "credentials that may list it" in left.value.hint


# Interruptions

MOMENTS = [
    ("detail", "nodes", "removing the stack eksctl-llm-nodegroup-llm-decode"),
    ("done", "nodes", ""),
    ("detail", "cluster", "control plane"),
]
MORE_MOMENTS = [
    ("start", "nodes", ""),
    ("detail", "nodes", "The stack eksctl-llm-nodegroup-llm-"),
    ("start", "cluster", ""),
    ("detail", "cluster", "node group"),
    ("done", "cluster", ""),
    ("start", "leftovers", ""),
    ("done", "leftovers", ""),
]


@pytest.mark.parametrize("moment", interruptions(MOMENTS, MORE_MOMENTS))
def test_after_ctrl_c_at_any_moment_another_down_leaves_nothing(
    here: World, moment: tuple[str, str, str]
) -> None:
    up(here.job())
    here.aws.clock.scale = 0.002  # so that each moment is seen
    heard = Heard(moment)
    with pytest.raises(KeyboardInterrupt):
        down(here.job(view=heard))
    assert heard.interrupt_at is None
    here.aws.clock.scale = 0.0005
    down(here.job())
    assert here.state() == NOTHING


@pytest.mark.parametrize(
    "moment",
    [("detail", "cluster", "control plane"), ("detail", "nodes", "node group")],
    ids=["control plane", "node group"],
)
def test_an_up_that_was_interrupted_is_taken_down_whole(here: World, moment: tuple[str, str, str]) -> None:
    here.aws.clock.scale = 0.002
    with pytest.raises(KeyboardInterrupt):
        up(here.job(view=Heard(moment)))
    here.aws.clock.scale = 0.0005
    down(here.job())
    assert here.state() == NOTHING


@pytest.mark.parametrize(
    "moment",
    [("done", "nodes", ""), ("detail", "cluster", "control plane")],
    ids=["nodes gone", "control plane going"],
)
def test_a_down_that_was_interrupted_can_be_followed_by_up(here: World, moment: tuple[str, str, str]) -> None:
    up(here.job())
    before = here.state()
    here.aws.clock.scale = 0.002
    with pytest.raises(KeyboardInterrupt):
        down(here.job(view=Heard(moment)))
    here.aws.clock.scale = 0.0005
    up(here.job())
    assert here.state() == before
