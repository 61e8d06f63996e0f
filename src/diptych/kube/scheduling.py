"""Why a pod has no node: the scheduler's message, held against the nodes, so that it names the one thing that lacks.

The scheduler counts nodes by the first filter that refused each. Most of a cluster's nodes are meant for others, so of
its reasons only those of the nodes count that the pod selects.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from diptych.kube.blocker import Blocker, cut
from diptych.kube.objects import (
    EFA,
    GPU,
    HUGE_PAGES,
    Object,
    allocatable,
    amount,
    condition,
    labels_of,
    name_of,
    node_of,
    phase_of,
    requests_of,
    status_of,
)
from diptych.kube.snapshot import Snapshot

_VERDICT = re.compile(
    r"nodes are available: (?P<reasons>.*?)(?:\.\s*(?:preemption:|no new claims\b.*)|\.?$)", re.DOTALL
)
_REASON = re.compile(r"(?P<nodes>\d+) (?P<text>.+?)(?=, \d+ |$)", re.DOTALL)
_INSUFFICIENT = "Insufficient "
_CLAIM = re.compile(
    r'persistentvolumeclaim "(?P<name>[^"]+)" not found|unbound immediate PersistentVolumeClaims'
)

_LACKING = {
    GPU: (
        "the NVIDIA device plugin is not at work there",
        "Install it (github.com/NVIDIA/k8s-device-plugin), and look whether its pods run on the GPU nodes.",
    ),
    EFA: (
        "the EFA device plugin is not at work there, or the node was made without EFA interfaces",
        "Install aws-efa-k8s-device-plugin; the nodes must have been made with EFA interfaces.",
    ),
    HUGE_PAGES: (
        "no memory is set aside there as huge pages, which no autoscaler foresees",
        "Take `hugepages_2mi` out of the document, or have the nodes set such pages aside when they start.",
    ),
}
_WORDS = {GPU: "GPU", EFA: "EFA interface", "cpu": "CPU core"}
_ORDER = (HUGE_PAGES, EFA, GPU)
"""What is looked at first: what other nodes could not help with."""


_OTHERS = (
    ("Too many pods", "its nodes have as many pods as they may", "Move other pods off them."),
    (
        "volume node affinity",
        "its volume is in another zone than its nodes",
        "Put nodes and volume into one zone.",
    ),
    (
        "affinity/selector",
        "no node that is there fits its affinity",
        "Compare it with the nodes' labels: `kubectl get nodes --show-labels`.",
    ),
)


@dataclass(frozen=True)
class Reason:
    """Why the scheduler refused some nodes, and how many."""

    nodes: int
    text: str

    @property
    def resource(self) -> str:
        """The resource of which they have too little; empty where that is not the reason."""
        return self.text.removeprefix(_INSUFFICIENT) if self.text.startswith(_INSUFFICIENT) else ""


def reasons(message: str) -> tuple[Reason, ...]:
    """The reasons in a FailedScheduling message.

    >>> reasons("0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {gpu: }. preemption: …")
    (Reason(nodes=1, text='Insufficient cpu'), Reason(nodes=2, text='node(s) had untolerated taint {gpu: }'))
    """
    found = _VERDICT.search(message)
    if found is None:
        return ()
    return tuple(Reason(int(each["nodes"]), each["text"]) for each in _REASON.finditer(found["reasons"]))


def unscheduled(pod: Object, snapshot: Snapshot) -> Blocker | None:
    """What keeps a pod without a node from one; None where it has one."""
    told = condition(pod, "PodScheduled")
    if node_of(pod) or told.get("status") == "True":
        return None
    where, phase = f"pod {name_of(pod)}", phase_of(pod)
    if told.get("reason") == "SchedulingGated":
        return Blocker(
            where, "is held back by a scheduling gate", "Another controller must lift it.", phase=phase
        )
    if not told:
        return Blocker(where, "waits for the scheduler", phase=phase)
    message = str(told.get("message") or "")
    coming = _node_is_coming(pod, snapshot)
    if coming:
        return Blocker(where, f"waits for a node that is being added ({coming})", phase=phase)
    what, do = _verdict(pod, snapshot, message)
    return Blocker(where, what, do, phase=phase)


def _verdict(pod: Object, snapshot: Snapshot, message: str) -> tuple[str, str]:
    claim = _CLAIM.search(message)
    if claim:
        named = f"the volume claim {claim['name']}" if claim["name"] else "a volume claim"
        return (
            f"can't be placed: {named} has no volume",
            "Look at `kubectl get pvc`; name a storage class that works.",
        )
    selected = [node for node in snapshot.nodes if _selects(pod, node)]
    if snapshot.nodes and not selected:
        return _no_such_node(pod, snapshot.nodes)
    told = reasons(message)
    lacking = {reason.resource for reason in told if reason.resource}
    if lacking:
        return _lacking(pod, snapshot, selected, min(lacking, key=_rank))
    texts = " ".join(reason.text for reason in told)
    if "untolerated taint" in texts and (not selected or _untolerated(pod, selected)):
        return _tainted(pod, selected, texts)
    if "anti-affinity" in texts:
        return _no_node_left(pod, snapshot, selected)
    cordoned = _names(node for node in selected if (node.get("spec") or {}).get("unschedulable"))
    if cordoned or "were unschedulable" in texts:
        return f"can't be placed: no new pods are let onto {cordoned or 'its nodes'} (cordoned)", (
            "If that is not on purpose: `kubectl uncordon NODE`."
        )
    for words, what, do in _OTHERS:
        if words in texts:
            return f"can't be placed: {what}", do
    return f"can't be placed: {cut(message, 300) or 'the scheduler gives no reason'}", ""


def _rank(resource: str) -> int:
    return _ORDER.index(resource) if resource in _ORDER else len(_ORDER)


def _lacking(pod: Object, snapshot: Snapshot, selected: list[Object], resource: str) -> tuple[str, str]:
    asked = requests_of(pod).get(resource, 0.0)
    needs = f"needs {_counted(resource, asked)}"
    most = max((allocatable(node, resource) for node in selected), default=0.0)
    if selected and most == 0 and asked:
        why, do = _LACKING.get(resource, (f"it offers no {resource}", "Install what offers it."))
        if resource == EFA and (taint := _gpu_taint(selected)):
            why = f"the EFA device plugin does not tolerate the taint {taint}"
            do = "Remove the taint, or install the plugin with a toleration for it."
        return f"{needs}, and there is none on {_names(selected)}: {why}", do
    if selected and most < asked:
        return (
            f"{needs}, and the most on {_names(selected)} is {amount(resource, most)}",
            "Ask for less in the document, or use larger nodes.",
        )
    return _in_use(pod, snapshot, selected, resource)


def _in_use(pod: Object, snapshot: Snapshot, selected: list[Object], resource: str) -> tuple[str, str]:
    names = {name_of(node) for node in selected}
    users = [
        each
        for each in (*snapshot.pods, *snapshot.others)
        if node_of(each) in names and requests_of(each).get(resource) and not _is_over(each)
    ]
    needs = f"needs {_counted(resource, requests_of(pod).get(resource, 0.0))}"
    mine = _ray_cluster(pod)
    own = [each for each in users if each in snapshot.pods and _ray_cluster(each) not in ("", mine)]
    if own:
        return (
            f"{needs}, which the pods of RayCluster {_ray_cluster(own[0])} have: this change started a second Ray "
            f"cluster ({mine}) beside the one that serves",
            "Free as much again for the time of the change, or set `kubernetes.upgrade: in-place` and run "
            "`diptych up --replace`.",
        )
    if users:
        held = ", ".join(sorted({_full_name(each) for each in users})[:4])
        return f"{needs}, all in use on {_names(selected)}, by {held}", "End those, or add nodes."
    return f"{needs}, and no node has that much left", "Add nodes, or ask for less in the document."


def _counted(resource: str, asked: float) -> str:
    """How much of a resource, in words.

    >>> _counted("nvidia.com/gpu", 2), _counted("memory", 2**31), _counted("cpu", 1)
    ('2 GPUs (nvidia.com/gpu)', '2 GiB of memory', '1 CPU core')
    """
    word = _WORDS.get(resource)
    if word is None:
        return f"{amount(resource, asked)} of {resource}"
    many = "" if asked == 1 else "s"
    return f"{amount(resource, asked)} {word}{many}" + (f" ({resource})" if resource != "cpu" else "")


def _no_such_node(pod: Object, nodes: Iterable[Object]) -> tuple[str, str]:
    wanted = dict((pod.get("spec") or {}).get("nodeSelector") or {})
    present = [set(labels_of(node).items()) for node in nodes]
    missing = {
        key: value for key, value in wanted.items() if not any((key, value) in each for each in present)
    }
    labels = ", ".join(f"{key}={value}" for key, value in (missing or wanted).items()) or "its affinity"
    which = "no node has the label" if missing else "no one node has all the labels"
    return (
        f"can't be placed: {which} {labels}",
        "Are the nodes there? Label them so, or correct `nodes.selector` in the document.",
    )


def _tainted(pod: Object, selected: list[Object], texts: str) -> tuple[str, str]:
    named = re.search(r"untolerated taint \{([^}]*)\}", texts)
    taints = _untolerated(pod, selected)
    taint = ", ".join(taints) or (named[1].rstrip(": ") if named else "")
    if any(each.startswith("node.kubernetes.io/") for each in taints):
        return (
            f"can't be placed: {_names(selected)} has the taint {taint}, which Kubernetes sets on nodes in trouble",
            ("Look at these nodes: `kubectl describe node NODE`."),
        )
    return f"can't be placed: it does not tolerate the taint {taint} of {_names(selected) or 'the nodes'}", (
        "Remove the taint, or name it in `nodes.tolerations` of the document."
    )


def _no_node_left(pod: Object, snapshot: Snapshot, selected: list[Object]) -> tuple[str, str]:
    phase = phase_of(pod)
    taken = {node_of(each) for each in snapshot.pods_in(phase) if node_of(each)}
    return (
        f"can't be placed: each {phase or 'such'} pod has a node of its own, and all {len(selected)} of that phase "
        f"({_names(selected)}) are taken" if taken else "can't be placed: its rules keep it from every node",
        f"Add {phase} nodes, or lower `{phase}.num_replicas`." if phase else "",
    )  # fmt: skip


def _node_is_coming(pod: Object, snapshot: Snapshot) -> str:
    """What an autoscaler says of a node for the pod, unless it has since given up."""
    told = snapshot.events_of(pod, "TriggeredScaleUp", "Nominated", "NotTriggerScaleUp", "FailedScaling")
    if not told or told[-1].get("reason") not in ("TriggeredScaleUp", "Nominated"):
        return ""
    return cut(str(told[-1].get("message") or ""), 200)


def _selects(pod: Object, node: Object) -> bool:
    wanted = (pod.get("spec") or {}).get("nodeSelector") or {}
    return all(labels_of(node).get(key) == value for key, value in wanted.items())


def _taints(node: Object) -> list[Object]:
    return [
        taint
        for taint in (node.get("spec") or {}).get("taints") or []
        if taint.get("effect") != "PreferNoSchedule"
    ]


def _taint(taint: Object) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _gpu_taint(nodes: Iterable[Object]) -> str:
    taints = (taint for node in nodes for taint in _taints(node) if taint["key"] == GPU)
    return next(map(_taint, taints), "")


def _untolerated(pod: Object, nodes: Iterable[Object]) -> list[str]:
    return sorted(
        {_taint(taint) for node in nodes for taint in _taints(node) if not _is_tolerated(pod, taint)}
    )


def _is_tolerated(pod: Object, taint: Object) -> bool:
    return any(
        each.get("key") in (None, "", taint["key"])
        and (each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""))
        and each.get("effect") in (None, "", taint["effect"])
        for each in (pod.get("spec") or {}).get("tolerations") or []
    )


def _is_over(pod: Object) -> bool:
    return status_of(pod).get("phase") in ("Succeeded", "Failed")


def _ray_cluster(pod: Object) -> str:
    return labels_of(pod).get("ray.io/cluster", "")


def _full_name(pod: Object) -> str:
    return f"{pod['metadata'].get('namespace', '')}/{name_of(pod)}".lstrip("/")


def _names(nodes: Iterable[Object]) -> str:
    names = sorted(map(name_of, nodes))
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} more"
