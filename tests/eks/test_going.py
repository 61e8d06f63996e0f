"""What `down` will take away, with its price: this document's nodes, and the cluster where nobody else uses it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from diptych.eks.going import going
from diptych.eks.inventory import Inventory, Resource
from eks.world import OWN, World, world

STEPS = ("cluster", "nodes", "operator", "service")
LLM, SECOND = ({**OWN, "diptych.dev/service": name} for name in ("llm", "second"))


def instance(identity: str, tags: dict[str, str], kind: str = "g6.8xlarge") -> Resource:
    details = {"instance_type": kind, "market": "on-demand", "zone": "us-east-2a"}
    return Resource("instance", identity, "running", "diptych", tags, details)


CLUSTER = Resource("cluster", "llm", "ACTIVE", "diptych", OWN, {"version": "1.35"})
THERE = (
    CLUSTER,
    instance("i-1", LLM),
    instance("i-2", LLM),
    instance("i-3", OWN, "m7i.xlarge"),
    Resource("stack", "eksctl-llm-nodegroup-llm-decode", "CREATE_COMPLETE", "diptych", LLM),
    Resource("VPC", "vpc-1", "available", "diptych", OWN),
    Resource("VPC", "vpc-2", "available", "diptych", OWN),
)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch, world(tmp_path_factory.mktemp("going"), patch) as made:
        yield made


def test_each_step_is_told_with_what_it_takes_away_and_what_that_costs(here: World) -> None:
    found = going(here.job(), STEPS, Inventory(THERE, ("no right to list volumes",)))
    told = [(part.step, part.what, round(part.price.usd_per_hour, 2)) for part in found.parts]
    assert told == [
        ("nodes", "2 × instance g6.8xlarge (on-demand)", 4.23),
        ("nodes", "1 × stack", 0.0),
        ("cluster", "1 × instance m7i.xlarge (on-demand)", 0.22),
        ("cluster", "1 × cluster llm", 0.1),
        ("cluster", "2 × VPC", 0.0),
    ]
    assert round(found.price.usd_per_hour, 2) == 4.55 and found.price.is_whole
    assert found.unasked == ("no right to list volumes",) and found.users == ()


def test_steps_that_are_not_taken_take_nothing_away(here: World) -> None:
    nodes = going(here.job(), ("nodes",), Inventory(THERE))
    assert {part.step for part in nodes.parts} == {"nodes"}
    assert going(here.job(), ("service", "operator"), Inventory(THERE)).parts == ()


@pytest.mark.parametrize("says", ["tags of the cluster", "nodes of its own", "tags of the system nodes"])
def test_what_others_use_stays_and_is_not_counted(here: World, says: str) -> None:
    shared = {**OWN, "diptych.dev/document/second": "inference"}
    there = {
        "tags of the cluster": (*THERE, Resource("cluster", "llm", "ACTIVE", "diptych", shared)),
        "nodes of its own": (*THERE, instance("i-9", SECOND)),
        "tags of the system nodes": (
            *(each for each in THERE if each.kind != "cluster"),
            Resource("node group", "system", "ACTIVE", "diptych", shared),
        ),
    }
    found = going(here.job(), STEPS, Inventory(there[says]))
    assert {part.step for part in found.parts} == {"nodes"} and found.users == ("second",)
    assert round(found.price.usd_per_hour, 2) == 4.23


CLAIM = Resource("volume", "vol-9", "in-use", "cluster", {"kubernetes.io/cluster/llm": "owned"}, {"gib": 900})
THEIRS = {"alpha.eksctl.io/cluster-name": "llm"}


def test_volumes_of_claims_are_not_promised_to_go(here: World) -> None:
    of_eks = Resource("security group", "sg-1", "", "cluster", {"aws:eks:cluster-name": "llm"})
    found = going(here.job(), STEPS, Inventory((CLUSTER, CLAIM, of_eks)))
    assert [part.what for part in found.parts] == ["1 × cluster llm", "1 × security group"]


def test_of_somebody_elses_cluster_only_what_was_made_for_us_goes(here: World) -> None:
    theirs = (
        Resource("cluster", "llm", "ACTIVE", "eksctl", THEIRS, {"version": "1.35"}),
        replace(instance("i-8", THEIRS), by="eksctl"),
        Resource("security group", "sg-1", "", "cluster", {"aws:eks:cluster-name": "llm"}),
        CLAIM,
    )
    system = Resource("node group", "system", "ACTIVE", "diptych", {**OWN, "diptych.dev/document/second": ""})
    own = (instance("i-1", LLM), instance("i-3", OWN, "m7i.xlarge"))
    found = going(here.job(), STEPS, Inventory((*theirs, *own)))
    assert [part.what for part in found.parts] == [
        "1 × instance g6.8xlarge (on-demand)",
        "1 × instance m7i.xlarge (on-demand)",
    ]
    shared = going(here.job(), STEPS, Inventory((*theirs, *own, system)))
    assert shared.users == ("second",) and {part.step for part in shared.parts} == {"nodes"}


def test_what_has_no_known_price_is_no_part_of_the_sum(here: World) -> None:
    found = going(here.job(), STEPS, Inventory((CLUSTER, instance("i-1", LLM, "x9.mega"))))
    assert not found.price.is_whole and round(found.price.usd_per_hour, 2) == 0.1
