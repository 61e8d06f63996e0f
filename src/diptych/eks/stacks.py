"""CloudFormation stacks: what eksctl makes is in them, and their events say how far it is and what went wrong."""

import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any

from diptych.eks.aws import Session
from diptych.eks.job import EksJob
from diptych.errors import AccountError, DiptychError
from diptych.kube.waiting import Seen, duration

REMOVAL_S = 900.0
"""Seconds that removing a stack usually takes at most: the control plane's 10 minutes, and a margin."""

_DEAD = frozenset(
    {"CREATE_FAILED", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "DELETE_FAILED", "ROLLBACK_IN_PROGRESS"}
)
_CANCELLED = re.compile(r"cancelled", re.IGNORECASE)
_REQUEST = re.compile(r"\s*\((?:Service|RequestToken|SDK Attempt)[^)]*\)|\s*\(RequestToken.*$")

_STACK = "AWS::CloudFormation::Stack"
_WORDS = {
    "AWS::EKS::Cluster": "control plane",
    "AWS::EKS::Nodegroup": "node group",
    "AWS::EKS::Addon": "add-on",
    "AWS::EC2::NatGateway": "NAT gateway",
    "AWS::EC2::VPC": "VPC",
    "AWS::EC2::LaunchTemplate": "launch template",
    "AWS::EC2::PlacementGroup": "placement group",
    "AWS::EC2::SecurityGroup": "security group",
    "AWS::EC2::InternetGateway": "internet gateway",
    "AWS::EC2::Subnet": "subnets",
    "AWS::IAM::Role": "role",
}


@dataclass(frozen=True)
class Stack:
    """One stack: its state, and the reason that CloudFormation gives for it."""

    name: str
    status: str
    reason: str
    tags: Mapping[str, str]
    made_at: datetime | None = None

    @property
    def is_moving(self) -> bool:
        """CloudFormation is at it."""
        return self.status.endswith("_IN_PROGRESS")

    @property
    def is_dead(self) -> bool:
        """It will never hold what it was made for: eksctl takes it for one that does (T2)."""
        return self.status in _DEAD


@dataclass(frozen=True)
class StackEvent:
    """One step of a stack: a resource and what became of it."""

    resource: str
    kind: str
    status: str
    reason: str
    at: datetime

    @property
    def words(self) -> str:
        """The resource's kind, as people call it."""
        return _WORDS.get(self.kind, self.kind.rpartition("::")[2])


def of_cluster(session: Session, cluster: str) -> dict[str, Stack]:
    """All stacks of a cluster by name: those that eksctl made for it, and our own."""
    ours = re.compile(rf"(eksctl|diptych)-{re.escape(cluster)}-(cluster|nodegroup-|addon-|podidentity|efa-)")
    found = (_stack(each) for each in session.pages("cloudformation", "describe_stacks", "Stacks"))
    return {
        stack.name: stack
        for stack in found
        if stack.tags.get("alpha.eksctl.io/cluster-name", cluster) == cluster and ours.match(stack.name)
    }


def find(session: Session, name: str) -> Stack | None:
    """A stack by its name; None where there is none."""
    answer = session.find("cloudformation", "describe_stacks", StackName=name)
    stacks = [_stack(each) for each in (answer or {}).get("Stacks", ())]
    return next((stack for stack in stacks if stack.status != "DELETE_COMPLETE"), None)


def events(session: Session, name: str) -> list[StackEvent]:
    """What happened to a stack, oldest first."""
    found = session.pages("cloudformation", "describe_stack_events", "StackEvents", StackName=name)
    try:
        return sorted((_event(each) for each in found), key=lambda event: event.at)
    except AccountError:  # the stack has gone since
        return []


def first_failure(found: Iterable[StackEvent]) -> str | None:
    """Why a stack failed: the first event that failed by itself, and not because another one did."""
    for event in found:
        if event.status.endswith("_FAILED") and event.reason and not _CANCELLED.search(event.reason):
            return f"{event.words} {event.resource}: {_REQUEST.sub('', event.reason).strip()}"
    return None


def failure(session: Session, names: Iterable[str]) -> str:
    """The first failure in any of the named stacks; empty where none tells of one."""
    found = (first_failure(_latest(events(session, name))) for name in names)
    return next((words for words in found if words), "")


def _latest(found: Sequence[StackEvent]) -> Sequence[StackEvent]:
    """Events since the stack was last told to do something."""
    starts = [
        index
        for index, event in enumerate(found)
        if event.kind == _STACK and event.status in ("CREATE_IN_PROGRESS", "DELETE_IN_PROGRESS")
    ]
    return found[starts[-1] :] if starts else found


def settle(job: EksJob, stage: str, name: str, usual_s: float) -> Stack | None:
    """Wait until CloudFormation has come to an end with a stack; None where there is none (any more)."""

    def look() -> Seen:
        stack = find(job.session, name)
        if stack is None or not stack.is_moving:
            return Seen(done=True)
        since = f" since {duration(job.now() - stack.made_at.timestamp())}" if stack.made_at else ""
        return Seen(done=False, blocker=f"The stack {name} is {stack.status}{since}.")

    job.wait(stage, look, usual_s)
    return find(job.session, name)


