"""What a document's cluster costs per hour: by AWS's price list for the region, else by a dated one that says so."""

import socket
from datetime import date
from importlib.resources import files

import pytest

from diptych.eks.aws import Session
from diptych.eks.price_list import LISTED
from diptych.eks.prices import HOURS_PER_MONTH, Book, Price, Row, price
from diptych.render.inputs import Facts
from eks.world import document
from fakes.aws import FakeAws

AWS_LIST = "AWS's price list for us-east-2"


def row(found: Price, what: str) -> Row:
    [one] = [each for each in found.rows if each.what.startswith(what)]
    return one


def test_prices_are_those_of_the_region_on_demand_on_shared_hardware(
    shared: FakeAws, session: Session
) -> None:
    found = price(document(), Facts(), session)
    prefill = row(found, "1 × g6.8xlarge (prefill)")
    assert (prefill.usd_per_hour, prefill.source) == (shared.prices.instances["g6.8xlarge"], AWS_LIST)
    assert row(found, "1 × m7i.xlarge (system)").usd_per_hour == shared.prices.instances["m7i.xlarge"]
    assert row(found, "EKS control plane").usd_per_hour == 0.10
    assert row(found, "NAT gateway").usd_per_hour == 0.045


def test_nodes_are_counted_as_they_are_rendered(shared: FakeAws, session: Session) -> None:
    found = price(document(decode={"num_replicas": 3}), Facts(), session)
    decode = row(found, "3 × g6.8xlarge (decode)")
    assert decode.usd_per_hour == pytest.approx(3 * shared.prices.instances["g6.8xlarge"])


def test_volumes_cost_by_size_and_by_the_speed_above_what_is_free(shared: FakeAws, session: Session) -> None:
    nodes = {"instance_type": "p5.48xlarge", "volume_size": 500 * 2**30}
    staging = {"path": "/var/lib/models"}  # on the root volume, which is then made fast
    found = price(document(nodes=nodes, staging=staging), Facts(), session)
    expected = 2 * (500 * 0.08 + (500 - 125) * 0.04) / HOURS_PER_MONTH
    gpu = row(found, "root volumes, 1000 GiB")
    assert (gpu.step, gpu.usd_per_hour) == ("nodes", pytest.approx(expected))
    system = row(found, "root volumes, 100 GiB")
    assert (system.step, system.usd_per_hour) == ("cluster", pytest.approx(100 * 0.08 / HOURS_PER_MONTH))


def test_extended_support_is_a_surcharge_of_its_own(shared: FakeAws, session: Session) -> None:
    usual = price(document(), Facts(), session)
    extended = price(document(), Facts(), session, version="1.32")
    assert usual.is_whole and extended.usd_per_hour == pytest.approx(usual.usd_per_hour + 0.50)
    shared.faults.denied.add("eks:DescribeClusterVersions")
    unsaid = price(document(), Facts(), session, version="1.32")
    assert unsaid.total.startswith("at least $")
    assert "not in it, since no price is known: extended support (whether 1.32 needs it" in unsaid.total


def test_a_load_balancer_costs_only_where_there_is_one(shared: FakeAws, session: Session) -> None:
    access = {
        "expose": "internal-lb",
        "hostname": "llm.example.com",
        "tls_certificate_arn": "arn:aws:acm:us-east-2:123456789012:certificate/a",
    }
    found = price(document(access=access), Facts(), session)
    assert row(found, "network load balancer").step == "service"
    assert "network load balancer" not in [each.what for each in price(document(), Facts(), session).rows]


def test_nodes_on_spot_cost_what_spot_costs_now(shared: FakeAws, session: Session) -> None:
    found = row(
        price(document(nodes={"market": "spot"}), Facts(zone="us-east-2b"), session),
        "1 × g6.8xlarge (decode), spot",
    )
    asked = shared.called("ec2:DescribeSpotPriceHistory")[-1].parameters
    assert (asked["InstanceTypes"], asked["AvailabilityZone"]) == (["g6.8xlarge"], "us-east-2b")
    assert found.source == "the spot price now"
    assert 0 < (found.usd_per_hour or 0) < shared.prices.instances["g6.8xlarge"]
    unasked = row(price(document(nodes={"market": "spot"}), Facts()), "1 × g6.8xlarge (decode), spot")
    assert unasked.usd_per_hour is None


