"""One managed node group: looked at, made by eksctl, resized, removed. Whatever is half done is brought to its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from diptych.eks import eksctl, stacks
from diptych.eks.capacity import shortage_in
from diptych.eks.job import EksJob
from diptych.eks.ownership import is_ours
from diptych.errors import AccountError
from diptych.kube.waiting import Seen
from diptych.render.write import to_yaml

USUAL_S = 300.0
"""Seconds that a node group usually takes: its instances boot in two minutes, and join in one more."""

_BROKEN = frozenset({"CREATE_FAILED", "DELETE_FAILED"})
_MOVING = frozenset({"CREATING", "UPDATING", "DELETING"})


@dataclass(frozen=True)
class NodeGroup:
    """A node group as EKS tells of it.

    Args:
        least, desired, most: its size.
        subnets: ids; they decide its zone.
        scaling_group: name of its auto scaling group; empty before there is one.
        issues: what EKS finds wrong with it, in its words.
        template, template_version: id and number of its launch template; empty without one.
    """

    name: str
    arn: str
    status: str
    instance_types: tuple[str, ...]
    least: int
    desired: int
    most: int
    subnets: tuple[str, ...]
    scaling_group: str
    issues: tuple[str, ...]
    labels: Mapping[str, str]
    tags: Mapping[str, str]
    market: str = "ON_DEMAND"
    made_at: datetime | None = None
    template: str = ""
    template_version: str = ""

    @property
    def is_broken(self) -> bool:
        """EKS has given up on it."""
        return self.status in _BROKEN

    @property
    def is_moving(self) -> bool:
        """EKS is at it."""
        return self.status in _MOVING


def stack_name(job: EksJob, name: str) -> str:
    """What eksctl calls the stack of a node group."""
    return f"eksctl-{job.place.cluster}-nodegroup-{name}"


def find(job: EksJob, name: str) -> NodeGroup | None:
    """One group of the cluster; None where there is none of that name."""
    answer = job.session.find("eks", "describe_nodegroup", clusterName=job.place.cluster, nodegroupName=name)
    return _group(answer["nodegroup"]) if answer else None


def all_of(job: EksJob) -> list[NodeGroup]:
    """All groups of the cluster, whoever made them."""
    if job.session.find("eks", "describe_cluster", name=job.place.cluster) is None:
        return []
    names = list(job.session.pages("eks", "list_nodegroups", "nodegroups", clusterName=job.place.cluster))
    return [group for name in names if (group := find(job, name)) is not None]


def ours(job: EksJob) -> list[NodeGroup]:
    """Those that Diptych made for this cluster."""
    return [group for group in all_of(job) if is_ours(job, group.tags)]


def ensure(job: EksJob, stage: str, config: Mapping[str, Any], names: Sequence[str]) -> dict[str, NodeGroup]:
    """Have groups that are ACTIVE: those that are not there are made together; what died is removed first (T2).

    Args:
        config: eksctl's configuration, which has them all.

    Returns:
        The groups by name; in a dry run without those that are not there yet.

    Raises:
        ShortageError: AWS has no such instances now; see `capacity`.
        AccountError: one failed otherwise, or one of that name is somebody else's.
    """
    missing = [name for name in names if not _lives(job, stage, name)]
    for name in missing:
        remove(job, stage, name)
    told = _make(job, stage, config, missing) if missing else ""
    there = {name: _settled(job, stage, name) for name in names}
    if job.dry_run:
        return {name: group for name, group in there.items() if group is not None}
    return {name: _require_ours(job, name, group, told) for name, group in there.items()}


def _lives(job: EksJob, stage: str, name: str) -> bool:
    """Whether there is a group that EKS has not given up on, once nobody is at it any more."""
    stack = stacks.settle(job, stage, stack_name(job, name), USUAL_S)
    group = _settled(job, stage, name)
    return group is not None and not group.is_broken and not (stack is not None and stack.is_dead)


def _require_ours(job: EksJob, name: str, group: NodeGroup | None, told: str) -> NodeGroup:
    if group is None or group.status not in ("ACTIVE", "DEGRADED"):
        raise _failed(job, name, group, told)
    if not is_ours(job, group.tags):
        raise AccountError(
            f"The cluster {job.place.cluster} has a node group {name} that Diptych did not make.",
            "Rename it, or give the document another name: nothing of it was changed.",
        )
    return group


def remove(job: EksJob, stage: str, name: str) -> None:
    """Remove a group and its stack, and wait until both are gone; nothing where there is neither."""
    stack = stacks.settle(job, stage, stack_name(job, name), USUAL_S)
    group = find(job, name)
    if stack is None and group is None:
        return
    if not all(is_ours(job, thing.tags) for thing in (stack, group) if thing is not None):
        raise AccountError(
            f"The cluster {job.place.cluster} has a node group {name} that Diptych did not make: it is left alone.",
            "Give the document another name, or remove that group yourself.",
        )
    if stack is not None:
        stacks.remove(job, stage, stack.name)
    if (
        find(job, name) is not None and not job.dry_run
    ):  # its stack left it, or somebody removed the stack alone
        place = {"clusterName": job.place.cluster, "nodegroupName": name}
        if group is not None and group.status != "DELETING":
            job.change("eks", "delete_nodegroup", name, **place)
        job.wait(stage, lambda: _gone(job, name), USUAL_S)


def grow(job: EksJob, stage: str, group: NodeGroup, count: int) -> None:
    """Set a group's size, and wait until EKS has taken it."""
    if (group.least, group.desired, group.most) == (count, count, count):
        return
    job.tell("detail", stage, f"{group.name}: from {group.desired} to {count} nodes")
    _scale(job, stage, group, f"{count} nodes", least=count, desired=count, most=count)


