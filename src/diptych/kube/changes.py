"""What applying a document would do to a service that runs: nothing, a change in place, a restart, or a second cluster.

Almost any edit of a RayService's `rayClusterConfig` means other pods. KubeRay then makes a second RayCluster beside the
first, or, with `upgradeStrategy.type: None`, does nothing at all: there the RayService is deleted and made anew.
Its `serveConfigV2` and the numbers of pods are changed in place.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from diptych.kube.objects import GPU, Object, allocatable, condition, labels_of, name_of, node_of, requests_of
from diptych.kube.ours import few

ChangeKind = Literal["first", "none", "in-place", "restart", "new-cluster"]

_HEAD = "head"
_WITHOUT_RESTART = frozenset({"replicas", "minReplicas", "maxReplicas", "scaleStrategy"})
"""Fields of a worker group that KubeRay leaves out when it compares clusters."""
_WITHOUT_RESTART_IN_PODS = frozenset({"tolerations", "schedulingGates"})
_CODE = "-serving-"


@dataclass(frozen=True)
class Change:
    """What applying would do.

    Args:
        kind: "first": there is no service yet.
        what: each difference, in words.
        phases: those whose pods are replaced; "head" for Ray's own.
    """

    kind: ChangeKind
    what: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What will happen, in a sentence."""
        whom, what = " and ".join(self.phases), few(self.what)
        return {
            "first": "The service is made.",
            "none": "Nothing changes.",
            "in-place": f"Changes in place: {what}.",
            "restart": (
                f"Restarts the whole service for changed pods of {whom}: {what}. "
                "It does not answer until it is up again."
            ),
            "new-cluster": f"A second Ray cluster takes over: {what}. It needs as many GPUs again.",
        }[self.kind]


def compare(now: Object | None, wanted: Object) -> Change:
    """Compare the RayService that is there with what it would be.

    Args:
        now: as it is; None: there is none.
        wanted: as it would be once applied (what a server-side dry run answers with).
    """
    if now is None:
        return Change("first")
    old, new = now.get("spec") or {}, wanted.get("spec") or {}
    in_place = [name for name in ("serveConfigV2",) if old.get(name) != new.get(name)]
    in_place += _differences(_but(old), _but(new))
    old_cluster, new_cluster = old.get("rayClusterConfig") or {}, new.get("rayClusterConfig") or {}
    in_place += _pod_counts(old_cluster, new_cluster)
    phases, replaced = _replaced(old_cluster, new_cluster)
    if replaced:
        stays = (new.get("upgradeStrategy") or {}).get("type") == "None"
        return Change("restart" if stays else "new-cluster", (*replaced, *in_place), phases)
    return Change("in-place" if in_place else "none", tuple(in_place))


def lacking_gpus(service: Object, nodes: Iterable[Object], pods: Iterable[Object]) -> str:
    """What is missing for a second Ray cluster beside all pods that are placed; empty: nothing.

    Each phase is counted on the nodes that its pods select and that take any; two phases that select the same nodes
    share them.
    """
    nodes, pods = [node for node in nodes if _takes_pods(node)], list(pods)
    free = {name_of(node): allocatable(node, GPU) - _used(pods, name_of(node)) for node in nodes}
    labels = {name_of(node): labels_of(node) for node in nodes}
    missing = []
    for group in (service["spec"].get("rayClusterConfig") or {}).get("workerGroupSpecs") or []:
        spec = group["template"]["spec"]
        gpus, left = requests_of({"spec": spec}).get(GPU, 0.0), int(group.get("replicas") or 0)
        for node in free:
            if not _selects(spec.get("nodeSelector") or {}, labels[node]):
                continue
            while left and gpus and free[node] >= gpus:
                free[node] -= gpus
                left -= 1
        if left and gpus:
            missing.append(f"{left * gpus:.0f} for {group['groupName']}")
    return f"GPUs are missing: {', '.join(missing)}" if missing else ""


def _takes_pods(node: Object) -> bool:
    """Whether it is not cordoned, and not known to be ill."""
    cordoned = (node.get("spec") or {}).get("unschedulable")
    return not cordoned and condition(node, "Ready").get("status", "True") == "True"


def _used(pods: Sequence[Object], node: str) -> float:
    return sum(requests_of(pod).get(GPU, 0.0) for pod in pods if node_of(pod) == node and not _is_done(pod))


def _is_done(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in selector.items())


def _but(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key not in ("serveConfigV2", "rayClusterConfig")}


def _replaced(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[tuple[str, ...], list[str]]:
    """The phases whose pods can't stay, and why. A change to what they share replaces all of them."""
    shared = _differences(_shared(old), _shared(new))
    groups_before, groups = _groups(old), _groups(new)
    found = {_HEAD: _differences(old.get("headGroupSpec"), new.get("headGroupSpec"), "head")}
    for name in dict.fromkeys([*groups_before, *groups]):
        before, after = groups_before.get(name), groups.get(name)
        if before is None or after is None:
            found[name] = [f"{name} is {'new' if before is None else 'gone'}"]
        else:
            found[name] = _differences(_fixed(before), _fixed(after), name)
    phases = tuple(name for name, differences in found.items() if shared or differences)
    what = list(dict.fromkeys([*shared, *(each for differences in found.values() for each in differences)]))
    return phases, what


def _shared(cluster: Mapping[str, Any]) -> dict[str, Any]:
    apart = ("headGroupSpec", "workerGroupSpecs")
    return {key: value for key, value in cluster.items() if key not in apart}


def _groups(cluster: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(group.get("groupName")): group for group in cluster.get("workerGroupSpecs") or []}


def _pod_counts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before = _groups(old)
    return [
        f"{name}: {count} instead of {before[name].get('replicas')} pods"
        for name, group in _groups(new).items()
        if name in before and (count := group.get("replicas")) != before[name].get("replicas")
    ]


def _fixed(group: Mapping[str, Any]) -> dict[str, Any]:
    """A worker group without what KubeRay takes over as the pods run."""
    found = {key: value for key, value in group.items() if key not in _WITHOUT_RESTART}
    template = dict(found.get("template") or {})
    spec = template.get("spec") or {}
    template["spec"] = {key: value for key, value in spec.items() if key not in _WITHOUT_RESTART_IN_PODS}
    return found | {"template": template}


def _differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Where two values differ, as paths; lists of named things are compared by name."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = dict.fromkeys([*old, *new])
        return [each for key in keys for each in _differences(old.get(key), new.get(key), f"{path}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and (old or new):
        before, after = _by_name(old), _by_name(new)
        if before is not None and after is not None:
            return _differences(before, after, path)
    if old == new:
        return []
    if any(isinstance(value, str) and _CODE in value for value in (old, new)):
        return ["Diptych's code in the pods is another"]
    return [_short(path)]


def _by_name(items: Sequence[Any]) -> dict[str, Any] | None:
    if not all(isinstance(item, Mapping) and "name" in item for item in items):
        return None
    return {str(item["name"]): item for item in items}


def _short(path: str) -> str:
    """A path as a person would say it.

    >>> _short("decode.template.spec.containers.ray-worker.image"), _short(".rayVersion")
    ('decode: ray-worker.image', 'rayVersion')
    """
    for noise in (".template.spec.containers", ".template.spec", ".template"):
        path = path.replace(noise, "", 1)
    group, _, rest = path.partition(".")
    return f"{group}: {rest}" if group and rest else path.lstrip(".")
