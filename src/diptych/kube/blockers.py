"""The first thing that keeps a service from being ready.

It is looked for in the RayService, then in its RayCluster, pods and Serve applications: what comes first holds up all
that follows. Pure: a snapshot and the time in, one blocker or none out.
"""

import re

from diptych.kube.applications import application_blocker, proxies_missing
from diptych.kube.blocker import Blocker, cut
from diptych.kube.containers import pod_blocker
from diptych.kube.deletion import going
from diptych.kube.objects import (
    Object,
    age_s,
    condition,
    is_going,
    is_head,
    labels_of,
    name_of,
    node_of,
    status_of,
    unix_time,
)
from diptych.kube.placement import placement_blocker
from diptych.kube.snapshot import Snapshot
from diptych.kube.versions import numbers

__all__ = ["Blocker", "first_blocker", "is_ready_strictly"]

_OPERATOR_S = 30.0
"""What the operator has not looked at after so many seconds it does not look at."""
_PATIENT = (1, 1)
"""The first KubeRay that leaves a cluster alone whose applications take long to be up."""
_TIMEOUT = "ray.io/initializing-timeout"
_IGNORED = ("serviceUnhealthySecondThreshold", "deploymentUnhealthySecondThreshold")


def first_blocker(snapshot: Snapshot, now: float) -> Blocker | None:
    """The first blocker; None where the service is ready as far as Kubernetes can tell.

    Args:
        now: Unix seconds.
    """
    service = snapshot.service
    if service is None:
        return _gone(snapshot, now)
    if is_going(service):
        return going(service, snapshot, now)
    if is_ready_strictly(snapshot):
        return None
    return (
        _service(service, snapshot, now)
        or _operator(service, snapshot, now)
        or _old_clusters(snapshot, now)
        or _cluster(service, snapshot, now)
        or _pods(snapshot, now)
        or application_blocker(snapshot)
        or _endpoints(service, snapshot)
    )


def is_ready_strictly(snapshot: Snapshot) -> bool:
    """Whether the newest generation serves: `Ready` alone may be of stale endpoints (trap T6)."""
    service = snapshot.service
    if service is None or is_going(service):
        return False
    status = status_of(service)
    seen = status.get("observedGeneration") == service["metadata"].get("generation")
    ready = condition(service, "Ready").get("status") == "True"
    active = status.get("activeServiceStatus") or {}
    pending = status.get("pendingServiceStatus") or {}
    is_alone = not pending.get("rayClusterName")
    apps = active.get("applicationStatuses") or {}
    return seen and ready and is_alone and bool(apps) and application_blocker(snapshot) is None


def _gone(snapshot: Snapshot, now: float) -> Blocker | None:
    """What is left of a service that is gone; where nothing is, it was not made yet."""
    left = [each for each in (*snapshot.clusters, *snapshot.pods) if is_going(each)]
    if left:
        return going(left[0], snapshot, now)
    return Blocker(
        f"RayService {snapshot.name}", f"is not in namespace {snapshot.namespace}", "`diptych up` makes it."
    )


def _service(service: Object, snapshot: Snapshot, now: float) -> Blocker | None:
    ready = condition(service, "Ready")
    reason, message = str(ready.get("reason") or ""), cut(str(ready.get("message") or ""), 400)
    where = f"RayService {snapshot.name}"
    if reason == "ValidationFailed":
        return Blocker(
            where,
            f"is refused by KubeRay: {message}",
            "Correct the document; `diptych check` names it.",
            True,
        )
    if reason == "InitializingTimeout":
        do = "KubeRay has given up on it for good: `diptych down --step service`, then `diptych up` again."
        ignored = [field for field in _IGNORED if field in (service.get("spec") or {})]
        if ignored:
            do += f" {' and '.join(ignored)} of its spec has no effect: the annotation {_TIMEOUT} counts."
        return Blocker(where, f"did not become ready in time: {message}", do, is_fatal=True)
    for kind in ("Suspending", "Suspended"):
        if condition(service, kind).get("status") == "True" or (service.get("spec") or {}).get("suspend"):
            return Blocker(where, "is suspended", "Somebody set `spec.suspend`: set it to false.")
    if condition(service, "RollbackInProgress").get("status") == "True":
        return Blocker(
            where, "goes back to what it was before the last change", "Wait for that before another change."
        )
    return None


