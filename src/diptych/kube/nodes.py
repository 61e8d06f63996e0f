"""What the cluster's nodes have for pods, GPUs and EFA interfaces; what is in use; and which plugin is missing.

A device is there for pods only once its device plugin has told the kubelet. A node that was made with GPUs or EFA and
offers none, or fewer, lacks that plugin, or has it in trouble.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diptych.catalog.instances import instance_type
from diptych.catalog.nodes import INSTANCE_TYPE_LABELS, ZONE_LABEL
from diptych.kube.blocker import Blocker, cut
from diptych.kube.objects import (
    EFA,
    GPU,
    Object,
    allocatable,
    condition,
    container_states,
    holds,
    labels_of,
    name_of,
    node_of,
    phase_of,
    requests_of,
    status_of,
)

_PLUGINS = {
    GPU: ("NVIDIA device plugin", ("nvidia-device-plugin", "nvidia-gpu-operator", "gpu-operator")),
    EFA: ("EFA device plugin", ("aws-efa-k8s-device-plugin", "efa-device-plugin")),
}
_EFA_FALSE_COUNT = (0, 5, 10)
"""The EFA plugin counts other RDMA devices along before this version."""


@dataclass(frozen=True)
class NodeStatus:
    """One node.

    Args:
        phase: whose it is: "prefill", "decode", "aggregated", "system", or empty.
        trouble: why it takes part no more; empty where it does.
        gpus, efa: how many pods may have.
        gpus_used, efa_used: how many pods have.
        gpus_made, efa_made: how many its instance type has; None where it names none that is known.
    """

    name: str
    phase: str
    zone: str
    instance_type: str
    trouble: str
    gpus: int
    gpus_used: int
    gpus_made: int | None
    efa: int
    efa_used: int
    efa_made: int | None
    system: str = ""

    def to_json(self) -> dict[str, Any]:
        """The stable shape that `docs/json.md` describes."""
        return {
            "name": self.name,
            "phase": self.phase or None,
            "zone": self.zone or None,
            "instance_type": self.instance_type or None,
            "ready": not self.trouble,
            "problem": self.trouble or None,
            "gpus": self.gpus,
            "gpus_used": self.gpus_used,
            "efa": self.efa,
            "efa_used": self.efa_used,
        }


def look(nodes: Iterable[Object], pods: Iterable[Object]) -> tuple[NodeStatus, ...]:
    """The nodes with what is in use on them.

    Args:
        pods: all pods that are on nodes, of all namespaces.
    """
    used: dict[tuple[str, str], float] = {}
    for pod in pods:
        if status_of(pod).get("phase") not in ("Succeeded", "Failed"):
            for resource, wanted in requests_of(pod).items():
                used[node_of(pod), resource] = used.get((node_of(pod), resource), 0.0) + wanted
    return tuple(_status(node, used) for node in sorted(nodes, key=name_of))


def device_blockers(nodes: Iterable[Object], pods: Iterable[Object], *, efa: bool) -> tuple[Blocker, ...]:
    """Nodes of phases that offer fewer devices than they were made with, and why.

    Args:
        pods: all of the cluster, device plugins' among them.
        efa: whether EFA is wanted.
    """
    all_pods, given = tuple(pods), tuple(nodes)
    found = (
        _short(node, resource, all_pods)
        for node in given
        if phase_of(node) not in ("", "system")
        for resource in ((GPU, EFA) if efa else (GPU,))
    )
    return tuple(blocker for blocker in found if blocker)


def node_trouble(node: Object) -> str:
    """Why a node takes part no more; empty where it does."""
    if holds(node, "Ready"):
        return ""
    told = condition(node, "Ready")
    return cut(str(told.get("message") or told.get("reason") or "it is not ready"), 200)


def type_of(node: Object) -> str:
    """The instance type that a node's labels name; empty where they name none."""
    return next((labels_of(node)[label] for label in INSTANCE_TYPE_LABELS if label in labels_of(node)), "")


def zone_of(node: Object) -> str:
    """The availability zone that a node's labels name; empty where they name none."""
    return labels_of(node).get(ZONE_LABEL, "")


def made_with(node: Object, resource: str) -> int | None:
    """GPUs or EFA interfaces that a node's instance type has; None where that is not known."""
    instance = instance_type(type_of(node))
    if instance is None:
        return None
    return instance.gpus if resource == GPU else instance.efa_interfaces


def _status(node: Object, used: Mapping[tuple[str, str], float]) -> NodeStatus:
    name = name_of(node)
    info = status_of(node).get("nodeInfo") or {}
    return NodeStatus(
        name=name,
        phase=phase_of(node),
        zone=zone_of(node),
        instance_type=type_of(node),
        trouble=node_trouble(node),
        gpus=int(allocatable(node, GPU)),
        gpus_used=int(used.get((name, GPU), 0)),
        gpus_made=made_with(node, GPU),
        efa=int(allocatable(node, EFA)),
        efa_used=int(used.get((name, EFA), 0)),
        efa_made=made_with(node, EFA),
        system=str(info.get("osImage") or ""),
    )


def _short(node: Object, resource: str, pods: tuple[Object, ...]) -> Blocker | None:
    made, there = made_with(node, resource), int(allocatable(node, resource))
    where = f"node {name_of(node)}"
    kind, names = _PLUGINS[resource]
    if made is not None and there > made and resource == EFA:
        more = f"offers {there} of {resource}, and a {type_of(node)} has {made}"
        what = f"{more}: its EFA device plugin counts other devices along"
        version = ".".join(map(str, _EFA_FALSE_COUNT))
        return Blocker(
            where, what, f"Use aws-efa-k8s-device-plugin v{version} or newer.", phase=phase_of(node)
        )
    wanted = 1 if made is None else made
    if there >= wanted or (made is None and resource == EFA):
        return None
    what = f"offers {there} of {resource}" + (f", and a {type_of(node)} has {made}" if made else "")
    plugin = [pod for pod in pods if any(name in name_of(pod) for name in names)]
    here = [pod for pod in plugin if node_of(pod) == name_of(node)]
    why, do = _why(node, resource, plugin, here)
    return Blocker(where, f"{what}: the {kind} {why}", do, phase=phase_of(node))


def _why(node: Object, resource: str, plugin: list[Object], here: list[Object]) -> tuple[str, str]:
    if not plugin:
        chart = (
            "eks-charts' aws-efa-k8s-device-plugin"
            if resource == EFA
            else "github.com/NVIDIA/k8s-device-plugin"
        )
        return "is not in the cluster", f"Install it: {chart}."
    taints = [taint for taint in (node.get("spec") or {}).get("taints") or [] if taint.get("key") == GPU]
    if not here and resource == EFA and taints:
        return (
            f"has no pod on it: it does not tolerate the node's taint {GPU}",
            "Remove the taint, or install the plugin with a toleration for it.",
        )
    if not here:
        return (
            "has no pod on it: its list of instance types may lack this one",
            "Install its newest version, whose list has it.",
        )
    for state in container_states(here[0]):
        waiting = (state.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") == "CrashLoopBackOff":
            what = f"fails on it again and again (pod {name_of(here[0])})"
            return (
                what,
                f"`kubectl logs -n {here[0]['metadata'].get('namespace')} {name_of(here[0])}` says why.",
            )
    if not holds(here[0], "Ready"):
        return f"is not ready on it yet (pod {name_of(here[0])})", ""
    return (
        f"runs on it (pod {name_of(here[0])}) and finds no more",
        "Look whether the driver is loaded, and whether the node was made with the devices.",
    )
