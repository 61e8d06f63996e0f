"""What was found out about a Kubernetes cluster that exists, before anything is applied: data for the rules N2xx.

`diptych.kube.facts.gather` fills it in, by reading alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from diptych.check.account import Image, Program, Unasked


@dataclass(frozen=True)
class Right:
    """Something that `up` does in a cluster, as RBAC names it.

    Args:
        group: API group; "" is the core one.
        everywhere: it is asked for the whole cluster, not for the document's namespace.
    """

    verb: str
    resource: str
    group: str = ""
    everywhere: bool = False

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {resource}"


_OURS = (
    ("", ("secrets", "configmaps", "serviceaccounts", "services", "pods")),
    ("ray.io", ("rayservices",)),
    ("networking.k8s.io", ("networkpolicies",)),
    ("policy", ("poddisruptionbudgets",)),
)

SERVICE_RIGHTS: tuple[Right, ...] = (
    *(
        Right(verb, resource, group)
        for group, resources in _OURS
        for resource in resources
        for verb in ("create", "patch", "delete")
    ),
    Right("list", "pods"),
    Right("list", "events"),
    Right("get", "pods/log"),
    Right("create", "pods/portforward"),
    Right("list", "rayclusters", "ray.io"),
    Right("delete", "rayclusters", "ray.io"),
    Right("list", "nodes", everywhere=True),
)
"""What the step `service` needs."""

NAMESPACE_RIGHTS: tuple[Right, ...] = (Right("create", "namespaces", everywhere=True),)
"""What it needs besides where the namespace is not there yet."""

OPERATOR_RIGHTS: tuple[Right, ...] = (
    Right("create", "customresourcedefinitions", "apiextensions.k8s.io", everywhere=True),
    Right("patch", "customresourcedefinitions", "apiextensions.k8s.io", everywhere=True),
    Right("create", "clusterroles", "rbac.authorization.k8s.io", everywhere=True),
    Right("create", "clusterrolebindings", "rbac.authorization.k8s.io", everywhere=True),
    Right("create", "deployments", "apps", everywhere=True),
)
"""What the step `operator` needs where it installs one."""


@dataclass(frozen=True)
class Node:
    """A node, with what Kubernetes may give to pods on it, and what others than this document's pods have of that.

    Args:
        gpus, gpus_used: `nvidia.com/gpu`: allocatable, and of those in use by others.
        efa, efa_used: `vpc.amazonaws.com/efa`, likewise.
        hugepages_2mi: bytes.
        cpu_millis, memory_bytes: allocatable.
        taints: as Kubernetes writes them, {"key", "value", "effect"}; those of a node that is not ready left out.
        ready: it is ready and schedulable.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    gpus_used: int = 0
    efa: int = 0
    efa_used: int = 0
    hugepages_2mi: int = 0
    cpu_millis: int = 0
    memory_bytes: int = 0
    taints: tuple[Mapping[str, str], ...] = ()
    ready: bool = True


@dataclass(frozen=True)
class Operator:
    """A KubeRay operator.

    Args:
        version: of its image; None where the tag doesn't say.
        watches: namespaces that it looks at; empty: all.
        ours: Diptych installed it.
    """

    namespace: str
    version: str | None
    watches: tuple[str, ...] = ()
    ours: bool = False


@dataclass(frozen=True)
class ClusterFacts:
    """A cluster, as its API described it.

    Args:
        context: of the kubeconfig; "" where the pod's own account is used.
        server: the API's address.
        refused: why nobody answered; everything below is then empty.
        version: "1.35"; None where it could not be asked.
        has_namespace: the document's namespace is there; None where it could not be asked.
        denied: rights that are needed and not given.
        nodes: None where they could not be asked.
        operators: KubeRay's, whoever installed them; None where they could not be asked.
        unasked: what could not be found out.
    """

    context: str = ""
    server: str = ""
    refused: Unasked | None = None
    version: str | None = None
    has_namespace: bool | None = None
    denied: tuple[Right, ...] = ()
    nodes: tuple[Node, ...] | None = None
    operators: tuple[Operator, ...] | None = None
    image: Image | None = None
    programs: tuple[Program, ...] = ()
    unasked: tuple[Unasked, ...] = ()
