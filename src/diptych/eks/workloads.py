"""What runs in a cluster and is not ours: listed and refused where it would be in the way. No flag overrides that."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from diptych.errors import ClusterError
from diptych.kube.connection import Cluster
from diptych.render import names
from diptych.render.helm import KUBERAY

# Of Kubernetes, of AWS's add-ons, and the operator's. Whole names: anybody may call theirs aws-something.
_SYSTEM = frozenset(
    {"kube-system", "kube-public", "kube-node-lease", KUBERAY.namespace}
    | {"amazon-cloudwatch", "amazon-guardduty", "aws-observability"}
)
_RAY = ("RayService", "RayCluster", "RayJob")
_SHOWN = 12
_OVER = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True)
class Foreign:
    """Something of somebody else's: `what` it is, and why it matters."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what} ({self.why})"


def pods_on(cluster: Cluster, nodes: Collection[str]) -> list[dict[str, Any]]:
    """The pods on these nodes that somebody would miss: no DaemonSet's, and none that are over."""
    return [pod for pod in cluster.list("Pod") if pod["spec"].get("nodeName") in nodes and _is_missed(pod)]


def is_of_diptych(thing: Mapping[str, Any]) -> bool:
    """It belongs to a service of ours, or to what stands around one."""
    labels = thing["metadata"].get("labels") or {}
    return names.SERVICE_LABEL in labels or labels.get("app.kubernetes.io/managed-by") == "diptych"


def is_of_service(thing: Mapping[str, Any], service: str) -> bool:
    """It belongs to this service of ours."""
    return bool((thing["metadata"].get("labels") or {}).get(names.SERVICE_LABEL) == service)


def on_nodes(cluster: Cluster, nodes: Collection[str]) -> list[Foreign]:
    """Foreign pods on nodes that are to go."""
    return [
        Foreign(f"pod {_named(pod)} on {pod['spec']['nodeName']}", "not ours")
        for pod in pods_on(cluster, nodes)
        if not is_of_diptych(pod) and not _is_system(pod)
    ]


def in_cluster(cluster: Cluster, service: str) -> list[Foreign]:
    """All that would be lost with the cluster: others' pods, Ray, claims, volumes and load balancers.

    Args:
        service: what is of this one is not in the way; other services that Diptych runs here are.
    """
    found = [
        Foreign(f"pod {_named(pod)}", _whose(pod))
        for pod in cluster.list("Pod")
        if _is_missed(pod) and not is_of_service(pod, service) and not _is_system(pod)
    ]
    found += [
        Foreign(f"{kind} {_named(thing)}", _whose(thing))
        for kind in _RAY
        for thing in cluster.list(kind)
        if not is_of_service(thing, service) and not _is_of_ray(thing)
    ]
    for kind, why in (("PersistentVolumeClaim", "it holds data"), ("PersistentVolume", "it holds data")):
        found += [
            Foreign(f"{kind} {_named(thing)}", why)
            for thing in cluster.list(kind)
            if not is_of_diptych(thing)
        ]
    found += [
        Foreign(f"Service {_named(thing)}", "it has a load balancer")
        for thing in cluster.list("Service")
        if thing["spec"].get("type") == "LoadBalancer" and not is_of_service(thing, service)
    ]
    return found


def refuse(found: Collection[Foreign], what: str) -> None:
    """Stop where something foreign is in the way.

    Raises:
        ClusterError: lists it.
    """
    if not found:
        return
    rows = [f"  {each}" for each in found][:_SHOWN]
    if len(found) > _SHOWN:
        rows.append(f"  and {len(found) - _SHOWN} more")
    raise ClusterError(
        "\n".join([f"{what} would take away what is not Diptych's:", *rows]),
        "Move or delete it yourself, then run the same command again: no option overrides this.",
    )


def blocking_budgets(cluster: Cluster) -> list[str]:
    """Disruption budgets that let nothing be evicted now, by name (I2)."""
    return [
        _named(budget)
        for budget in cluster.list("PodDisruptionBudget")
        if (budget.get("status") or {}).get("disruptionsAllowed", 1) == 0
        and (budget.get("status") or {}).get("expectedPods", 0) > 0
    ]


def _is_missed(pod: Mapping[str, Any]) -> bool:
    owners = {owner.get("kind") for owner in pod["metadata"].get("ownerReferences") or ()}
    mirror = "kubernetes.io/config.mirror" in (pod["metadata"].get("annotations") or {})
    over = (pod.get("status") or {}).get("phase") in _OVER
    return not (owners & {"DaemonSet", "Node"} or mirror or over)


def _is_system(thing: Mapping[str, Any]) -> bool:
    return thing["metadata"].get("namespace") in _SYSTEM


def _whose(thing: Mapping[str, Any]) -> str:
    service = (thing["metadata"].get("labels") or {}).get(names.SERVICE_LABEL)
    return f"of the service {service}" if service else "not ours"


def _is_of_ray(thing: Mapping[str, Any]) -> bool:
    """A RayService or a RayJob made it, and goes or stays with it."""
    return any(owner.get("kind") in _RAY for owner in thing["metadata"].get("ownerReferences") or ())


def _named(thing: Mapping[str, Any]) -> str:
    meta = thing["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])
