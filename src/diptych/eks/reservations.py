"""Capacity reservations and capacity blocks that a document names."""

from collections.abc import Iterable, Mapping
from typing import Any

from diptych.check.account import Reservation
from diptych.eks.aws import Session


def find(session: Session, named: Iterable[str]) -> Mapping[str, tuple[Reservation, ...]]:
    """Reservations by how the document names them: by id, or by the ARN of a resource group; absent: not there.

    Raises:
        AwsError: they may not be looked at.
    """
    found = {name: _behind(session, name) for name in dict.fromkeys(named)}
    return {name: reservations for name, reservations in found.items() if reservations}


def _behind(session: Session, name: str) -> tuple[Reservation, ...]:
    ids = [name] if name.startswith("cr-") else _in_group(session, name)
    if not ids:
        return ()
    answer = session.find("ec2", "describe_capacity_reservations", CapacityReservationIds=ids)
    return tuple(map(_reservation, (answer or {}).get("CapacityReservations", ())))


def _in_group(session: Session, arn: str) -> list[str]:
    answer = session.find("resource-groups", "list_group_resources", Group=arn)
    listed = [each["Identifier"] for each in (answer or {}).get("Resources", ())]
    return [
        str(each["ResourceArn"]).rpartition("/")[2]
        for each in listed
        if each.get("ResourceType") == "AWS::EC2::CapacityReservation"
    ]


def _reservation(each: Mapping[str, Any]) -> Reservation:
    return Reservation(
        id=each["CapacityReservationId"],
        instance_type=each["InstanceType"],
        zone=each["AvailabilityZone"],
        state=each["State"],
        total=each["TotalInstanceCount"],
        available=each["AvailableInstanceCount"],
        starts=each.get("StartDate"),
        ends=each.get("EndDate"),
        is_block=each.get("ReservationType") == "capacity-block",
        targeted=each.get("InstanceMatchCriteria") == "targeted",
        placement_group=each.get("PlacementGroupArn") or None,
    )
