"""What an AWS account has and allows, as AWS tells it, and what the rules make of that: read, never changed."""

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from diptych.check import Account, Finding, check_file
from diptych.eks import permissions, reservations
from diptych.eks.account import gather
from diptych.eks.aws import Session, action_of
from diptych.kube.programs import EKSCTL
from diptych.spec import Document
from eks.world import document
from fakes.aws import FakeAws

REGION = "us-east-2"
G_QUOTA = "L-DB2E81BA"
READS = ("Describe", "Get", "List", "Simulate", "BatchGet")

Check = Callable[..., dict[str, list[Finding]]]


def test_an_account_is_described_by_reading_alone(shared: FakeAws, session: Session) -> None:
    found = gather(document(), session)
    assert found.identity is not None
    assert found.identity.account == "123456789012"
    assert found.zones == ("us-east-2a", "us-east-2b", "us-east-2c")
    assert found.denied == ()
    assert found.cluster is None
    assert found.unasked == ()
    assert shared.calls
    assert [call.action for call in shared.calls if not call.operation.startswith(READS)] == []


def test_types_come_with_their_zones_and_their_efa(shared: FakeAws, session: Session) -> None:
    shared.ec2.offerings["g6.8xlarge"] = {"us-east-2b"}
    offers = gather(document(), session).offers
    assert offers is not None
    assert (offers["g6.8xlarge"].zones, offers["g6.8xlarge"].efa_interfaces) == (frozenset({"us-east-2b"}), 1)
    assert (offers["m7i.xlarge"].vcpus, offers["m7i.xlarge"].efa_interfaces) == (4, 0)


@pytest.mark.report("B11")
def test_a_zone_that_does_not_offer_the_type_is_told_with_those_that_do(
    shared: FakeAws, check: Check
) -> None:
    shared.ec2.offerings["g6.8xlarge"] = {"us-east-2b", "us-east-2c"}
    [found] = check("eks: {zone: us-east-2a}\n")["N110"]
    assert found.field == "eks.zone"
    assert "us-east-2b or us-east-2c" in found.do
    assert "EFA" in found.do


def test_a_type_that_aws_does_not_know_is_no_failure_of_the_check(shared: FakeAws, check: Check) -> None:
    [found] = check("nodes: {instance_type: g66.8xlarge}\n")["N111"]
    assert "g66.8xlarge" in found.what
    assert "describe-instance-type-offerings" in found.do


def test_reserved_places_that_stand_empty_count_against_the_quota(shared: FakeAws, check: Check) -> None:
    shared.quotas.values[G_QUOTA] = 64
    shared.ec2.reserve("g6.8xlarge", "us-east-2a", 1)
    assert "32 of them in use" in check()["N106"][0].what
    shared.ec2.reservations.clear()
    shared.ec2.reserve("p5.48xlarge", "us-east-2a", 1, block=True)
    assert "N106" not in set(check())


def test_spot_nodes_have_a_quota_of_their_own(shared: FakeAws, check: Check) -> None:
    shared.quotas.values["L-3819A6DF"] = 0
    assert "--quota-code L-3819A6DF --desired-value 64" in check("nodes: {market: spot}\n")["N106"][0].do


def test_nodes_from_a_reservation_need_no_quota_and_must_fit_it(shared: FakeAws, check: Check) -> None:
    shared.quotas.values[G_QUOTA] = 64
    reservation = shared.ec2.reserve("g6.8xlarge", "us-east-2a", 2)
    text = f"nodes: {{capacity_reservation: {reservation}, zone: us-east-2a}}\n"
    assert not set(check(text)) & {"N106", "N110", "N114"}
    [found] = check(text.replace("us-east-2a", "us-east-2b"))["N114"]
    assert "which is in us-east-2a, and the nodes are in us-east-2b" in found.what


def test_both_phases_share_a_reservations_places(shared: FakeAws, check: Check) -> None:
    reservation = shared.ec2.reserve("g6.8xlarge", "us-east-2a", 1)
    found = check(f"nodes: {{capacity_reservation: {reservation}, zone: us-east-2a}}\n")
    [misfit] = found["N114"]
    assert "has 0 of 1 instances free, and 1 are needed" in misfit.what


def test_a_reservation_that_is_not_there_is_told(shared: FakeAws, check: Check) -> None:
    [found] = check("nodes: {capacity_reservation: cr-0123456789abcdef0, zone: us-east-2a}\n")["N114"]
    assert "not there" in found.what


@pytest.mark.report("B10")
def test_a_reservation_made_in_a_placement_group_does_not_hold_nodes_with_efa(
    shared: FakeAws, check: Check
) -> None:
    group = f"arn:aws:ec2:{REGION}:123456789012:placement-group/p"
    reservation = shared.ec2.reserve("g6.8xlarge", "us-east-2a", 2, placement_group=group)
    [found] = check(f"nodes: {{capacity_reservation: {reservation}, zone: us-east-2a}}\n")["N114"]
    assert "placement group" in found.what


def test_a_block_that_ends_within_a_day_is_told(shared: FakeAws, check: Check) -> None:
    reservation = shared.ec2.reserve("p5.48xlarge", "us-east-2a", 2, block=True, hours=5)
    text = (
        f"nodes: {{instance_type: p5.48xlarge, market: capacity-block, capacity_reservation: {reservation}, "
        "zone: us-east-2a}\n"
    )
    assert "half an hour before" in check(text)["N115"][0].what


