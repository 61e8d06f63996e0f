"""CloudFormation: stacks that come and go resource by resource, with the events of it.

eksctl's stacks are made of `Resource`s (see `recipes`); a template given to CreateStack may hold the types that
`templates` knows. moto's CloudFormation "creates" EKS resources that don't exist; nothing of it is used. Not here:
change sets, updates, nested stacks, exports, drift.
"""

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fakes.aws.clock import Clock
from fakes.aws.faults import Faults
from fakes.aws.templates import resources_of
from fakes.aws.wire import AwsError

Parameters = Mapping[str, Any]


class ResourceFailedError(Exception):
    """A resource could not be made or removed; the message is CloudFormation's reason.

    Args:
        physical_id: of what is there nevertheless, and must be removed.
    """

    def __init__(self, reason: str, physical_id: str = "") -> None:
        super().__init__(reason)
        self.physical_id = physical_id


@dataclass
class Resource:
    """One resource of a stack.

    Attributes:
        make: makes it and returns its physical id; raises ResourceFailedError.
        remove: takes the physical id; raises ResourceFailedError. What is gone already is fine.
        seconds: AWS's, apart from what `make` itself waits.
    """

    name: str
    type: str
    make: Callable[[], str]
    remove: Callable[[str], None]
    seconds: float = 2.0
    status: str = "PENDING"
    physical_id: str = ""
    reason: str = ""


