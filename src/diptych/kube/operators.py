"""The KubeRay operators that a cluster has, whoever installed them: which version, and which namespaces they watch."""

from dataclasses import dataclass

from diptych.kube.connection import Cluster, RefusedError
from diptych.kube.objects import Object, labels_of, name_of, status_of
from diptych.kube.release import OWNER_LABEL
from diptych.kube.snapshot import OPERATOR_LABELS
from diptych.kube.versions import numbers
from diptych.render.helm import KUBERAY

_WATCH = "--watch-namespace"


@dataclass(frozen=True)
class Operator:
    """A KubeRay operator in the cluster.

    Args:
        namespace, name: of its Deployment.
        version: of its image; empty where the tag is none.
        watched: the namespaces that it watches; None: all.
        is_ours: Diptych installed it.
        is_ready: it runs.
    """

    namespace: str
    name: str
    version: str
    watched: tuple[str, ...] | None
    is_ours: bool
    is_ready: bool

    def watches(self, namespace: str) -> bool:
        """Whether it takes care of a namespace."""
        return self.watched is None or namespace in self.watched

    @property
    def title(self) -> str:
        """It in a message."""
        return f"KubeRay {self.version or 'of an unknown version'} ({self.namespace}/{self.name})"


def find(cluster: Cluster) -> list[Operator]:
    """All KubeRay operators in the cluster.

    Where Deployments may be listed in some namespaces only, one in KubeRay's usual namespace is still found.
    """
    try:
        found = cluster.list("Deployment", labels=OPERATOR_LABELS)
    except RefusedError as error:
        if error.status != 403:
            raise
        one = cluster.get("Deployment", KUBERAY.name, KUBERAY.namespace)
        found = [one] if one else []
    return [_operator(deployment) for deployment in found]


def _operator(deployment: Object) -> Operator:
    spec = deployment["spec"]["template"]["spec"]
    container = spec["containers"][0]
    _, _, tag = str(container.get("image", "")).rpartition(":")
    return Operator(
        namespace=deployment["metadata"]["namespace"],
        name=name_of(deployment),
        version=tag.removeprefix("v") if numbers(tag) else "",
        watched=_watched([*(container.get("command") or []), *(container.get("args") or [])]),
        is_ours=OWNER_LABEL in labels_of(deployment),
        is_ready=is_ready(deployment),
    )


def _watched(arguments: list[str]) -> tuple[str, ...] | None:
    """The namespaces after `--watch-namespace`.

    >>> _watched(["--watch-namespace", "a,b"]), _watched(["--watch-namespace=a"]), _watched([])
    (('a', 'b'), ('a',), None)
    """
    for place, argument in enumerate(arguments):
        name, is_joined, value = str(argument).partition("=")
        if name.lstrip("-") == _WATCH.lstrip("-"):
            told = value if is_joined else "".join(arguments[place + 1 : place + 2])
            return tuple(filter(None, told.split(","))) or None
    return None


def is_ready(deployment: Object) -> bool:
    """Whether all of a Deployment's pods are of its newest version and ready."""
    status = status_of(deployment)
    wanted = int((deployment.get("spec") or {}).get("replicas", 1))
    is_current = status.get("observedGeneration") == deployment["metadata"].get("generation")
    counts = (int(status.get(name) or 0) for name in ("readyReplicas", "updatedReplicas"))
    return is_current and wanted > 0 and all(count >= wanted for count in counts)