def _operator(service: Object, snapshot: Snapshot, now: float) -> Blocker | None:
    """The operator, where it is too old, or has not looked at the RayService as it is now."""
    for pod in snapshot.operator:
        version = str(pod["spec"]["containers"][0].get("image", "")).rpartition(":")[2]
        if numbers(version) and numbers(version) < _PATIENT:
            what = f"(the KubeRay operator) is {version}: it replaces a Ray cluster that takes long to load"
            return Blocker(f"pod {name_of(pod)}", what, "`diptych up --step operator` has a newer one.")
    seen = status_of(service).get("observedGeneration")
    if seen == service["metadata"].get("generation"):
        return None
    where = f"RayService {snapshot.name}"
    if not snapshot.operator:
        if age_s(service, now) < _OPERATOR_S or seen is not None:
            return Blocker(where, "waits for the KubeRay operator")
        return Blocker(
            where,
            "is not looked at: there is no KubeRay operator",
            "`diptych up --step operator` installs it.",
        )
    for pod in snapshot.operator:
        if found := pod_blocker(pod, snapshot, now):
            return Blocker(found.where, f"(the KubeRay operator) {found.what}", found.do, found.is_fatal)
    if age_s(service, now) < _OPERATOR_S or _changed_s(service, now) < _OPERATOR_S:
        return Blocker(where, "waits for the KubeRay operator")
    return Blocker(
        where, f"is not looked at by the KubeRay operator ({name_of(snapshot.operator[0])})",
        f"It may not watch the namespace {snapshot.namespace}, or lack rights: `diptych check` asks; its log says.",
    )  # fmt: skip


def _old_clusters(snapshot: Snapshot, now: float) -> Blocker | None:
    """RayClusters that were deleted and hold the nodes that the new one needs."""
    current = snapshot.current
    if current is not None and all(not is_going(each) for each in snapshot.clusters):
        return None
    waiting = current is None or any(not node_of(pod) for pod in snapshot.pods_of(current))
    stuck = [each for each in snapshot.clusters if is_going(each)]
    return going(stuck[0], snapshot, now) if stuck and waiting else None


def _cluster(service: Object, snapshot: Snapshot, now: float) -> Blocker | None:
    current = snapshot.current
    if current is None:
        return _no_cluster(service, snapshot)
    where = f"RayCluster {name_of(current)}"
    if len(snapshot.clusters) > 2:
        names = ", ".join(map(name_of, snapshot.clusters))
        what = f"is one of {len(snapshot.clusters)} of this service ({names}): each change made one more"
        return Blocker(where, what, "Wait until the older ones are gone before another change.")
    failure = condition(current, "ReplicaFailure")
    if failure.get("status") == "True":
        return _cannot_make_pods(where, str(failure.get("message") or failure.get("reason") or ""))
    if condition(current, "RayClusterSuspended").get("status") == "True":
        return Blocker(where, "is suspended", "Somebody set `spec.suspend`: set it to false.")
    return None


def _no_cluster(service: Object, snapshot: Snapshot) -> Blocker:
    told = snapshot.events_of(
        service, "FailedToCreateRayCluster", "InvalidRayServiceSpec", "InvalidRayServiceMetadata"
    )
    where = f"RayService {snapshot.name}"
    if told:
        return _cannot_make_pods(where, str(told[-1].get("message") or ""))
    return Blocker(where, "has no Ray cluster yet: the KubeRay operator makes one")


