"""The end of a service: the RayService first, while its operator can still see to it; then what stood around it."""

import time
from collections.abc import Collection

from diptych.kube import ours
from diptych.kube.connection import Cluster
from diptych.kube.deletion import SERVICE_FINALIZER, going
from diptych.kube.job import Job
from diptych.kube.objects import Object, is_going, name_of
from diptych.kube.operators import find
from diptych.kube.snapshot import take
from diptych.kube.waiting import Seen, wait_for
from diptych.render.names import SERVICE_LABEL
from diptych.render.serve import DRAIN_S

STAGE = "service"
_END_S = 300.0
"""For pods to end once their replicas have drained, and for Kubernetes to notice."""
_OBJECT_S = 300.0
"""For a load balancer, which is the slowest of them."""

_KINDS = (
    "HTTPRoute", "Gateway", "Service", "PodMonitor", "PrometheusRule", "PodDisruptionBudget", "Pod", "NetworkPolicy",
    "ConfigMap", "Secret", "ServiceAccount",
)  # fmt: skip
"""Kinds of our objects beside the RayService, ways in first."""


def remove_ray_service(job: Job, cluster: Cluster) -> None:
    """Delete the RayService and wait until it, its RayClusters and their pods are gone.

    Its finalizer goes with its operator's help only; where there is no operator any more, it is taken away.

    Raises:
        ClusterError: it does not go; the message names what holds it.
    """
    document = job.document
    name, namespace = document.name, document.kubernetes.namespace
    there = cluster.get("RayService", name, namespace)
    if there is not None and not ours.is_ours(there):
        job.view.say(f"{ours.title(there)} is not Diptych's and stays.")
        return
    if there is not None and not is_going(there):
        cluster.delete("RayService", name, namespace)
    if cluster.dry_run:
        return
    _let_go(job, cluster)
    deadline_s = job.timeout_s or DRAIN_S + _END_S
    wait_for(lambda: _left(cluster, job), stage=STAGE, view=job.view, deadline_s=deadline_s)


def remove_objects(job: Job, cluster: Cluster, *, kept: Collection[tuple[str, str]]) -> int:
    """Delete the service's objects that Diptych made, and wait until they are gone.

    Args:
        kept: kind and name of those that stay.

    Returns:
        How many there were.
    """
    namespace = job.document.kubernetes.namespace
    found = [obj for obj in objects(job, cluster) if (obj["kind"], name_of(obj)) not in kept]
    for obj in found:
        if not is_going(obj):
            cluster.delete(obj["kind"], name_of(obj), namespace)
    for obj in found:
        ours.wait_gone(job, cluster, STAGE, obj["kind"], name_of(obj), namespace, deadline_s=_OBJECT_S)
    return len(found)


def objects(job: Job, cluster: Cluster) -> list[Object]:
    """The service's objects that Diptych made, beside the RayService and what Kubernetes removes with others."""
    labels = {SERVICE_LABEL: job.document.name, ours.MANAGED_BY: ours.OURS}
    return [
        obj
        for kind in _KINDS
        for obj in cluster.list(kind, namespace=job.document.kubernetes.namespace, labels=labels)
        if not obj["metadata"].get("ownerReferences")
    ]


def _let_go(job: Job, cluster: Cluster) -> None:
    """Take the finalizers away where no operator is left that would."""
    document = job.document
    name, namespace = document.name, document.kubernetes.namespace
    there = cluster.get("RayService", name, namespace)
    if there is None or SERVICE_FINALIZER not in (there["metadata"].get("finalizers") or []):
        return
    if any(each.watches(namespace) for each in find(cluster)):
        return
    job.view.say(
        f"No KubeRay operator watches {namespace} any more: the finalizer {SERVICE_FINALIZER} is taken away, and "
        "Kubernetes removes the rest."
    )
    cluster.patch("RayService", name, namespace, {"metadata": {"finalizers": None}})


def _left(cluster: Cluster, job: Job) -> Seen:
    seen = take(cluster, job.document)
    left: list[Object] = [each for each in (seen.service, *seen.clusters, *seen.pods) if each is not None]
    if not left:
        return Seen(done=True)
    found = going(_first_going(left), seen, time.time())
    return Seen(done=False, blocker=found.text, fatal=found.text if found.is_fatal else None, hint=found.do)


def _first_going(left: list[Object]) -> Object:
    """What was deleted first of what is left; what was not deleted yet, where nothing was."""
    return next((each for each in left if is_going(each)), left[0])