def lower_least(job: EksJob, stage: str, group: NodeGroup, count: int) -> None:
    """Let a group shrink to `count` nodes without changing what it has."""
    if group.least > count:
        _scale(
            job, stage, group, f"at least {count} nodes", least=count, desired=group.desired, most=group.most
        )


def _scale(
    job: EksJob, stage: str, group: NodeGroup, words: str, *, least: int, desired: int, most: int
) -> None:
    job.change(
        "eks",
        "update_nodegroup_config",
        f"{group.name}: {words}",
        clusterName=job.place.cluster,
        nodegroupName=group.name,
        scalingConfig={"minSize": least, "desiredSize": desired, "maxSize": most},
    )
    _settled(job, stage, group.name)


def _make(job: EksJob, stage: str, config: Mapping[str, Any], names: Sequence[str]) -> str:
    """Have eksctl make groups at the same time; its last lines. Its exit code proves nothing (T2)."""
    file = job.folder / f"{stage}.yaml"
    made = [each for each in config["managedNodeGroups"] if each["name"] in names]
    finished = eksctl.run(
        job,
        stage,
        ["create", "nodegroup", f"--config-file={file}", f"--include={','.join(names)}"],
        files={file: to_yaml({**config, "managedNodeGroups": made})},
        prefix=stack_name(job, ""),
        usual_s=USUAL_S + 5 * sum(each["desiredCapacity"] for each in made),
    )
    return finished.last(3)


def _failed(job: EksJob, name: str, group: NodeGroup | None, told: str) -> AccountError:
    """Why a group did not come up: what EKS and CloudFormation say of it, else eksctl's last lines."""
    said = [*(group.issues if group else ()), stacks.failure(job.session, [stack_name(job, name)])]
    words = " ".join(filter(None, said)) or told
    shortage = shortage_in(words, name)
    if shortage is not None:
        return shortage
    state = group.status if group else "not there"
    return AccountError(
        f"The node group {name} did not come up ({state}): {words or 'nobody says why'}",
        f"Set that right and run the same command again; all that eksctl printed is in {job.log('eksctl')}.",
    )


def _settled(job: EksJob, stage: str, name: str) -> NodeGroup | None:
    """Wait until nobody is at the group or its stack, and look at it."""

    def look() -> Seen:
        group = find(job, name)
        if group is None or not group.is_moving:
            return Seen(done=True)
        return Seen(
            done=False, blocker=f"The node group {name} is {group.status}. {' '.join(group.issues)}".strip()
        )

    job.wait(stage, look, USUAL_S)
    return find(job, name)


def _gone(job: EksJob, name: str) -> Seen:
    group = find(job, name)
    return Seen(done=group is None, blocker=f"The node group {name} is {group.status if group else 'gone'}.")


def _group(answer: Mapping[str, Any]) -> NodeGroup:
    size = answer.get("scalingConfig") or {}
    scaling = (answer.get("resources") or {}).get("autoScalingGroups") or [{}]
    template = answer.get("launchTemplate") or {}
    issues = (answer.get("health") or {}).get("issues") or ()
    return NodeGroup(
        name=answer["nodegroupName"],
        arn=answer.get("nodegroupArn", ""),
        status=answer["status"],
        instance_types=tuple(answer.get("instanceTypes") or ()),
        least=size.get("minSize", 0),
        desired=size.get("desiredSize", 0),
        most=size.get("maxSize", 0),
        subnets=tuple(answer.get("subnets") or ()),
        scaling_group=scaling[0].get("name", ""),
        issues=tuple(f"{issue.get('code')}: {issue.get('message')}" for issue in issues),
        labels=answer.get("labels") or {},
        tags=answer.get("tags") or {},
        market=answer.get("capacityType", "ON_DEMAND"),
        made_at=answer.get("createdAt"),
        template=template.get("id", ""),
        template_version=str(template.get("version", "")),
    )