@dataclass
class Stack:
    name: str
    identifier: str
    resources: list[Resource]
    tags: dict[str, str]
    created: datetime
    parameters: dict[str, str] = field(default_factory=dict)
    find_outputs: Callable[[], dict[str, str]] = dict
    outputs: dict[str, str] = field(default_factory=dict)
    rollback: bool = True
    description: str = ""
    status: str = "CREATE_IN_PROGRESS"
    reason: str = ""
    deleted: datetime | None = None
    events: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Stacks:
    """The region's stacks, those that are deleted too.

    Attributes:
        client: gives boto3's client of a service, of the fake itself.
        all: the oldest first.
    """

    region: str
    account: str
    clock: Clock
    faults: Faults
    client: Callable[[str], Any]
    all: list[Stack] = field(default_factory=list)
    _turning: threading.Lock = field(default_factory=threading.Lock)

    def start(
        self,
        name: str,
        resources: Sequence[Resource],
        tags: Mapping[str, str],
        *,
        find_outputs: Callable[[], dict[str, str]] = dict,
        parameters: Mapping[str, str] | None = None,
        rollback: bool = True,
        description: str = "",
    ) -> Stack:
        """Begin to make a stack; raises AwsError where one of that name is there, in whatever state."""
        if self.find(name) is not None:
            raise AwsError("AlreadyExistsException", f"Stack [{name}] already exists")
        identifier = f"arn:aws:cloudformation:{self.region}:{self.account}:stack/{name}/{uuid.uuid4()}"
        stack = Stack(
            name,
            identifier,
            list(resources),
            dict(tags),
            self.clock.now(),
            dict(parameters or {}),
            find_outputs,
            rollback=rollback,
            description=description,
        )
        self.all.append(stack)
        self._event(stack, None, "CREATE_IN_PROGRESS", "User Initiated")
        self.clock.start(lambda: self._make(stack))
        return stack

    def delete(self, name: str) -> None:
        """Begin to delete a stack; nothing happens where there is none, as there."""
        stack = self.find(name)
        if stack is None or stack.status == "DELETE_IN_PROGRESS":
            return
        with self._turning:
            making = stack.status == "CREATE_IN_PROGRESS"
            self._event(stack, None, "DELETE_IN_PROGRESS", "User Initiated")

        def go() -> None:
            if making:
                self.clock.until(lambda: all(one.status != "CREATE_IN_PROGRESS" for one in stack.resources))
            self._remove(stack, "DELETE")

        self.clock.start(go)

    def find(self, name: str) -> Stack | None:
        """The stack of that name that is not deleted, or of that id, deleted or not."""
        for stack in reversed(self.all):
            if name == stack.identifier or (name == stack.name and stack.status != "DELETE_COMPLETE"):
                return stack
        return None

    # CloudFormation's operations

    def create_stack(self, asked: Parameters) -> dict[str, Any]:
        given = {row["ParameterKey"]: row["ParameterValue"] for row in asked.get("Parameters", ())}
        resources, outputs = resources_of(asked.get("TemplateBody", ""), given, self.client)
        tags = {row["Key"]: row["Value"] for row in asked.get("Tags", ())}
        rollback = asked.get("OnFailure", "ROLLBACK") == "ROLLBACK" and not asked.get("DisableRollback")
        stack = self.start(
            asked["StackName"], resources, tags, find_outputs=outputs, parameters=given, rollback=rollback
        )
        return {"StackId": stack.identifier}

    def delete_stack(self, asked: Parameters) -> dict[str, Any]:
        self.delete(asked["StackName"])
        return {}

    def describe_stacks(self, asked: Parameters) -> dict[str, Any]:
        if name := asked.get("StackName"):
            stack = self.find(name)
            if stack is None:
                raise AwsError("ValidationError", f"Stack with id {name} does not exist")
            return {"Stacks": [_described(stack)]}
        there = [stack for stack in reversed(self.all) if stack.status != "DELETE_COMPLETE"]
        page, token = self.faults.page(there, asked.get("NextToken"), None)
        return {"Stacks": [_described(stack) for stack in page], **({"NextToken": token} if token else {})}

    def list_stacks(self, asked: Parameters) -> dict[str, Any]:
        wanted = asked.get("StackStatusFilter")
        found = [stack for stack in reversed(self.all) if not wanted or stack.status in wanted]
        page, token = self.faults.page(found, asked.get("NextToken"), None)
        rows = [
            {
                "StackId": stack.identifier,
                "StackName": stack.name,
                "CreationTime": stack.created,
                "StackStatus": stack.status,
                **({"DeletionTime": stack.deleted} if stack.deleted else {}),
            }
            for stack in page
        ]
        return {"StackSummaries": rows, **({"NextToken": token} if token else {})}

    def describe_stack_events(self, asked: Parameters) -> dict[str, Any]:
        stack = self._known(asked["StackName"])
        page, token = self.faults.page(list(reversed(stack.events)), asked.get("NextToken"), None)
        return {"StackEvents": page, **({"NextToken": token} if token else {})}

    def describe_stack_resources(self, asked: Parameters) -> dict[str, Any]:
        stack = self._known(asked["StackName"])
        return {"StackResources": [_resource_row(stack, one, "Timestamp") for one in stack.resources]}

    def list_stack_resources(self, asked: Parameters) -> dict[str, Any]:
        stack = self._known(asked["StackName"])
        page, token = self.faults.page(stack.resources, asked.get("NextToken"), None)
        rows = [_resource_row(stack, one, "LastUpdatedTimestamp") for one in page]
        return {"StackResourceSummaries": rows, **({"NextToken": token} if token else {})}

    def _known(self, name: str) -> Stack:
        stack = self.find(name)
        if stack is None:
            raise AwsError("ValidationError", f"Stack [{name}] does not exist")
        return stack

    # Work

    def _make(self, stack: Stack) -> None:
        for resource in stack.resources:
            with self._turning:  # a deletion waits for what has begun, and nothing more begins
                if stack.status != "CREATE_IN_PROGRESS":
                    return
                self._set(stack, resource, "CREATE_IN_PROGRESS")
            self.clock.wait(resource.seconds)
            try:
                resource.physical_id = resource.make()
            except (ResourceFailedError, AwsError) as error:
                resource.physical_id = getattr(error, "physical_id", "")
                self._set(stack, resource, "CREATE_FAILED", str(error))
                self._give_up(stack, resource)
                return
            self._set(stack, resource, "CREATE_COMPLETE")
        if stack.status == "CREATE_IN_PROGRESS":
            stack.outputs = stack.find_outputs()
            self._event(stack, None, "CREATE_COMPLETE")

    def _give_up(self, stack: Stack, failed: Resource) -> None:
        if stack.status != "CREATE_IN_PROGRESS":
            return
        reason = f"The following resource(s) failed to create: [{failed.name}]. "
        if not stack.rollback:
            self._event(stack, None, "CREATE_FAILED", reason)
            return
        self._event(stack, None, "ROLLBACK_IN_PROGRESS", f"{reason}Rollback requested by user.")
        self._remove(stack, "ROLLBACK")

    def _remove(self, stack: Stack, way: str) -> None:
        """The resources, the last made first; what can't go stays, with what it needs: there for another try."""
        failed: list[str] = []
        for resource in reversed(stack.resources):
            if resource.status in {"PENDING", "DELETE_COMPLETE"}:
                continue
            self._set(stack, resource, "DELETE_IN_PROGRESS")
            self.clock.wait(resource.seconds / 2)
            try:
                if resource.physical_id:
                    resource.remove(resource.physical_id)
            except (ResourceFailedError, AwsError) as error:
                self._set(stack, resource, "DELETE_FAILED", str(error))
                failed.append(resource.name)
                continue
            self._set(stack, resource, "DELETE_COMPLETE")
        if failed:
            names = ", ".join(failed)
            self._event(
                stack, None, f"{way}_FAILED", f"The following resource(s) failed to delete: [{names}]. "
            )
            return
        if way == "DELETE":
            stack.deleted = self.clock.now()
        self._event(stack, None, f"{way}_COMPLETE")

    def _set(self, stack: Stack, resource: Resource, status: str, reason: str = "") -> None:
        resource.status, resource.reason = status, reason
        self._event(stack, resource, status, reason)

    def _event(self, stack: Stack, resource: Resource | None, status: str, reason: str = "") -> None:
        if resource is None:
            stack.status, stack.reason = status, reason
        stack.events.append(
            {
                "StackId": stack.identifier,
                "EventId": str(uuid.uuid4()),
                "StackName": stack.name,
                "LogicalResourceId": resource.name if resource else stack.name,
                "PhysicalResourceId": resource.physical_id if resource else stack.identifier,
                "ResourceType": resource.type if resource else "AWS::CloudFormation::Stack",
                "Timestamp": self.clock.now(),
                "ResourceStatus": status,
                **({"ResourceStatusReason": reason} if reason else {}),
            }
        )


def _described(stack: Stack) -> dict[str, Any]:
    return {
        "StackId": stack.identifier,
        "StackName": stack.name,
        "Description": stack.description,
        "Parameters": [
            {"ParameterKey": key, "ParameterValue": value} for key, value in stack.parameters.items()
        ],
        "CreationTime": stack.created,
        "StackStatus": stack.status,
        "DisableRollback": not stack.rollback,
        "EnableTerminationProtection": False,
        "Tags": [{"Key": key, "Value": value} for key, value in stack.tags.items()],
        "Outputs": [{"OutputKey": key, "OutputValue": value} for key, value in stack.outputs.items()],
        **({"StackStatusReason": stack.reason} if stack.reason else {}),
        **({"DeletionTime": stack.deleted} if stack.deleted else {}),
    }


def _resource_row(stack: Stack, resource: Resource, time_key: str) -> dict[str, Any]:
    return {
        "StackName": stack.name,
        "StackId": stack.identifier,
        "LogicalResourceId": resource.name,
        "PhysicalResourceId": resource.physical_id,
        "ResourceType": resource.type,
        "ResourceStatus": resource.status,
        time_key: stack.created,
        **({"ResourceStatusReason": resource.reason} if resource.reason else {}),
    }
