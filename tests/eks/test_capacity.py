"""What AWS does not have is named as such: the type, the zone, and whether another zone may help."""

import pytest

from diptych.eks.capacity import shortage_in

NONE_LEFT = (
    "AsgInstanceLaunchFailures: Could not launch On-Demand Instances. InsufficientInstanceCapacity - We currently do "
    "not have sufficient g6.8xlarge capacity in the Availability Zone you requested (us-east-2a). Our system will be "
    "working on provisioning additional capacity. You can currently get g6.8xlarge capacity by choosing us-east-2b."
)
NO_SPOT = (
    "Could not launch Spot Instances. UnfulfillableCapacity - There is no Spot capacity available that matches your "
    "request. Launching EC2 instance failed."
)
NO_QUOTA = (
    "Could not launch On-Demand Instances. VcpuLimitExceeded - You have requested more vCPU capacity than your current "
    "vCPU limit of 0 allows for the instance bucket that the specified instance type belongs to."
)
RESERVED = (
    "Could not launch On-Demand Instances. ReservationCapacityExceeded - The requested reservation does not have "
    "sufficient compatible and available capacity for this request. Launching EC2 instance failed."
)


@pytest.mark.report("B11")
def test_a_shortage_names_type_and_zone_and_that_another_zone_may_help() -> None:
    found = shortage_in(NONE_LEFT, "llm-decode")
    assert found is not None
    assert "AWS has no g6.8xlarge free in us-east-2a just now" in found.message
    assert "llm-decode" in found.message
    assert found.zone == "us-east-2a" and found.elsewhere


def test_spot_that_is_not_to_be_had_is_a_shortage_too() -> None:
    found = shortage_in(NO_SPOT, "llm-decode")
    assert found is not None and found.elsewhere and not found.zone


def test_a_quota_is_no_shortage_of_a_zone() -> None:
    found = shortage_in(NO_QUOTA, "llm-decode")
    assert found is not None and not found.elsewhere
    assert "quota of vCPUs" in found.message and "diptych check" in found.hint


@pytest.mark.report("B10")
def test_a_reservation_that_is_used_up_is_named() -> None:
    found = shortage_in(RESERVED, "llm-decode")
    assert found is not None and not found.elsewhere
    assert "capacity reservation" in found.message


@pytest.mark.parametrize(
    "words",
    [
        "",
        "AccessDenied: not authorized to perform iam:CreateRole",
        "NodeCreationFailure: Instances failed to join",
    ],
)
def test_other_failures_are_none(words: str) -> None:
    assert shortage_in(words, "llm-decode") is None
