"""A pod's status, from what its containers do."""

from collections import defaultdict
from typing import Any

from fakes.kubernetes.cluster.recorder import condition
from fakes.kubernetes.errors import Json
from fakes.kubernetes.objects import now


class Containers:
    """How the containers of a pod are.

    Attributes:
        states: of each, as `state` of a container's status.
        restarts: how often each began again.
        last: the state in which each ended before.
        ready: whether the pod's readiness probes pass.
    """

    def __init__(self, states: dict[str, Json]) -> None:
        self.states = states
        self.restarts: dict[str, int] = defaultdict(int)
        self.last: dict[str, Json] = {}
        self.ready = False

    def started(self, name: str) -> bool:
        """Whether it runs or has run."""
        return "waiting" not in self.states[name] or self.restarts[name] > 0

    def is_done(self, name: str) -> bool:
        return "terminated" in self.states[name]


def status_of(pod: Json, containers: Containers, phase: str | None) -> Json:
    """The status to write over that of `pod`; without a `phase` it is Pending or Running."""
    spec, before = pod["spec"], pod["status"]
    first, main = (
        [each["name"] for each in spec.get(field, ())] for field in ("initContainers", "containers")
    )
    is_initialized = all(containers.is_done(name) for name in first)
    has_started = is_initialized and any(containers.started(name) for name in main)
    name = pod["metadata"]["name"].encode()
    status: dict[str, Any] = {
        **before,
        "phase": phase or ("Running" if has_started else "Pending"),
        "conditions": _conditions(containers, first, main, is_initialized, before.get("conditions", [])),
        "hostIP": "10.0.0.1",
        "podIP": f"10.0.{sum(name) % 250}.{sum(name) % 199 + 1}",
        "startTime": before.get("startTime", now()),
        "containerStatuses": [
            _of_container(each, containers, containers.ready) for each in spec["containers"]
        ],
    }
    if first:
        status["initContainerStatuses"] = [
            _of_container(
                each, containers, containers.states[each["name"]].get("terminated", {}).get("exitCode") == 0
            )
            for each in spec["initContainers"]
        ]
    return status


def _conditions(
    containers: Containers, first: list[str], main: list[str], is_initialized: bool, before: list[Json]
) -> list[Json]:
    waiting = f"containers with incomplete status: [{' '.join(first)}]"
    unready = f"containers with unready status: [{' '.join(main)}]"
    found = [each for each in before if each["type"] == "PodScheduled"]
    for kind, is_true, reason, message in (
        ("Initialized", is_initialized, "ContainersNotInitialized", waiting),
        ("Ready", containers.ready, "ContainersNotReady", unready),
        ("ContainersReady", containers.ready, "ContainersNotReady", unready),
    ):
        said = ("True", "", "") if is_true else ("False", reason, message)
        found.append(condition(kind, *said, before))
    return found


def _of_container(container: Json, containers: Containers, is_ready: bool) -> Json:
    name = container["name"]
    return {
        "name": name,
        "image": container["image"],
        "imageID": "",
        "ready": is_ready,
        "started": "running" in containers.states[name],
        "restartCount": containers.restarts[name],
        "state": containers.states[name],
        "lastState": containers.last.get(name, {}),
    }