def begin_removal(job: EksJob, stage: str, name: str) -> None:
    """Have a stack deleted without waiting; nothing where there is none, or CloudFormation is at it."""
    stack = find(job.session, name)
    if stack is not None and not stack.is_moving:
        job.tell("detail", stage, f"removing the stack {name} ({stack.status})")
        job.change("cloudformation", "delete_stack", name, StackName=name)


def remove(job: EksJob, stage: str, name: str) -> None:
    """Delete a stack and wait until it is gone; what dangles in its way is deleted, and it is tried again (I1).

    Raises:
        AccountError: it can't be deleted; the message has the resource in the way.
    """
    stack = settle(job, stage, name, REMOVAL_S)
    while stack is not None:
        begin_removal(job, stage, name)
        if job.dry_run:
            return
        stack = settle(job, stage, name, REMOVAL_S)
        if stack is not None and not _clear_way(job, stage, name):
            why = failure(job.session, [name]) or stack.reason or stack.status
            command = f"aws cloudformation delete-stack --stack-name {name} --region {job.place.region}"
            raise AccountError(
                f"The stack {name} can't be deleted: {why}.", f"Remove what is named, then: {command}"
            )


def _clear_way(job: EksJob, stage: str, name: str) -> bool:
    """Delete what holds a stack's network and nobody uses; whether there was something.

    The VPC CNI leaves interfaces behind when a node goes too fast, and EKS then leaves the cluster's security group.
    Interfaces that are in use are somebody's.
    """
    held = job.session.pages(
        "cloudformation", "list_stack_resources", "StackResourceSummaries", StackName=name
    )
    ids = [each.get("PhysicalResourceId", "") for each in held]
    groups, subnets, vpcs = ([i for i in ids if i.startswith(start)] for start in ("sg-", "subnet-", "vpc-"))
    free = [*_free_interfaces(job, "group-id", groups), *_free_interfaces(job, "subnet-id", subnets)]
    for interface in dict.fromkeys(free):
        job.tell("detail", stage, f"deleting the dangling network interface {interface}")
        job.change("ec2", "delete_network_interface", interface, NetworkInterfaceId=interface)
    own = [group for group in _cluster_groups(job, vpcs) if group not in groups]
    for group in own:
        job.tell("detail", stage, f"deleting the security group {group}, which EKS left")
        job.change("ec2", "delete_security_group", group, GroupId=group)
    return bool(free or own)


def _free_interfaces(job: EksJob, key: str, values: Sequence[str]) -> list[str]:
    if not values:
        return []
    filters = [{"Name": key, "Values": values}, {"Name": "status", "Values": ["available"]}]
    found = job.session.pages("ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=filters)
    return [each["NetworkInterfaceId"] for each in found]


def _cluster_groups(job: EksJob, vpcs: Sequence[str]) -> list[str]:
    """The security groups in these VPCs that EKS made for the cluster."""
    if not vpcs:
        return []
    keys = ["aws:eks:cluster-name", f"kubernetes.io/cluster/{job.place.cluster}"]
    filters = [{"Name": "vpc-id", "Values": vpcs}, {"Name": "tag-key", "Values": keys}]
    found = job.session.pages("ec2", "describe_security_groups", "SecurityGroups", Filters=filters)
    return [each["GroupId"] for each in found]


class Progress:
    """Tells, while a program works, what CloudFormation is at: from its events, every few seconds, in a thread.

    Args:
        prefix: how the names of the stacks to watch begin.
        usual_s: seconds that it usually takes.
    """

    def __init__(self, job: EksJob, stage: str, prefix: str, usual_s: float) -> None:
        self._job = job
        self._stage = stage
        self._prefix = prefix
        self._usual = duration(usual_s)
        self._began = time.time()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Progress":
        if not self._job.dry_run:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(self._job.every_s):
            try:
                text = self._text()
            except DiptychError:  # the program itself will meet it, and say so
                continue
            if not self._ended.is_set():
                self._job.tell("detail", self._stage, text)

    def _text(self) -> str:
        session, cluster = self._job.session, self._job.place.cluster
        names = [name for name in of_cluster(session, cluster) if name.startswith(self._prefix)]
        moving = [words for name in names for words in under_way(events(session, name))]
        idle = "waiting for nodes and add-ons" if names else "eksctl is at work"
        what = ", ".join(dict.fromkeys(moving)) or idle
        return f"{what}: {duration(time.time() - self._began)} (usually {self._usual})"


def under_way(found: Iterable[StackEvent]) -> list[str]:
    """The kinds of resources that are being made or deleted, in words."""
    last = {event.resource: event for event in found if event.kind != _STACK}
    return [event.words for event in last.values() if event.status.endswith("_IN_PROGRESS")]


def _stack(answer: Mapping[str, Any]) -> Stack:
    tags = {tag["Key"]: tag["Value"] for tag in answer.get("Tags", ())}
    reason = answer.get("StackStatusReason", "")
    return Stack(answer["StackName"], answer["StackStatus"], reason, tags, answer.get("CreationTime"))


def _event(answer: Mapping[str, Any]) -> StackEvent:
    return StackEvent(
        answer.get("LogicalResourceId", ""),
        answer.get("ResourceType", ""),
        answer.get("ResourceStatus", ""),
        answer.get("ResourceStatusReason", "") or "",
        answer["Timestamp"],
    )
