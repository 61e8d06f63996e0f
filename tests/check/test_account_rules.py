"""Rules about an AWS account: numbers, names and commands that a user can act on."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from diptych.check import Finding
from diptych.check.account import Image, Interface, Release, Reservation, Unasked
from diptych.check.demand import demands, quota_of, quotas_of
from diptych.spec import Document
from fakes.account_facts import (
    ACCOUNT,
    CLUSTER,
    HALF_OPEN,
    IDENTITY,
    NOW,
    OFFERS,
    OPEN,
    OTHER,
    QUOTA,
    RESERVATION,
    WRONG,
    account,
    existing,
)

Check = Callable[..., list[Finding]]
Codes = Callable[..., set[str]]

TEXT = "on: eks\nmodel: Qwen/Qwen3-0.6B\n"
ABOUT_ACCOUNTS = tuple(code for code in WRONG if code < "N2")


def only(findings: list[Finding], code: str) -> Finding:
    [found] = [each for each in findings if each.code == code]
    return found


def test_an_account_with_nothing_wrong_says_nothing(codes: Codes) -> None:
    assert not {code for code in codes(TEXT, **account()) if code.startswith("N")} - {"N104"}
    assert not {code for code in codes(TEXT, **existing()) if code.startswith("N")}


@pytest.mark.parametrize("code", ABOUT_ACCOUNTS)
def test_an_account_says_nothing_about_another_place(codes: Codes, code: str) -> None:
    shared = {"N130", "N150", "N190"}
    assert not {each for each in codes("", **WRONG[code]) if each.startswith("N")} - shared


def test_a_quota_command_asks_for_what_runs_and_what_is_needed_as_the_same_caller(check: Check) -> None:
    quota = replace(QUOTA, limit=64, used=40)
    found = only(check(TEXT, **account(quotas=(quota,))), "N106")
    assert "has 64 in us-east-2, 40 of them in use" in found.what
    assert found.do.endswith("--desired-value 104 --region us-east-2 --profile dev")
    assert found.field == "nodes.instance_type"


def test_a_quota_whose_use_nobody_knows_is_compared_all_the_same(check: Check, codes: Codes) -> None:
    assert "N106" not in codes(TEXT, **account(quotas=(replace(QUOTA, limit=64, used=None),)))
    found = only(check(TEXT, **account(quotas=(replace(QUOTA, limit=32, used=None),))), "N106")
    assert "an unknown number of them in use" in found.what


def test_a_quota_that_is_exactly_enough_is_enough(codes: Codes) -> None:
    assert "N106" not in codes(TEXT, **account(quotas=(replace(QUOTA, limit=64, used=0),)))
    assert "N106" in codes(TEXT, **account(quotas=(replace(QUOTA, limit=63, used=0),)))


def test_a_cluster_that_is_there_needs_no_further_vpc(codes: Codes) -> None:
    vpcs = replace(QUOTA, service="vpc", code="L-F678F1CE", limit=5, used=5, unit="VPCs")
    assert "N106" in codes(TEXT, **account(quotas=(vpcs,)))
    assert "N106" not in codes(TEXT, **existing())
    assert "N106" not in codes(TEXT, **account(quotas=(vpcs,), cluster=CLUSTER))


def test_node_groups_count_against_the_quota_of_their_family_and_market() -> None:
    document = Document.model_validate(
        {
            "on": "eks",
            "model": "a/b",
            "nodes": {"market": "spot"},
            "decode": {"nodes": {"market": "on-demand"}},
        }
    )
    assert quotas_of(demands(document)) == ("L-1216C47A", "L-3819A6DF", "L-DB2E81BA")
    assert [each.node_group for each in demands(document)] == ["system", "diptych-prefill", "diptych-decode"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("g6.8xlarge", "L-DB2E81BA"),
        ("gr6.8xlarge", "L-DB2E81BA"),
        ("vt1.3xlarge", "L-DB2E81BA"),
        ("p5en.48xlarge", "L-417A185B"),
        ("p6-b200.48xlarge", "L-417A185B"),
        ("m7i.xlarge", "L-1216C47A"),
        ("t3.micro", "L-1216C47A"),
        ("inf2.xlarge", None),
        ("mac2.metal", None),
        ("x2idn.16xlarge", None),
        ("hpc7a.96xlarge", None),
        ("dl1.24xlarge", None),
    ],
)
def test_every_family_is_counted_by_its_own_quota(name: str, code: str | None) -> None:
    assert quota_of(name, spot=False) == code


def test_a_zone_that_the_account_does_not_have_is_told_as_that(check: Check) -> None:
    offers = {**OFFERS, "g6.8xlarge": replace(OFFERS["g6.8xlarge"], zones=frozenset({"us-east-2b"}))}
    text = f"{TEXT}eks: {{zone: us-east-2a}}\n"
    found = only(check(text, **account(zones=("us-east-2b", "us-east-2c"), offers=offers)), "N110")
    assert "this account does not have" in found.what
    assert found.do.startswith("write us-east-2b")


def test_system_nodes_must_be_had_in_the_zone_too(check: Check) -> None:
    offers = {**OFFERS, "m7i.xlarge": replace(OFFERS["m7i.xlarge"], zones=frozenset({"us-east-2b"}))}
    found = only(check(f"{TEXT}eks: {{zone: us-east-2a}}\n", **account(offers=offers)), "N110")
    assert "does not offer g6.8xlarge and m7i.xlarge" in found.what
    assert found.do.startswith("write us-east-2b")


def test_a_type_that_no_zone_has_is_told_once_and_not_by_zone(codes: Codes) -> None:
    offers = {**OFFERS, "g6.8xlarge": replace(OFFERS["g6.8xlarge"], zones=frozenset())}
    found = codes(f"{TEXT}eks: {{zone: us-east-2a}}\n", **account(offers=offers))
    assert "N111" in found
    assert not found & {"N110", "N112"}


def test_zones_that_have_all_types_are_those_of_every_type() -> None:
    assert ACCOUNT.zones_with(["g6.8xlarge", "m7i.xlarge"]) == ("us-east-2a", "us-east-2b")
    assert ACCOUNT.zones_with(["g6.8xlarge", "g6e.8xlarge"]) == ()
    assert ACCOUNT.zones_with(["unknown"]) == ()
    assert replace(ACCOUNT, offers=None).zones_with(["g6.8xlarge"]) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"instance_type": "g6e.8xlarge"}, "which holds g6e.8xlarge, and prefill has g6.8xlarge"),
        ({"zone": "us-east-2a"}, "which is in us-east-2a, and the nodes are in us-east-2b"),
        ({"state": "expired"}, "which is expired"),
        (
            {"state": "scheduled", "starts": NOW + timedelta(days=1)},
            "scheduled until 2026-11-30 at 12:00 UTC",
        ),
        ({"is_block": True}, "set market: capacity-block"),
        ({"available": 0}, "has 0 of 2 instances free, and 1 are needed"),
        ({"placement_group": "arn:…"}, "placement group"),
    ],
)
def test_a_reservation_says_why_it_does_not_hold_the_nodes(
    check: Check, changes: dict[str, Any], told: str
) -> None:
    changed: Reservation = replace(RESERVATION, **changes)
    text = f"{TEXT}nodes: {{capacity_reservation: {RESERVATION.id}, zone: us-east-2b}}\n"
    found = [
        each
        for each in check(text, **account(reservations={RESERVATION.id: (changed,)}))
        if each.code == "N114"
    ]
    assert told in found[0].what


def test_a_reservation_that_could_not_be_asked_is_not_judged(codes: Codes) -> None:
    text = f"{TEXT}nodes: {{capacity_reservation: {RESERVATION.id}, zone: us-east-2b}}\n"
    assert "N114" not in codes(text, **account(reservations=None))
    assert "N114" in codes(text, **account(reservations={}))


def test_another_region_than_remembered_is_told_at_its_field(check: Check) -> None:
    found = only(check(TEXT, **account(expected_region="eu-west-1")), "N103")
    assert (found.field, "is up in eu-west-1" in found.what) == ("eks.region", True)


def test_credentials_that_last_are_not_spoken_of(codes: Codes) -> None:
    assert "N102" not in codes(TEXT, **account(identity=replace(IDENTITY, expires=NOW + timedelta(hours=8))))


def test_aws_has_the_last_word_on_a_version_and_nothing_is_said_twice(codes: Codes) -> None:
    def about(version: str, *releases: Release) -> set[str]:
        text = f'{TEXT}eks: {{kubernetes_version: "{version}"}}\n'
        return codes(text, **account(releases=releases)) & {"C804", "C805", "C806", "N120", "N121"}

    lasting = Release("1.35", "standard", date(2027, 3, 27))
    assert about("1.35", lasting) == set()
    assert about("1.35", Release("1.35", "extended", date(2026, 11, 1))) == {"N120"}
    assert about("1.35", Release("1.35", "unsupported")) == {"N120"}
    assert about("1.33", lasting, Release("1.33", "extended", date(2026, 7, 29))) == {"C805"}
    assert about("1.34", lasting, Release("1.34", "standard", date(2026, 12, 2))) == {"C806"}


def test_the_version_to_take_is_one_that_lasts(check: Check) -> None:
    releases = (
        Release("1.34", "standard", date(2027, 12, 2)),
        Release("1.36", "standard", date(2026, 12, 20)),
    )
    text = f'{TEXT}eks: {{kubernetes_version: "1.35"}}\n'
    assert only(check(text, **account(releases=releases)), "N120").do == 'write "1.34"'


def test_an_image_that_may_not_be_looked_at_is_said_and_no_error(check: Check) -> None:
    image = Image(
        "registry.example.com/ray:1", None, "registry.example.com lets nobody look without credentials"
    )
    found = only(check(TEXT, **account(image=image)), "N190")
    assert (found.severity, found.field) == ("warning", "image.name")


def test_what_could_not_be_asked_says_why_and_what_to_do(check: Check) -> None:
    unasked = (Unasked("the zones", "AWS does not let you ec2:DescribeAvailabilityZones", "ask for it"),)
    found = only(check(TEXT, **account(unasked=unasked, zones=None)), "N190")
    assert found.what.startswith("the zones could not be checked: AWS does not let you")
    assert found.do == "ask for it"


@pytest.mark.report("B7")
@pytest.mark.parametrize(
    ("group", "ways"), [(HALF_OPEN, ["egress"]), (replace(OPEN, from_itself=False), ["ingress"])]
)
def test_the_missing_rule_of_a_security_group_has_its_command(
    check: Check, group: Any, ways: list[str]
) -> None:
    found = [each for each in check(TEXT, **existing(groups=(group,))) if each.code == "N141"]
    assert len(found) == 2  # one for each interface
    rule = "IpProtocol=-1,UserIdGroupPairs=[{GroupId=sg-0a1}]"
    for way in ("ingress", "egress"):
        command = f"aws ec2 authorize-security-group-{way} --group-id sg-0a1 --ip-permissions {rule}"
        assert (command in found[0].do) == (way in ways)


@pytest.mark.report("B8")
def test_a_security_group_that_is_there_and_not_attached_does_not_count(check: Check) -> None:
    bare = (Interface("eni-1", "i-1", "us-east-2a", ()),)
    found = only(check(TEXT, **existing(groups=(OPEN, OTHER), interfaces=bare)), "N141")
    assert "eni-1 (i-1)" in found.what
    assert "attach" in found.do


def test_before_there_are_nodes_the_clusters_own_group_is_looked_at(codes: Codes) -> None:
    assert "N141" in codes(TEXT, **existing(groups=(HALF_OPEN,), interfaces=()))
    old = f'{TEXT}eks: {{kubernetes_version: "1.32"}}\n'  # there Diptych attaches a group of its own
    assert "N141" not in codes(old, **existing(groups=(HALF_OPEN,), interfaces=()))


def test_a_service_without_efa_needs_no_rules_for_it(codes: Codes) -> None:
    text = f"{TEXT}prefill: {{resources: {{efa: 0}}}}\ndecode: {{resources: {{efa: 0}}}}\n"
    assert not codes(text, **existing(groups=(HALF_OPEN,))) & {"N141", "N143"}


def test_a_subnet_that_is_nearly_full_is_told(check: Check) -> None:
    full = tuple(replace(each, free_addresses=9) for each in CLUSTER.subnets)
    found = [each for each in check(TEXT, **existing(subnets=full)) if each.code == "N142"]
    assert "9 free addresses" in found[0].what