def test_an_expired_sign_in_is_one_finding_and_nothing_else_is_asked(shared: FakeAws, check: Check) -> None:
    shared.faults.credentials = "expired"
    found = check()
    assert set(found) == {"N101"}
    assert "aws sso login" in found["N101"][0].do
    assert {call.service for call in shared.calls} == {"sts"}


def test_a_profile_that_is_not_there_is_a_finding_too(
    check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "lap")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    found = check()
    assert set(found) == {"N101"}
    assert "(lap)" in found["N101"][0].what


def test_another_account_than_remembered_stops(shared: FakeAws, check: Check) -> None:
    [found] = check(expected="444455556666")["N103"]
    assert "444455556666" in found.what
    assert "123456789012" in found.what


def test_more_actions_than_fit_one_page_are_all_simulated(shared: FakeAws, session: Session) -> None:
    shared.faults.page_size = 5
    shared.faults.denied |= {"tag:GetResources"}
    assert permissions.denied(session, session.who()) == ("tag:GetResources",)


DISPENSABLE = {
    "ec2:DescribeAddresses",
    "ec2:DescribeLaunchTemplateVersions",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeVpcs",
    "ecr:BatchGetImage",
    "iam:GetRole",
    "iam:SimulatePrincipalPolicy",
    "pricing:GetProducts",
    "resource-groups:ListGroupResources",
    "servicequotas:GetAwsDefaultServiceQuota",
    "servicequotas:GetServiceQuota",
    "sts:GetCallerIdentity",
}
"""What is asked where it may be, and done without where not; everybody may ask who they are."""


def test_every_action_that_we_ask_for_is_simulated_or_can_be_done_without() -> None:
    source = "\n".join(file.read_text() for file in Path(permissions.__file__).parent.glob("*.py"))
    called = re.findall(r'\._?(?:call|pages|find|change)\(\s*"([a-z0-9-]+)",\s*"(\w+)"', source)
    assert len(called) > 30
    asked = {action_of(*each).lower() for each in called}
    simulated = {action.lower() for step in permissions.ACTIONS.values() for action in step}
    assert asked - simulated == {action.lower() for action in DISPENSABLE}


def test_the_root_user_needs_no_simulation(shared: FakeAws, session: Session) -> None:
    shared.faults.arn = "arn:aws:iam::123456789012:root"
    assert permissions.denied(session, session.who()) == ()
    assert shared.called("iam:SimulatePrincipalPolicy") == []


def test_what_may_not_be_asked_is_said_and_the_rest_is_still_checked(shared: FakeAws, check: Check) -> None:
    shared.faults.denied |= {"iam:SimulatePrincipalPolicy", "servicequotas:GetServiceQuota"}
    shared.ec2.offerings["g6.8xlarge"] = {"us-east-2b"}
    found = check("eks: {zone: us-east-2a}\n")
    assert "N110" in found
    told = [each.what for each in found["N190"]]
    assert [what.partition(" could")[0] for what in told] == ["the quotas", "the permissions"]
    assert "servicequotas:GetServiceQuota" in told[0]


def test_versions_of_kubernetes_come_with_the_end_of_their_support(shared: FakeAws, session: Session) -> None:
    releases = {each.version: each for each in gather(document(), session).releases or ()}
    assert releases["1.35"].status == "standard"
    assert isinstance(releases["1.35"].standard_until, date)


def test_everything_wrong_comes_at_once(shared: FakeAws, check: Check) -> None:
    shared.quotas.values[G_QUOTA] = 0
    shared.ec2.offerings["g6.8xlarge"] = {"us-east-2b"}
    shared.faults.denied |= {"iam:CreateRole"}
    found = check("eks: {zone: us-east-2c}\n", expected="444455556666")
    assert {"N103", "N105", "N106", "N110"} <= set(found)


def test_offline_asks_nobody(tmp_path: Path) -> None:
    file = tmp_path / "diptych.yaml"
    file.write_text("on: eks\nmodel: Qwen/Qwen3-8B\n")

    def never(_: Document) -> Account:
        raise AssertionError

    assert check_file(file, offline=True, environ={}, account=never).subject is not None
    file.write_text("on: local\n")
    assert check_file(file, offline=True, environ={}, account=never).subject is not None


def test_a_resource_group_stands_for_its_reservations() -> None:
    reservation = "cr-0123456789abcdef0"
    arn = f"arn:aws:ec2:{REGION}:123456789012:capacity-reservation/{reservation}"

    class Groups:
        def find(self, service: str, operation: str, **asked: object) -> dict[str, object]:
            if service == "resource-groups":
                kinds = ("AWS::EC2::CapacityReservation", "AWS::EC2::Instance")
                return {
                    "Resources": [
                        {"Identifier": {"ResourceArn": arn, "ResourceType": kind}} for kind in kinds
                    ]
                }
            assert asked["CapacityReservationIds"] == [reservation]
            about = {"CapacityReservationId": reservation, "InstanceType": "g6.8xlarge", "State": "active"}
            counts = {"TotalInstanceCount": 2, "AvailableInstanceCount": 1, "AvailabilityZone": "us-east-2a"}
            return {"CapacityReservations": [{**about, **counts}]}

    group = "arn:aws:resource-groups:us-east-2:123456789012:group/gpus"
    found = reservations.find(Groups(), [group])  # type: ignore[arg-type]
    assert [each.id for each in found[group]] == [reservation]


def test_programs_that_are_not_there_are_named(
    shared: FakeAws, check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    helm, eksctl = check()["N150"]
    assert "program helm is not in PATH" in helm.what
    assert "program eksctl is not in PATH" in eksctl.what
    assert EKSCTL.where in eksctl.do