def _cannot_make_pods(where: str, message: str) -> Blocker:
    text = cut(message, 400)
    if "exceeded quota" in message:
        return Blocker(
            where,
            f"can't have its pods, for the namespace's quota: {text}",
            "Raise the quota, or ask for less.",
        )
    if "is forbidden: User" in message or "cannot create resource" in message:
        do = "Give the operator the rights of its chart's ClusterRole, or use that of `diptych up --step operator`."
        return Blocker(where, f"can't have its pods, for the KubeRay operator lacks rights: {text}", do)
    if "admission webhook" in message or "violates PodSecurity" in message:
        what = f"can't have its pods, for a policy of the cluster refuses them: {text}"
        do = "Have the policy let them pass in this namespace; `kubernetes.privileged: never` may please it."
        return Blocker(where, what, do)
    return Blocker(where, f"can't have its pods: {text}", "The message is Kubernetes' own.")


def _pods(snapshot: Snapshot, now: float) -> Blocker | None:
    current = snapshot.current
    pods = snapshot.pods_of(current)
    heads = [pod for pod in pods if is_head(pod)]
    if not heads:
        return Blocker(
            f"RayCluster {name_of(current or {})}" if current else "RayService", "has no head pod yet"
        )
    for pod in pods:
        found = going(pod, snapshot, now) if is_going(pod) else pod_blocker(pod, snapshot, now)
        if found:
            return found
    return _missing(snapshot, pods) or placement_blocker(snapshot, pods)


def _missing(snapshot: Snapshot, pods: tuple[Object, ...]) -> Blocker | None:
    """Worker pods that should be there and are not."""
    current = snapshot.current or {}
    for group in (current.get("spec") or {}).get("workerGroupSpecs") or []:
        name, wanted = group["groupName"], int(group.get("replicas") or group.get("minReplicas") or 0)
        there = [pod for pod in pods if labels_of(pod).get("ray.io/group") == name]
        if len(there) < wanted * int(group.get("numOfHosts") or 1):
            told = snapshot.events_of(current, "FailedToCreateWorkerPod")
            where = f"RayCluster {name_of(current)}"
            if told:
                return _cannot_make_pods(where, str(told[-1].get("message") or ""))
            return Blocker(where, f"has {len(there)} of {wanted} pods of its group {name}", phase=str(name))
    return None


def _endpoints(service: Object, snapshot: Snapshot) -> Blocker:
    """The applications run: what keeps requests from them."""
    ready = condition(service, "Ready")
    where = f"RayService {snapshot.name}"
    if ready.get("status") == "True":
        return Blocker(
            where, "has its applications up; KubeRay has not made this Ray cluster the one that serves yet"
        )
    waiting = proxies_missing(snapshot)
    if ready.get("reason") == "ZeroServeEndpoints":
        what = f"has lost all its endpoints: no pod behind {snapshot.name}-serve-svc is ready"
        which = f" ({', '.join(waiting[:3])})" if waiting else ""
        return Blocker(
            where, what + which, "Serve's proxies do not answer on them: `diptych logs ray` says why."
        )
    config = str((service.get("spec") or {}).get("serveConfigV2") or "")
    if waiting and re.search(r"^\s*root_path:\s*\S", config, re.MULTILINE):
        why = f"`http_options.root_path` hides the proxy's /-/healthz from the probe of {waiting[0]}"
        what = f"is not ready though the application runs: {why}"
        return Blocker(where, what, "Remove `root_path` from the Serve configuration.")
    if waiting:
        return Blocker(
            where, f"has its applications up; the Serve proxies on {', '.join(waiting[:3])} are starting"
        )
    return Blocker(where, "has its applications up; its endpoints are being set up")


def _changed_s(service: Object, now: float) -> float:
    """Seconds since somebody changed what it should be."""
    times = (unix_time(each.get("time")) for each in service["metadata"].get("managedFields") or []
             if each.get("subresource") != "status")  # fmt: skip
    return now - max(filter(None, times), default=0.0)
