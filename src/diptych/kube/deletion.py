"""Objects that were deleted and stay: what holds them, and how to let them go."""

from diptych.kube.blocker import Blocker, cut
from diptych.kube.nodes import node_trouble
from diptych.kube.objects import Object, condition, going_s, labels_of, name_of, node_of, phase_of, status_of
from diptych.kube.snapshot import Snapshot
from diptych.kube.waiting import duration

SERVICE_FINALIZER = "ray.io/rayservice-finalizer"
REDIS_FINALIZER = "ray.io/gcs-ft-redis-cleanup-finalizer"
STUCK_S = 600.0
"""After so many seconds something that was deleted is not on its way any more: it is stuck."""
_MARGIN_S = 60.0


def going(obj: Object, snapshot: Snapshot, now: float) -> Blocker:
    """What holds an object that was deleted: its finalizer and who should remove it, its containers, or its node."""
    passed = going_s(obj, now)
    kind = str(obj.get("kind") or "object")
    where = f"{kind if kind != 'Pod' else 'pod'} {name_of(obj)}"
    if kind == "Pod":
        return _pod(obj, snapshot, passed, where)
    finalizers = list(obj["metadata"].get("finalizers") or [])
    gone = f"was deleted {duration(passed)} ago"
    if REDIS_FINALIZER in finalizers:
        return _redis(obj, snapshot, where, gone, is_fatal=passed > STUCK_S)
    if SERVICE_FINALIZER in finalizers and not _operators_at_work(snapshot):
        do = "Start the operator again (`diptych up --step operator`); `diptych down` removes the finalizer otherwise."
        return Blocker(
            where, f"{gone}, and no KubeRay operator is there to remove its finalizer {SERVICE_FINALIZER}", do
        )
    left = [f"RayCluster {name_of(each)}" for each in snapshot.clusters] if kind == "RayService" else []
    left = left or [f"pod {name_of(each)}" for each in snapshot.pods]
    if left:
        return Blocker(where, f"{gone} and waits for {', '.join(left[:4])} to end")
    held = f", held by its finalizer {', '.join(finalizers)}" if finalizers else ""
    do = _patch(obj, kind) if passed > STUCK_S and finalizers else ""
    return Blocker(where, f"{gone}{held}", do, is_fatal=passed > STUCK_S and bool(finalizers))


def _pod(pod: Object, snapshot: Snapshot, passed: float, where: str) -> Blocker:
    grace = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    phase = phase_of(pod)
    if passed <= grace + _MARGIN_S:
        return Blocker(
            where, f"ends: it finishes what it is answering, for {duration(grace)} at most", phase=phase
        )
    node = snapshot.node(node_of(pod))
    force = f"`kubectl delete pod {name_of(pod)} -n {snapshot.namespace} --force --grace-period=0`"
    if node is None or (trouble := node_trouble(node)):
        why = "is gone" if node is None else f"does not answer: {trouble}"
        what = f"was deleted {duration(passed)} ago, and its node {node_of(pod)} {why}"
        return Blocker(where, what, f"Is the node gone for good? Then {force}.", phase=phase)
    return Blocker(
        where,
        f"was deleted {duration(passed)} ago and has not ended",
        f"To end it by force: {force}.",
        phase=phase,
    )


def _redis(cluster: Object, snapshot: Snapshot, where: str, gone: str, *, is_fatal: bool) -> Blocker:
    told = snapshot.events_of(cluster, "FailedToCreateRedisCleanupJob")
    cleaners = [
        pod for pod in (*snapshot.pods, *snapshot.others)
        if labels_of(pod).get("ray.io/node-type") == "redis-cleanup"
    ]  # fmt: skip
    failed = [pod for pod in cleaners if status_of(pod).get("phase") == "Failed"]
    why = "the job that should clean up Redis has not ended"
    if told:
        why = f"the job that should clean up Redis can't be made: {cut(str(told[-1].get('message') or ''), 200)}"
    elif failed:
        why = f"the job that should clean up Redis failed (pod {name_of(failed[-1])})"
    what = (
        f"{gone} and is held by its finalizer {REDIS_FINALIZER}: {why}; its pods' GPUs stay taken until then"
    )
    return Blocker(where, what, _patch(cluster, "RayCluster"), is_fatal=is_fatal)


def _patch(obj: Object, kind: str) -> str:
    namespace = obj["metadata"].get("namespace")
    inside = f" -n {namespace}" if namespace else ""
    return (
        f"If nothing else removes it: `kubectl patch {kind.lower()} {name_of(obj)}{inside} --type=merge "
        '-p \'{"metadata":{"finalizers":null}}\'`.'
    )


def _operators_at_work(snapshot: Snapshot) -> bool:
    return any(condition(pod, "Ready").get("status") == "True" for pod in snapshot.operator)
