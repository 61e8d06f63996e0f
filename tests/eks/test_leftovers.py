"""What is left: why, what it costs by the hour, and the command that removes it."""

from pathlib import Path

import pytest

from diptych.eks import inventory, leftovers
from diptych.eks.inventory import Inventory, Resource, whose
from diptych.eks.prices import LISTED
from diptych.errors import LeftError
from eks.world import OWN, World, world


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    with world(tmp_path, monkeypatch) as made:
        yield made


NODE = Resource("instance", "i-1", "running", "diptych", OWN, {"instance_type": "g6.8xlarge"})
VOLUME = Resource("volume", "vol-1", "available", "cluster", {}, {"gib": 730, "volume_type": "gp3"})
INTERFACE = Resource("network interface", "eni-1", "in-use", "cluster", {}, {"holder": "i-9"})
UNKNOWN = Resource("instance", "i-2", "running", "diptych", OWN, {"instance_type": "x9.huge"})
CLASSIC = Resource("load balancer", "a1b2", "", "cluster", {}, {"version": 1, "type": "classic"})


@pytest.mark.parametrize(
    ("tags", "by"),
    [
        ({"diptych.dev/cluster": "llm"}, "diptych"),
        ({"alpha.eksctl.io/cluster-name": "llm"}, "eksctl"),
        ({"kubernetes.io/cluster/llm": "owned"}, "cluster"),
        ({"cluster.k8s.amazonaws.com/name": "llm"}, "cluster"),
        ({"elbv2.k8s.aws/cluster": "llm"}, "cluster"),
        ({"eks:cluster-name": "llm-2"}, None),
        ({"kubernetes.io/cluster/llm-2": "owned", "diptych.dev/cluster": "llm-2"}, None),
        ({}, None),
    ],
)
def test_tags_say_of_which_cluster_something_is(tags: dict[str, str], by: str | None) -> None:
    assert whose(tags, "llm") == by


@pytest.mark.report("I4")
def test_the_table_says_what_is_left_why_what_it_costs_and_the_command(here: World) -> None:
    found = leftovers.explain(here.job(), Inventory((INTERFACE, VOLUME, NODE, UNKNOWN, CLASSIC)))
    assert [each.resource.id for each in found] == [
        "i-1",
        "vol-1",
        "a1b2",
        "eni-1",
        "i-2",
    ]  # the dearest first
    text = leftovers.table(found, ("AWS does not let you elasticloadbalancing:DescribeLoadBalancers",))
    first = text.splitlines()[0]
    assert first.startswith(
        "5 things are left; they cost at least 2.219 USD per hour (AWS's price list for us-east-2"
    )
    assert (
        f"list price of {LISTED} in us-east-1" in first
    )  # a classic load balancer is not in the fake's list
    assert "instance i-1  2.114 USD/h  it is running" in text
    assert "aws ec2 terminate-instances --instance-ids i-1 --region us-east-2" in text
    assert "volume vol-1  0.08 USD/h  it may hold somebody's data" in text
    assert "network interface eni-1  0 USD/h  in use by i-9" in text
    assert "instance i-2  ?  " in text
    assert "aws elb delete-load-balancer --load-balancer-name a1b2 --region us-east-2" in text
    assert "Not looked for, since that may not be asked: AWS does not let you" in text


def test_what_carries_eksctls_tag_alone_is_told_and_never_removed(here: World) -> None:
    ec2 = here.aws.client("ec2")

    def address(tag: str) -> str:
        tags = [{"Key": tag, "Value": "llm"}]
        made = ec2.allocate_address(TagSpecifications=[{"ResourceType": "elastic-ip", "Tags": tags}])
        return str(made["AllocationId"])

    theirs, ours = address("alpha.eksctl.io/cluster-name"), address("diptych.dev/cluster")
    with pytest.raises(LeftError) as left:
        leftovers.clear(here.job())
    assert f"aws ec2 release-address --allocation-id {theirs} --region us-east-2" in left.value.message
    assert ours not in left.value.message
    assert [each["AllocationId"] for each in ec2.describe_addresses()["Addresses"]] == [theirs]


def test_what_may_not_be_asked_is_told_apart_from_what_is_not_there(here: World) -> None:
    here.aws.faults.denied.add("elasticloadbalancing:DescribeLoadBalancers")
    found = inventory.take(here.job())
    assert not found
    assert len(found.unasked) == 1 and "elasticloadbalancing:DescribeLoadBalancers" in found.unasked[0]
