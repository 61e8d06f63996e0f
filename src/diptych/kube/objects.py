"""Reading Kubernetes objects: names, ages, conditions, amounts. An object is the dict that the API answered with."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diptych.render.names import PHASE_LABEL

Object = Mapping[str, Any]

GPU = "nvidia.com/gpu"
EFA = "vpc.amazonaws.com/efa"
HUGE_PAGES = "hugepages-2Mi"

_UNITS = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTP", start=1)},
}


def name_of(obj: Object) -> str:
    """An object's name."""
    return str(obj["metadata"]["name"])


def labels_of(obj: Object) -> Mapping[str, str]:
    """Its labels."""
    return obj["metadata"].get("labels") or {}


def is_going(obj: Object) -> bool:
    """Whether it was deleted and is not gone yet."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def status_of(obj: Object) -> Object:
    """Its status; empty before it has one."""
    return obj.get("status") or {}


def condition(obj: Object, kind: str) -> Object:
    """The condition of that type; empty where it has none."""
    found = (each for each in status_of(obj).get("conditions") or [] if each.get("type") == kind)
    return next(found, {})


def holds(obj: Object, kind: str) -> bool:
    """Whether its condition of that type is true."""
    return condition(obj, kind).get("status") == "True"


def unix_time(stamp: str | None) -> float | None:
    """A time stamp as Kubernetes writes it, in Unix seconds.

    >>> unix_time("2026-11-30T12:00:00Z"), unix_time("2026-11-30T12:00:00.250000Z"), unix_time(None)
    (1796040000.0, 1796040000.25, None)
    """
    if not stamp:
        return None
    return datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def age_s(obj: Object, now: float) -> float:
    """Seconds since it was made."""
    return now - (unix_time(obj["metadata"].get("creationTimestamp")) or now)


def going_s(obj: Object, now: float) -> float:
    """Seconds since it was deleted. Its time stamp is the end of its time to end by itself."""
    meta = obj["metadata"]
    grace = float(meta.get("deletionGracePeriodSeconds") or 0)
    return now - ((unix_time(meta.get("deletionTimestamp")) or now) - grace)


def phase_of(obj: Object) -> str:
    """The phase whose pod or node it is; empty: none's."""
    return labels_of(obj).get(PHASE_LABEL, "")


def is_head(pod: Object) -> bool:
    """Whether it is a Ray cluster's head."""
    return labels_of(pod).get("ray.io/node-type") == "head"


def node_of(pod: Object) -> str:
    """The node it was given; empty before."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def container_states(pod: Object, *, init: bool = False) -> Sequence[Object]:
    """The statuses of its containers, or of those that run before them."""
    return status_of(pod).get("initContainerStatuses" if init else "containerStatuses") or []


def is_ready(pod: Object) -> bool:
    """Whether it is ready, and stays."""
    return holds(pod, "Ready") and not is_going(pod)


def is_running(pod: Object) -> bool:
    """Whether all its containers run, ready or not: workers are not ready before a Serve proxy is on them."""
    states = container_states(pod)
    running = bool(states) and all("running" in (each.get("state") or {}) for each in states)
    return running and not is_going(pod)


def requests_of(pod: Object) -> dict[str, float]:
    """What its containers ask for in all: cores, bytes, devices.

    The larger of what its containers ask for together and any that runs before them alone, as the scheduler counts.
    """
    spec = pod.get("spec") or {}
    asked: dict[str, float] = {}
    for container in spec.get("containers") or []:
        for resource, amount in _asked(container):
            asked[resource] = asked.get(resource, 0.0) + amount
    for container in spec.get("initContainers") or []:
        for resource, amount in _asked(container):
            asked[resource] = max(asked.get(resource, 0.0), amount)
    return asked


def allocatable(node: Object, resource: str) -> float:
    """What a node has of a resource for pods; 0 where it has none."""
    return quantity((status_of(node).get("allocatable") or {}).get(resource, 0))


def quantity(text: str | float) -> float:
    """An amount as Kubernetes writes it.

    >>> quantity("31850m"), quantity("113Gi") / 2**30, quantity("2"), quantity("1e3")
    (31.85, 113.0, 2.0, 1000.0)
    """
    written = str(text)
    for unit in sorted(_UNITS, key=len, reverse=True):
        if written.endswith(unit):
            return float(written.removesuffix(unit)) * _UNITS[unit]
    return float(written)


def amount(resource: str, value: float) -> str:
    """An amount of a resource: bytes in GiB or MiB, all else as a number.

    >>> amount("memory", 113 * 2**30), amount("hugepages-2Mi", 5120 * 2**20), amount("nvidia.com/gpu", 1.0)
    ('113 GiB', '5 GiB', '1')
    """
    if resource == "memory" or resource == "ephemeral-storage" or resource.startswith("hugepages-"):
        return f"{value / 2**30:.4g} GiB" if value >= 2**30 else f"{value / 2**20:.4g} MiB"
    return f"{value:.4g}"


def _asked(container: Object) -> Iterator[tuple[str, float]]:
    resources = container.get("resources") or {}
    wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    for resource, amount in wanted.items():
        yield resource, quantity(amount)
