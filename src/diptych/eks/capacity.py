"""Capacity: what AWS does not have just now, named as such, and the zone to try next."""

import re
from collections.abc import Sequence
from dataclasses import replace

from diptych.eks.job import EksJob
from diptych.errors import AccountError
from diptych.render.layout import WorkerGroup, worker_groups, zone_of

_TYPE = re.compile(r"\b([a-z]+\d+[a-z0-9-]*\.(?:\d+xlarge|x?large|medium|small|micro|metal(?:-\w+)?))\b")
_ZONE = re.compile(r"\b([a-z]{2}(?:-[a-z]+)+-\d[a-z])\b")

# What AWS says, what it means, what helps, and whether another zone may. A reservation's words come first: they
# speak of capacity, too.
_KINDS: tuple[tuple[str, str, str, bool], ...] = (
    (
        r"ReservationCapacityExceeded|[Rr]equested reservation",
        "the capacity reservation has no {type} left in {zone}",
        "Free some of it, or reserve more; nodes.capacity_reservation names it.",
        False,
    ),
    (
        r"InsufficientInstanceCapacity|AsgInstanceLaunchFailures.*sufficient|[Ii]nsufficient.*capacity"
        r"|UnfulfillableCapacity|not have sufficient",
        "AWS has no {type} free in {zone} just now (InsufficientInstanceCapacity)",
        "Wait, take another zone or type, or reserve some: a capacity reservation holds them for you.",
        True,
    ),
    (
        r"VcpuLimitExceeded|vCPU limit|MaxSpotInstanceCountExceeded",
        "the account's quota of vCPUs does not hold another {type}",
        "Ask for more: `diptych check` has the command; it may take a day.",
        False,
    ),
)


class ShortageError(AccountError):
    """AWS does not have the instances.

    Args:
        zone: where; empty where AWS does not say.
        elsewhere: another zone may have them.
    """

    def __init__(self, message: str, hint: str, zone: str, *, elsewhere: bool) -> None:
        super().__init__(message, hint)
        self.zone = zone
        self.elsewhere = elsewhere


def shortage_in(words: str, group: str) -> ShortageError | None:
    """The shortage that AWS's words tell of; None where they tell of something else."""
    for pattern, meaning, hint, elsewhere in _KINDS:
        if re.search(pattern, words):
            types, zones = _TYPE.search(words), _ZONE.search(words)
            zone = zones[1] if zones else ""
            text = meaning.format(type=types[1] if types else "such instance", zone=zone or "this zone")
            return ShortageError(
                f"The node group {group} got no nodes: {text}.", hint, zone, elsewhere=elsewhere
            )
    return None


def zones_to_try(job: EksJob, subnet_zones: Sequence[str], found: str | None) -> tuple[str, ...]:
    """The zones to have all GPU nodes in, in order: EFA does not leave one.

    Args:
        subnet_zones: those that the cluster has subnets in.
        found: where nodes of ours are already; they decide.
    """
    if found is not None:
        return (found,)
    groups = worker_groups(job.document)
    fixed = [zone for group in groups if (zone := fixed_zone(job, group))]
    if fixed:
        return (fixed[0],)
    offering = offering_zones(job, subnet_zones)
    first = [zone for zone in (job.facts.zone,) if zone in offering]
    return tuple(dict.fromkeys([*first, *offering]))


def offering_zones(job: EksJob, among: Sequence[str] = ()) -> tuple[str, ...]:
    """The zones that offer the instance types of all groups, sorted; `among` some, where given."""
    types = {group.instance_type or "" for group in worker_groups(job.document)}
    found: set[str] | None = None
    for name in sorted(types):
        offers = job.session.pages(
            "ec2",
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": [name]}],
        )
        zones = {offer["Location"] for offer in offers}
        found = zones if found is None else found & zones
    return tuple(sorted(zone for zone in found or () if not among or zone in among))


def is_zone_ours_to_choose(job: EksJob) -> bool:
    """Whether the document leaves the zone of all GPU nodes to us."""
    return not any(fixed_zone(job, group) for group in worker_groups(job.document))


def exhausted(job: EksJob, tried: Sequence[ShortageError], further: Sequence[str]) -> ShortageError:
    """No zone that was tried has them; `further` ones offer the types, too."""
    last = tried[-1]
    where = ", ".join(dict.fromkeys(error.zone for error in tried if error.zone))
    message = last.message if len(tried) < 2 else f"{last.message.rstrip('.')}; tried: {where}."
    hint = last.hint
    if further:
        hint = f"Try the next zone: diptych up --set eks.zone={further[0]}. {hint}"
    return ShortageError(message, hint, last.zone, elsewhere=bool(further))


def fixed_zone(job: EksJob, group: WorkerGroup) -> str | None:
    """The zone that the document itself demands for a group; None where it leaves that open."""
    return zone_of(job.document, group.nodes, replace(job.facts, zone=None))
