"""What is found out about a cluster before anything is applied to it: by reading alone, for `diptych.check`'s rules."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from diptych.check.account import Unasked
from diptych.check.cluster import (
    NAMESPACE_RIGHTS,
    OPERATOR_RIGHTS,
    SERVICE_RIGHTS,
    ClusterFacts,
    Node,
    Operator,
    Right,
)
from diptych.check.registry import find_image
from diptych.errors import ClusterError
from diptych.kube import operators
from diptych.kube.connection import Cluster, Target, connect
from diptych.kube.objects import (
    EFA,
    GPU,
    HUGE_PAGES,
    Object,
    allocatable,
    holds,
    labels_of,
    name_of,
    node_of,
    requests_of,
    status_of,
)
from diptych.kube.programs import HELM, look
from diptych.render.image import image_name
from diptych.render.names import SERVICE_LABEL
from diptych.spec import Document

_PATIENCE_S = 10.0
_OF_KUBERNETES = "node.kubernetes.io/"

T = TypeVar("T")


def gather(document: Document, target: Target) -> ClusterFacts:
    """Ask a cluster all that the rules look at. Whatever can't be asked is told, not raised.

    Raises:
        SetupError: kr8s is missing.
    """
    try:
        cluster = connect(target, patience_s=_PATIENCE_S)
    except ClusterError as error:
        return ClusterFacts(
            context=target.context or "", refused=Unasked("the cluster", error.message, error.hint)
        )
    with cluster:
        return facts_of(document, cluster)


def facts_of(document: Document, cluster: Cluster) -> ClusterFacts:
    """As `gather`, of a cluster that is connected."""
    asked = _Questions()
    namespace = document.kubernetes.namespace
    there = asked.ask("its namespaces", lambda: cluster.get("Namespace", namespace) is not None)
    found = asked.ask("its KubeRay operators", lambda: operators.find(cluster))
    pods = asked.ask("its pods", lambda: cluster.list("Pod")) or []
    nodes = asked.ask("its nodes", lambda: [_node(node, document, pods) for node in cluster.list("Node")])
    denied = asked.ask("its rights", lambda: _denied(cluster, namespace, there, bool(found)))
    return ClusterFacts(
        context=cluster.context,
        server=cluster.server,
        version=asked.ask("its version", cluster.version),
        has_namespace=there,
        denied=denied or (),
        nodes=None if nodes is None else tuple(nodes),
        operators=None if found is None else tuple(map(_operator, found)),
        image=asked.ask("the image", lambda: find_image(image_name(document))),
        programs=(look(HELM),),
        unasked=tuple(asked.failed),
    )


class _Questions:
    """Asks, and keeps what could not be asked."""

    def __init__(self) -> None:
        self.failed: list[Unasked] = []

    def ask(self, what: str, question: Callable[[], T]) -> T | None:
        """The answer; None where there was none."""
        try:
            return question()
        except ClusterError as error:
            self.failed.append(Unasked(what, error.message.rstrip("."), error.hint))
            return None


def _denied(
    cluster: Cluster, namespace: str, has_namespace: bool | None, has_operator: bool
) -> tuple[Right, ...]:
    wanted = [
        *SERVICE_RIGHTS,
        *(() if has_namespace else NAMESPACE_RIGHTS),
        *(() if has_operator else OPERATOR_RIGHTS),
    ]
    return tuple(
        right
        for right in wanted
        if not cluster.allowed(
            right.verb, right.resource, right.group, None if right.everywhere else namespace
        )
    )


def _node(node: Object, document: Document, pods: list[dict[str, Any]]) -> Node:
    others = [pod for pod in pods if node_of(pod) == name_of(node) and _is_others(pod, document)]
    spec = node.get("spec") or {}
    return Node(
        name=name_of(node),
        labels=dict(labels_of(node)),
        gpus=int(allocatable(node, GPU)),
        gpus_used=int(sum(requests_of(pod).get(GPU, 0) for pod in others)),
        efa=int(allocatable(node, EFA)),
        efa_used=int(sum(requests_of(pod).get(EFA, 0) for pod in others)),
        hugepages_2mi=int(allocatable(node, HUGE_PAGES)),
        cpu_millis=round(allocatable(node, "cpu") * 1000),
        memory_bytes=int(allocatable(node, "memory")),
        taints=tuple(_taint(taint) for taint in spec.get("taints") or [] if not _is_passing(taint)),
        ready=holds(node, "Ready") and not spec.get("unschedulable"),
    )


def _is_others(pod: Object, document: Document) -> bool:
    is_over = status_of(pod).get("phase") in ("Succeeded", "Failed")
    mine = (labels_of(pod).get(SERVICE_LABEL), pod["metadata"].get("namespace"))
    return not is_over and mine != (document.name, document.kubernetes.namespace)


def _is_passing(taint: Object) -> bool:
    """Whether Kubernetes set it on a node in trouble, which `ready` tells."""
    return str(taint.get("key", "")).startswith(_OF_KUBERNETES)


def _taint(taint: Object) -> Mapping[str, str]:
    return {name: str(taint[name]) for name in ("key", "value", "effect") if name in taint}


def _operator(found: operators.Operator) -> Operator:
    return Operator(
        namespace=found.namespace,
        version=found.version or None,
        watches=found.watched or (),
        ours=found.is_ours,
    )
