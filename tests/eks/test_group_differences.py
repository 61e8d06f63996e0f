"""What of node groups that are there is not as the document says: each in a line, and nothing of it is changed."""

from collections.abc import Iterator
from typing import Any

import pytest

from diptych.eks import cluster, nodes, status
from diptych.eks.up import bring_up
from eks.world import World, world

STEPS = ("cluster", "nodes")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A cluster with its nodes, which no test changes."""
    with pytest.MonkeyPatch.context() as patch, world(tmp_path_factory.mktemp("made"), patch) as here:
        bring_up(here.job(nodes={"volume_size": "80GiB"}), STEPS)
        yield here


def said(here: World, **fields: Any) -> str:
    """What another `up` says, as it changes nothing."""
    here.view.said.clear()
    before = here.state()
    bring_up(here.job(**fields), STEPS)
    assert here.state() == before
    return "\n".join(here.view.said)


def test_what_is_as_the_document_says_is_not_spoken_of(made: World) -> None:
    assert "differs" not in said(made, nodes={"volume_size": "80GiB"})
    assert "differs" not in said(made)  # a size that the document leaves open is no difference


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"nodes": {"volume_size": "300GiB"}},
            "llm-decode differs from the document, and is used as it is: "
            "its root volume is 80 GiB, and the document says 300 GiB",
        ),
        (
            {"nodes": {"capacity_reservation": "cr-0123456789abcdef0"}},
            "its capacity reservation is none, and the document says cr-0123456789abcdef0",
        ),
        ({"eks": {"zone": "us-east-2b"}}, "its zone is us-east-2a, and the document says us-east-2b"),
        (
            {"eks": {"zone": "us-east-2b"}},
            "llm differs from the document, and is used as it is: "
            "the system nodes' zone is us-east-2a, and the document says us-east-2b",
        ),
        (
            {"eks": {"system_nodes": {"instance_type": "m7i.2xlarge"}}},
            "the system nodes' instance type is m7i.xlarge, and the document says m7i.2xlarge",
        ),
    ],
    ids=["volume", "reservation", "zone", "system zone", "system type"],
)
def test_each_difference_is_a_line(made: World, fields: dict[str, Any], told: str) -> None:
    assert told in said(made, **fields)


def test_what_may_not_be_looked_at_is_said(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made.aws.faults, "denied", {"ec2:DescribeLaunchTemplateVersions"})
    text = said(made)
    assert "could not be compared" in text and "ec2:DescribeLaunchTemplateVersions" in text


def test_status_says_which_zones_it_may_not_look_at(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = made.job(eks={"zone": "us-east-2b"})
    monkeypatch.setattr(made.aws.faults, "denied", {"ec2:DescribeSubnets"})
    asked = len(made.aws.called("ec2:DescribeSubnets"))
    cluster_step, nodes_step = status.look(job, None).steps
    told = [*cluster_step.details["differences"]]
    told += [
        line for name in ("llm-prefill", "llm-decode") for line in nodes_step.details[name]["differences"]
    ]
    assert [line.partition(" could not be compared: ")[0] for line in told] == [
        "the system nodes' zone",
        "its zone",
        "its zone",
    ]
    assert all("ec2:DescribeSubnets" in line for line in told)
    assert len(made.aws.called("ec2:DescribeSubnets")) == asked + 1


def test_status_has_them_too(made: World) -> None:
    job = made.job(eks={"zone": "us-east-2b"}, nodes={"instance_type": "g6.12xlarge"})
    assert cluster.look(job).details["differences"] == [
        "the system nodes' zone is us-east-2a, and the document says us-east-2b"
    ]
    assert nodes.look(job, None).details["llm-decode"]["differences"] == [
        "its instance type is g6.8xlarge, and the document says g6.12xlarge",
        "its zone is us-east-2a, and the document says us-east-2b",
    ]
    assert nodes.look(made.job(), None).details["llm-decode"]["differences"] == []