def test_nodes_of_a_capacity_block_are_paid_already() -> None:
    nodes = {
        "instance_type": "p5.48xlarge",
        "market": "capacity-block",
        "capacity_reservation": "cr-0123456789abcdef0",
    }
    found = row(price(document(nodes=nodes), Facts()), "1 × p5.48xlarge (prefill), capacity block")
    assert (found.usd_per_hour, found.source) == (0.0, "paid in advance")


def test_where_aws_can_not_be_asked_the_list_price_stands_in_and_is_dated(
    shared: FakeAws, session: Session
) -> None:
    shared.faults.denied.add("pricing:GetProducts")
    found = price(document(), Facts(), session)
    assert found.sources == (f"list price of {LISTED} in us-east-1",)
    assert row(found, "1 × g6.8xlarge (prefill)").usd_per_hour == 2.0144
    assert found.is_whole


def test_a_price_list_that_refuses_is_not_asked_again(shared: FakeAws, session: Session) -> None:
    shared.faults.denied.add("pricing:GetProducts")
    book = Book("us-east-2", session)
    assert [book.nat_gateway().source, book.address().source] == [f"list price of {LISTED} in us-east-1"] * 2
    assert len(shared.called("pricing:GetProducts")) == 1


def test_a_price_list_that_is_not_reached_is_tried_once(
    shared: FakeAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", f"http://127.0.0.1:{closed.getsockname()[1]}")
    tries: list[str] = []
    asked = Session("us-east-2")
    asked.client("pricing", "us-east-1").meta.events.register(
        "before-send.pricing", lambda request, **_: tries.append(request.url)
    )
    book = Book("us-east-2", asked)
    assert [book.control_plane().usd_per_hour, book.nat_gateway().usd_per_hour] == [0.10, 0.045]
    assert len(tries) == 1


def test_what_has_no_price_makes_the_sum_a_least(shared: FakeAws, session: Session) -> None:
    shared.prices.available = False
    found = price(document(nodes={"instance_type": "p5e.48xlarge"}), Facts(), session)
    assert row(found, "1 × p5e.48xlarge (decode)").usd_per_hour is None
    assert not found.is_whole


def test_whoever_uses_a_cluster_of_others_does_not_pay_for_it(shared: FakeAws, session: Session) -> None:
    found = price(document(), Facts(), session, version="1.32", of_others=True)
    assert {each.step for each in found.rows} == {"cluster", "nodes"}
    assert all(
        "g6.8xlarge" in each.what or "system" in each.what or "root" in each.what for each in found.rows
    )


def test_a_volume_costs_by_kind_by_size_and_by_the_speed_above_what_is_free() -> None:
    book = Book("us-east-2", None)
    assert book.volume("gp3", 100, mibps=125, iops=3000).usd_per_hour == pytest.approx(8 / HOURS_PER_MONTH)
    fast = book.volume("gp3", 100, mibps=225, iops=4000).usd_per_hour
    assert fast == pytest.approx((8 + 100 * 0.04 + 1000 * 0.005) / HOURS_PER_MONTH)
    assert book.volume("io2", 100, iops=1000).usd_per_hour == pytest.approx((12.5 + 65) / HOURS_PER_MONTH)
    assert book.volume("new1", 100).usd_per_hour is None


def test_each_price_is_asked_for_once(shared: FakeAws, session: Session) -> None:
    book = Book("us-east-2", session)
    for _ in range(3):
        book.control_plane()
        book.instances("g6.8xlarge", "spot", "us-east-2a")
    asked = (shared.called("pricing:GetProducts"), shared.called("ec2:DescribeSpotPriceHistory"))
    assert [len(each) for each in asked] == [1, 1]


def test_prices_in_pages_are_all_read(shared: FakeAws, session: Session) -> None:
    shared.faults.page_size = 1
    assert row(price(document(), Facts(), session), "NAT gateway").source == AWS_LIST


def test_the_day_of_the_list_is_that_of_the_table_of_types() -> None:
    first = files("diptych.catalog").joinpath("data/instances.csv").read_text().partition("\n")[0]
    assert date.fromisoformat(first.rpartition(" ")[2]) == LISTED
