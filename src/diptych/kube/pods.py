"""Pods that are no part of a Ray cluster: the operator's, and that of the check of access."""

import time
from collections.abc import Mapping, Sequence

from diptych.kube.blocker import Blocker
from diptych.kube.connection import Cluster, RefusedError
from diptych.kube.containers import pod_blocker
from diptych.kube.objects import Object, is_going
from diptych.kube.snapshot import Snapshot, last_seen


def pods_blocker(cluster: Cluster, name: str, namespace: str, pods: Sequence[Object]) -> Blocker | None:
    """The first thing that keeps any of some pods from running; None where all do."""
    seen = Snapshot(
        name,
        namespace,
        pods=tuple(pods),
        events=tuple(sorted(_seen(cluster, "Event", namespace), key=last_seen)),
        nodes=tuple(_seen(cluster, "Node")),
    )
    found = (pod_blocker(pod, seen, time.time()) for pod in pods)
    return next(filter(None, found), None)


def living(cluster: Cluster, namespace: str, labels: Mapping[str, str]) -> list[Object]:
    """The pods with these labels that are not on their way out."""
    return [pod for pod in cluster.list("Pod", namespace=namespace, labels=labels) if not is_going(pod)]


def _seen(cluster: Cluster, kind: str, namespace: str | None = None) -> list[Object]:
    """Objects that explain; those that may not be listed are not needed."""
    try:
        return list(cluster.list(kind, namespace=namespace))
    except RefusedError as error:
        if error.status == 403:
            return []
        raise
