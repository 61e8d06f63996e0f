"""The scheduler: where a pod fits, and its words when it fits nowhere."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fakes.kubernetes.cluster.recorder import Recorder, condition, named
from fakes.kubernetes.cluster.script import Script
from fakes.kubernetes.errors import Json
from fakes.kubernetes.rules import quantity
from fakes.kubernetes.selectors import matches

if TYPE_CHECKING:
    from fakes.kubernetes.fake import FakeKubernetes

_NOT_HELPFUL = "Preemption is not helpful for scheduling"
_NO_VICTIMS = "No preemption victims found for incoming pod"


class Scheduler:
    """Puts pods on nodes, or says why not."""

    def __init__(self, fake: "FakeKubernetes", script: Script) -> None:
        self._recorder = Recorder(fake.store, "default-scheduler")
        self._script, self._kubernetes = script, fake.version

    def tick(self) -> None:
        if "schedule" in self._script.held:
            return
        for pod in self._recorder.all("Pod"):
            if not pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp"):
                self._schedule(pod)

    def _schedule(self, pod: Json) -> None:
        placed = [
            each
            for each in self._recorder.all("Pod")
            if each["spec"].get("nodeName") and each["status"]["phase"] not in ("Succeeded", "Failed")
        ]
        nodes = self._recorder.all("Node")
        node, why = place(pod, nodes, placed, self._kubernetes)
        before = pod["status"].get("conditions", [])
        if node is None:
            found = condition("PodScheduled", "False", "Unschedulable", why, before)
            if found not in before:
                self._recorder.status(pod, {**pod["status"], "conditions": [found]})
                self._recorder.event(pod, "FailedScheduling", why, warning=True)
            return
        self._recorder.edit(pod, spec={**pod["spec"], "nodeName": node})
        bound = self._recorder.find("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
        assert bound is not None
        found = condition("PodScheduled", "True", "", "", before)
        self._recorder.status(bound, {**bound["status"], "conditions": [found]})
        self._recorder.event(bound, "Scheduled", f"Successfully assigned {named(pod)} to {node}")


def requests(pod: Json) -> dict[str, float]:
    """What a pod asks of a node, itself (`pods`) counted: the most of its containers together, and of each init one."""
    total: Counter[str] = Counter()
    for each in pod["spec"]["containers"]:
        total.update({name: quantity(value) for name, value in _asked(each).items()})  # type: ignore[arg-type]
    for each in pod["spec"].get("initContainers", ()):
        for name, value in _asked(each).items():
            total[name] = max(total[name], quantity(value))  # type: ignore[assignment]
    return {**total, "pods": 1}


def _asked(container: Json) -> Mapping[str, str]:
    resources = container.get("resources", {})
    return {**resources.get("limits", {}), **resources.get("requests", {})}


def place(pod: Json, nodes: Iterable[Json], pods: Iterable[Json], kubernetes: str) -> tuple[str | None, str]:
    """The node for a pod, or None and the message of FailedScheduling.

    Args:
        pods: all that are on nodes and not over.
    """
    nodes, placed = list(nodes), list(pods)
    reasons: Counter[str] = Counter()
    helpless: Counter[str] = Counter()
    for node in nodes:
        here = [each for each in placed if each["spec"].get("nodeName") == node["metadata"]["name"]]
        refused = _refused(pod, node, here, placed, nodes, kubernetes)
        if not refused:
            return node["metadata"]["name"], ""
        reasons.update(text for text, _ in refused)
        helpless[_NO_VICTIMS if all(could for _, could in refused) else _NOT_HELPFUL] += 1
    if not nodes:
        return None, "no nodes available to schedule pods"
    said, hopes = (
        ", ".join(sorted(f"{n} {text}" for text, n in each.items())) for each in (reasons, helpless)
    )
    start = f"0/{len(nodes)} nodes are available"
    claims = "no new claims to deallocate, " if _at_least(kubernetes, 34) else ""
    return None, f"{start}: {said}. {claims}preemption: {start}: {hopes}."


def _at_least(kubernetes: str, minor: int) -> bool:
    return int(kubernetes.split(".")[1]) >= minor


def _refused(
    pod: Json, node: Json, here: list[Json], placed: list[Json], nodes: list[Json], kubernetes: str
) -> list[tuple[str, bool]]:
    """Why a node does not take a pod, and whether preemption could help: the first reason, or all resources."""
    spec = node.get("spec", {})
    if spec.get("unschedulable"):
        return [("node(s) were unschedulable", False)]
    taint = _untolerated(pod, spec.get("taints", ()))
    if taint is not None:
        shown = f"{{{taint['key']}: {taint.get('value', '')}}}"
        return [
            (f"node(s) had untolerated taint{'(s)' if _at_least(kubernetes, 35) else ' ' + shown}", False)
        ]
    if not _is_wanted(pod, node):
        return [("node(s) didn't match Pod's node affinity/selector", False)]
    allocatable = {name: quantity(value) for name, value in node["status"]["allocatable"].items()}
    used: Counter[str] = Counter()
    for each in here:
        used.update(requests(each))  # type: ignore[arg-type]
    short = []
    for name, asked in requests(pod).items():
        if asked and asked > allocatable.get(name, 0) - used[name]:
            text = "Too many pods" if name == "pods" else f"Insufficient {name}"
            short.append((text, asked <= allocatable.get(name, 0)))
    if short:
        return short
    if _is_apart(pod, node, placed, nodes):
        return [("node(s) didn't match pod anti-affinity rules", True)]
    return []


def _untolerated(pod: Json, taints: Iterable[Json]) -> Json | None:
    for taint in taints:
        if taint["effect"] in ("NoSchedule", "NoExecute") and not any(
            _tolerates(each, taint) for each in pod["spec"].get("tolerations", ())
        ):
            return taint
    return None


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value", "")) == (taint["key"], taint.get("value", ""))


def _is_wanted(pod: Json, node: Json) -> bool:
    labels = node["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
        return False
    required = (
        pod["spec"]
        .get("affinity", {})
        .get("nodeAffinity", {})
        .get("requiredDuringSchedulingIgnoredDuringExecution", {})
        .get("nodeSelectorTerms", [{}])
    )
    return any(matches({"matchExpressions": each.get("matchExpressions", [])}, labels) for each in required)


def _is_apart(pod: Json, node: Json, placed: list[Json], nodes: list[Json]) -> bool:
    """Whether a required anti-affinity, of this pod or of one that is placed, keeps it away."""
    by_name = {each["metadata"]["name"]: each["metadata"].get("labels", {}) for each in nodes}
    here = node["metadata"].get("labels", {})
    for other in placed:
        for one, another in ((pod, other), (other, pod)):
            for term in _anti(one):
                domain = term["topologyKey"]
                there = by_name.get(other["spec"]["nodeName"], {})
                namespace = one["metadata"]["namespace"]
                if (
                    domain in here
                    and here[domain] == there.get(domain)
                    and another["metadata"]["namespace"] in term.get("namespaces", [namespace])
                    and matches(term.get("labelSelector"), another["metadata"].get("labels", {}))
                ):
                    return True
    return False


def _anti(pod: Json) -> list[Json]:
    anti = pod["spec"].get("affinity", {}).get("podAntiAffinity", {})
    return list(anti.get("requiredDuringSchedulingIgnoredDuringExecution", ()))
