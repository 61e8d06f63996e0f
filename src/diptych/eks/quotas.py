"""Limits of an account in a region, and what is in use of them."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from diptych.catalog.instances import instance_type
from diptych.check.account import Quota
from diptych.check.account_rules import ADDRESSES, VPCS
from diptych.check.demand import demands, quota_of
from diptych.eks.aws import AwsError, Session
from diptych.spec import Document

_SERVICES = {VPCS: "vpc"}
_UNITS = {VPCS: "VPCs", ADDRESSES: "Elastic IP addresses"}
_GROUP_TAG, _CLUSTER_TAG = "eks:nodegroup-name", "eks:cluster-name"


def find(session: Session, document: Document, codes: Iterable[str]) -> tuple[Quota, ...]:
    """The quotas with these codes: what the account may have, and what others than this document's nodes use.

    Raises:
        AwsError: they may not be looked at.
    """
    vcpus = _vcpus_in_use(session, document)
    return tuple(found for code in codes if (found := _quota(session, code, vcpus)) is not None)


def _quota(session: Session, code: str, vcpus: Counter[str] | None) -> Quota | None:
    service = _SERVICES.get(code, "ec2")
    asked = {"ServiceCode": service, "QuotaCode": code}
    answer = session.find("service-quotas", "get_service_quota", **asked) or _default(session, asked)
    if answer is None:
        return None
    found = answer["Quota"]
    used = _used(session, code, vcpus)
    return Quota(service, code, found["QuotaName"], int(found["Value"]), used, _UNITS.get(code, "vCPUs"))


def _default(session: Session, asked: dict[str, str]) -> Any | None:
    """The limit that every account has at first: Service Quotas does not give each of them as the account's own."""
    try:
        return session.find("service-quotas", "get_aws_default_service_quota", **asked)
    except AwsError:
        return None


def _used(session: Session, code: str, vcpus: Counter[str] | None) -> int | None:
    try:
        if code == VPCS:
            return sum(1 for _ in session.pages("ec2", "describe_vpcs", "Vpcs"))
        if code == ADDRESSES:
            return sum(1 for _ in session.pages("ec2", "describe_addresses", "Addresses"))
    except AwsError:
        return None
    return None if vcpus is None else vcpus[code]


def _vcpus_in_use(session: Session, document: Document) -> Counter[str] | None:
    """vCPUs by quota: of instances that run, but for this document's nodes, and of reserved places that stand empty."""
    groups = {each.node_group for each in demands(document)}
    used: Counter[str] = Counter()
    running = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    try:
        for reservation in session.pages("ec2", "describe_instances", "Reservations", Filters=running):
            for instance in reservation["Instances"]:
                if not _is_own(instance, document.cluster_name, groups):
                    _count(used, instance)
        _add_reserved(session, used)
    except AwsError:
        return None
    return used


def _is_own(instance: dict[str, Any], cluster: str, groups: set[str]) -> bool:
    tags = {each["Key"]: each["Value"] for each in instance.get("Tags", ())}
    return tags.get(_CLUSTER_TAG) == cluster and tags.get(_GROUP_TAG) in groups


def _count(used: Counter[str], instance: dict[str, Any]) -> None:
    """An instance of a capacity block counts against no quota, and one in a reservation as if it were on demand."""
    lifecycle = instance.get("InstanceLifecycle")
    code = quota_of(instance["InstanceType"], spot=lifecycle == "spot")
    if code is not None and lifecycle != "capacity-block":
        known = instance_type(instance["InstanceType"])
        options = instance.get("CpuOptions", {})
        used[code] += known.vcpus if known else options.get("CoreCount", 0) * options.get("ThreadsPerCore", 1)


def _add_reserved(session: Session, used: Counter[str]) -> None:
    """Places of a reservation count whether anybody uses them or not; those in use are counted as instances."""
    active = [{"Name": "state", "Values": ["active"]}]
    account = session.who().account
    for each in session.pages(
        "ec2", "describe_capacity_reservations", "CapacityReservations", Filters=active
    ):
        code = quota_of(each["InstanceType"], spot=False)
        known = instance_type(each["InstanceType"])
        paid_ahead = (
            each.get("ReservationType") == "capacity-block" or each.get("OwnerId", account) != account
        )
        if code is not None and known is not None and not paid_ahead:
            used[code] += each["AvailableInstanceCount"] * known.vcpus
