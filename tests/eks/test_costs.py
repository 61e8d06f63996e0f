"""What a document's share costs: by the prices of its region, of what runs now, since it was made; or at least that."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from diptych.check.account import Identity
from diptych.eks import costs
from diptych.eks.aws import Session
from diptych.eks.costs import Cost, Meter
from diptych.eks.inventory import Inventory, Resource
from diptych.eks.price_list import LISTED
from diptych.eks.prices import HOURS_PER_MONTH, Book
from diptych.eks.up import bring_up
from eks.world import OWN, World, world
from fakes.aws import FakeAws

TEN = datetime(2026, 11, 30, 10, tzinfo=UTC)
TWELVE = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
LIST = Book("us-east-2", None)
G6 = {"instance_type": "g6.8xlarge", "zone": "us-east-2a", "market": "on-demand"}
NODE = Resource("instance", "i-1", "running", "diptych", {**OWN, "diptych.dev/service": "llm"}, G6, TEN)
GATEWAY = Resource("NAT gateway", "nat-1", "available", "diptych", OWN, {}, TEN)
UNKNOWN = Resource("instance", "i-2", "running", "diptych", OWN, {"instance_type": "x9.huge"})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world(tmp_path, monkeypatch) as made:
        yield made


def cost(*resources: Resource, book: Book = LIST) -> Cost:
    return costs.total(Inventory(resources), "llm", TWELVE, book)


def of_market(market: str) -> Resource:
    return replace(NODE, details={**G6, "market": market})


def test_it_counts_from_when_each_was_made_and_leaves_out_other_documents_nodes() -> None:
    of_others = replace(NODE, tags={"diptych.dev/service": "b"})
    found = cost(NODE, of_others, GATEWAY)
    assert found.per_hour == pytest.approx(2.0144 + 0.045)
    assert found.so_far == pytest.approx(2 * (2.0144 + 0.045))
    assert (found.is_whole, found.sources) == (True, (f"list price of {LISTED} in us-east-1",))


def test_on_somebody_elses_cluster_only_what_was_made_for_us_is_counted() -> None:
    theirs = {"alpha.eksctl.io/cluster-name": "llm"}
    cluster = Resource("cluster", "llm", "ACTIVE", "eksctl", theirs, {"version": "1.35"}, TEN)
    node = replace(NODE, id="i-9", by="eksctl", tags=theirs)
    claim = Resource(
        "volume", "vol-9", "in-use", "cluster", {"kubernetes.io/cluster/llm": "owned"}, {"gib": 900}
    )
    entry = Resource("load balancer", "lb-1", "active", "cluster", {"diptych.dev/service": "llm"}, {}, TEN)
    found = cost(cluster, node, claim, NODE, entry)
    assert (found.per_hour, found.is_whole) == (pytest.approx(2.0144 + 0.0225), True)


def test_what_has_no_price_is_named_and_makes_it_a_least() -> None:
    found = cost(NODE, UNKNOWN)
    assert (found.per_hour, found.unpriced, found.is_whole) == (2.0144, ("instance i-2",), False)
    assert found.to_json()["at_least"] is True


def test_prices_are_those_of_the_region_as_in_the_plan(shared: FakeAws, session: Session) -> None:
    found = cost(NODE, GATEWAY, book=Book("us-east-2", session))
    assert found.per_hour == pytest.approx(shared.prices.instances["g6.8xlarge"] + 0.045)
    assert found.sources == ("AWS's price list for us-east-2",)


def test_spot_nodes_cost_what_spot_costs_now_and_those_of_a_block_are_paid_already(
    shared: FakeAws, session: Session
) -> None:
    book = Book("us-east-2", session)
    spot = cost(of_market("spot"), book=book)
    assert 0 < (spot.per_hour or 0) < shared.prices.instances["g6.8xlarge"]
    assert spot.sources == ("the spot price now",)
    assert cost(of_market("capacity-block"), book=book).per_hour == 0
    assert cost(of_market("spot")).unpriced == ("instance i-1",)  # nobody to ask
    assert cost(of_market("scheduled"), book=book).unpriced == ("instance i-1",)


def test_instances_that_do_not_run_cost_nothing_but_their_volumes_do() -> None:
    about = {"gib": 100, "volume_type": "gp3", "mibps": 500, "iops": 3000}
    volume = Resource("volume", "vol-1", "in-use", "diptych", OWN, about, TEN)
    assert cost(replace(NODE, state="stopped")).per_hour == 0
    assert cost(volume).per_hour == pytest.approx((100 * 0.08 + 375 * 0.04) / HOURS_PER_MONTH)


def test_a_version_past_its_standard_support_costs_its_surcharge(shared: FakeAws, session: Session) -> None:
    def running(version: str) -> Resource:
        return Resource("cluster", "llm", "ACTIVE", "diptych", OWN, {"version": version}, TEN)

    book = Book("us-east-2", session)
    assert cost(running("1.35"), book=book).per_hour == 0.10
    assert cost(running("1.32"), book=book).per_hour == pytest.approx(0.60)
    unsaid = cost(running("1.32"))
    assert (unsaid.per_hour, unsaid.is_whole) == (0.10, False)
    assert unsaid.unpriced == ("extended support (whether 1.32 needs it was not said) of cluster llm",)


def test_an_address_counts_since_the_cluster_was_made() -> None:
    cluster = Resource("cluster", "llm", "ACTIVE", "diptych", OWN, {"version": "1.35"}, TEN)
    address = Resource("address", "eipalloc-1", "", "diptych", OWN)
    assert cost(cluster, address).so_far == pytest.approx(2 * 0.105)
    assert cost(address).so_far == 0


def test_a_listing_that_is_refused_makes_it_a_least_and_is_said(here: World) -> None:
    bring_up(here.job(), ("cluster",))
    whole = costs.of(here.job())
    assert whole.is_whole
    here.aws.faults.denied.add("ec2:DescribeVolumes")
    found = costs.of(here.job())
    assert not found.is_whole and "ec2:DescribeVolumes" in found.unasked[0]
    assert 0 < (found.per_hour or 0) < (whole.per_hour or 0)


def test_a_meter_asks_the_account_once_a_minute(here: World) -> None:
    meter = Meter()
    first, asked = meter.read(here.job()), len(here.aws.calls)
    assert meter.read(here.job()) == first
    assert not [call for call in here.aws.calls[asked:] if call.action != "sts:GetCallerIdentity"]
    assert "cloudformation:DescribeStacks" not in {call.action for call in here.aws.calls}
    again = Meter(again_s=-1)
    again.read(here.job())
    asked = len(here.aws.calls)
    again.read(here.job())
    assert here.aws.calls[asked:]


def test_a_cost_that_cannot_be_asked_says_why(here: World) -> None:
    here.aws.faults.credentials = "expired"
    job = here.job()
    found = Meter().read(replace(job, session=Fixed(job.session)))
    assert found.per_hour is None and "expired" in found.unasked[0].lower()
    assert found.to_json()["usd_per_hour"] is None


class Fixed(Session):
    """A session whose caller was asked for before its credentials ended."""

    def __init__(self, other: Session) -> None:
        super().__init__(other.region)
        self.__dict__["_caller"] = (Identity("123456789012", "arn"), None)
