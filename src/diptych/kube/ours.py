"""What is Diptych's in a cluster: told by labels, made, waited away, and removed; what is somebody else's stays."""

from collections.abc import Iterable, Mapping
from typing import Any

from diptych.errors import ClusterError
from diptych.kube.connection import Cluster, RefusedError
from diptych.kube.job import Job
from diptych.kube.objects import Object, condition, is_going, labels_of, name_of
from diptych.kube.waiting import Seen, wait_for

MANAGED_BY = "app.kubernetes.io/managed-by"
OURS = "diptych"

NAMESPACE_S = 180.0
"""For Kubernetes to remove a namespace's objects, which are few by then."""

_RESIDENTS = (
    "Pod", "Deployment", "StatefulSet", "DaemonSet", "Job", "RayService", "RayCluster", "RayJob", "Service", "Ingress",
    "PersistentVolumeClaim", "ConfigMap", "Secret", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy",
)  # fmt: skip
"""What somebody may have put into a namespace of ours."""
_SELF_MADE = {
    ("ConfigMap", "kube-root-ca.crt"),
    ("ConfigMap", "istio-ca-root-cert"),
    ("ConfigMap", "openshift-service-ca.crt"),
    ("ServiceAccount", "default"),
}
"""What clusters put into every namespace by themselves."""


def is_ours(obj: Object) -> bool:
    """Whether Diptych made it."""
    return labels_of(obj).get(MANAGED_BY) == OURS


def apply(cluster: Cluster, obj: Mapping[str, Any]) -> dict[str, Any]:
    """Apply an object of ours.

    Raises:
        ClusterError: one of that name is there, and somebody else's.
    """
    meta = obj["metadata"]
    there = cluster.get(obj["kind"], meta["name"], meta.get("namespace"))
    if there is not None and not is_ours(there):
        raise ClusterError(
            f"{title(there)} is there already, and Diptych did not make it.",
            "Give the service another name or namespace, or remove that one.",
        )
    return cluster.apply(obj)


def title(obj: Object) -> str:
    """An object in a message.

    >>> title({"kind": "Pod", "metadata": {"name": "head", "namespace": "inference"}})
    'Pod inference/head'
    """
    namespace = obj["metadata"].get("namespace")
    return f"{obj['kind']} {namespace}/{name_of(obj)}" if namespace else f"{obj['kind']} {name_of(obj)}"


def make_namespace(job: Job, cluster: Cluster, name: str, stage: str) -> None:
    """Have a namespace; one that is there is used as it is, and one on its way out is waited for."""
    there = cluster.get("Namespace", name)
    if there is not None and is_going(there):
        wait_gone(job, cluster, stage, "Namespace", name, deadline_s=NAMESPACE_S)
        there = None
    if there is None:
        labels = {MANAGED_BY: OURS}
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})


def remove_namespace(job: Job, cluster: Cluster, name: str, stage: str, *, release: str = "") -> None:
    """Remove a namespace that Diptych made, unless something else is in it, which is told.

    Args:
        release: a Helm release that was uninstalled: a dry run, after which its objects are there, looks past them.
    """
    there = cluster.get("Namespace", name)
    if there is None or not is_ours(there):
        return
    if not is_going(there):
        if found := residents(cluster, name, release if cluster.dry_run else ""):
            job.view.say(f"The namespace {name} stays; it holds {few(found)}.")
            return
        cluster.delete("Namespace", name)
    wait_gone(job, cluster, stage, "Namespace", name, deadline_s=NAMESPACE_S)


def residents(cluster: Cluster, namespace: str, release: str = "") -> list[str]:
    """What is in a namespace beside what every namespace has, and beside a Helm release."""
    found = []
    for kind in _RESIDENTS:
        try:
            there = cluster.list(kind, namespace=namespace)
        except RefusedError as error:
            if error.status != 403:
                raise
            found.append(f"{kind}s that may not be listed")
            continue
        found += [
            f"{kind} {name_of(obj)}" for obj in there if not _is_self_made(obj) and not _is_of(obj, release)
        ]
    return found


def wait_gone(
    job: Job,
    cluster: Cluster,
    stage: str,
    kind: str,
    name: str,
    namespace: str | None = None,
    *,
    deadline_s: float,
    hint: str = "",
) -> None:
    """Wait until an object that was deleted is gone.

    Raises:
        ClusterError: it is not by the deadline; the message names the finalizers that hold it.
    """
    if cluster.dry_run:
        return

    def look() -> Seen:
        there = cluster.get(kind, name, namespace)
        if there is None:
            return Seen(done=True)
        return Seen(done=False, blocker=f"{title(there)} is going{_held_by(there)}.", hint=hint)

    wait_for(look, stage=stage, view=job.view, deadline_s=job.timeout_s or deadline_s)


def _held_by(obj: Object) -> str:
    finalizers = obj["metadata"].get("finalizers") or (obj.get("spec") or {}).get("finalizers") or []
    held = f", held by {', '.join(finalizers)}" if finalizers else ""
    for kind in ("NamespaceContentRemaining", "NamespaceFinalizersRemaining"):
        told = condition(obj, kind)
        if told.get("status") == "True":
            held += f": {told.get('message', '').rstrip('.')}"
    return held


def _is_self_made(obj: Object) -> bool:
    is_token = obj.get("type") == "kubernetes.io/service-account-token"
    return is_token or is_going(obj) or (obj["kind"], name_of(obj)) in _SELF_MADE


def _is_of(obj: Object, release: str) -> bool:
    """Whether an object is a Helm release's, or Helm's record of it."""
    labels = labels_of(obj)
    is_record = labels.get("owner") == "helm" and labels.get("name") == release
    return bool(release) and (is_record or labels.get("app.kubernetes.io/instance") == release)


def few(names: Iterable[str], most: int = 5) -> str:
    """Some names, and how many more there are, for a message.

    >>> few(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    all_names = list(names)
    shown = ", ".join(all_names[:most])
    return f"{shown} and {len(all_names) - most} more" if len(all_names) > most else shown
