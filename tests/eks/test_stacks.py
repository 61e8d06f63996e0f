"""CloudFormation's events in words: the first failure, and what is under way."""

from datetime import UTC, datetime, timedelta

import pytest

from diptych.eks.stacks import Stack, StackEvent, first_failure, under_way

_BEGAN = datetime(2026, 11, 30, 12, tzinfo=UTC)
_SHORT = (
    'Resource handler returned message: "[Issue(Code=AsgInstanceLaunchFailures, Message=Could not launch On-Demand '
    "Instances. InsufficientInstanceCapacity - We currently do not have sufficient g6.8xlarge capacity in the "
    'Availability Zone you requested (us-east-2a).)]" (RequestToken: 0c1f, HandlerErrorCode: GeneralServiceException)'
)


def event(resource: str, kind: str, status: str, reason: str = "", after: int = 0) -> StackEvent:
    return StackEvent(resource, kind, status, reason, _BEGAN + timedelta(seconds=after))


GROUP = "AWS::EKS::Nodegroup"
EVENTS = [
    event("eksctl-llm", "AWS::CloudFormation::Stack", "CREATE_IN_PROGRESS", "User Initiated"),
    event("LaunchTemplate", "AWS::EC2::LaunchTemplate", "CREATE_IN_PROGRESS", after=1),
    event("LaunchTemplate", "AWS::EC2::LaunchTemplate", "CREATE_COMPLETE", after=2),
    event("ManagedNodeGroup", GROUP, "CREATE_IN_PROGRESS", after=3),
]
FAILED = [
    event("Role", "AWS::IAM::Role", "CREATE_FAILED", "Resource creation cancelled", after=800),
    event("ManagedNodeGroup", GROUP, "CREATE_FAILED", _SHORT, after=801),
    event(
        "eksctl-llm", "AWS::CloudFormation::Stack", "ROLLBACK_IN_PROGRESS", "The following failed", after=802
    ),
]


def test_the_first_failure_is_the_one_that_failed_by_itself() -> None:
    told = first_failure([*EVENTS, *FAILED])
    assert told is not None
    assert told.startswith("node group ManagedNodeGroup: ") and "InsufficientInstanceCapacity" in told
    assert "RequestToken" not in told  # nobody can do anything with it


def test_a_stack_that_goes_well_has_no_failure() -> None:
    assert first_failure(EVENTS) is None


def test_what_is_under_way_is_named_as_people_call_it() -> None:
    assert under_way(EVENTS) == ["node group"]
    assert under_way([*EVENTS, *FAILED]) == []


@pytest.mark.parametrize("status", ["CREATE_FAILED", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "DELETE_FAILED"])
@pytest.mark.report("T2")
def test_a_dead_stack_is_not_taken_for_one_that_lives(status: str) -> None:
    assert Stack("eksctl-llm-nodegroup-llm-decode", status, "", {}).is_dead
    assert not Stack("eksctl-llm-nodegroup-llm-decode", status, "", {}).is_moving


@pytest.mark.parametrize("status", ["CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE"])
def test_one_that_lives_is_not_taken_for_dead(status: str) -> None:
    assert not Stack("eksctl-llm-cluster", status, "", {}).is_dead
