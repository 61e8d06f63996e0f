"""The step `service`: what the document stands for in its namespace, applied, watched until it is ready, and proven."""

import time
from collections.abc import Iterable
from typing import Any

from diptych.errors import ClusterError
from diptych.kube import access, ours, secrets
from diptych.kube.blockers import first_blocker, is_ready_strictly
from diptych.kube.changes import Change, compare, lacking_gpus
from diptych.kube.connection import Cluster
from diptych.kube.endpoint import endpoint
from diptych.kube.job import Job, StepStatus
from diptych.kube.objects import Object, condition, is_going, labels_of, name_of, unix_time
from diptych.kube.operators import find
from diptych.kube.proof import prove
from diptych.kube.ray_logs import EngineLines
from diptych.kube.removal import remove_objects, remove_ray_service
from diptych.kube.snapshot import Snapshot, take
from diptych.kube.waiting import Seen, wait_for
from diptych.render import names
from diptych.render.exposure import exposure_objects
from diptych.render.monitoring import alert_rules, dashboard, pod_monitors
from diptych.render.policies import disruption_budgets, network_policies
from diptych.render.rayservice import rayservice_objects, start_deadline_s

STAGE = "service"
_MARGIN_S = 120
"""KubeRay gives up at its own deadline, with a reason; we a little later."""
_SETTLE_S = 10.0
"""After a change in place Serve still tells of the state before it for a moment."""


def up(job: Job, cluster: Cluster) -> str:
    """Have the service as the document says, ready and proven.

    Returns:
        What was proven, in words.

    Raises:
        ClusterError: it does not come up, or a change needs GPUs that are not free.
    """
    document = job.document
    ours.make_namespace(job, cluster, document.kubernetes.namespace, STAGE)
    _wait_for_the_end_of_what_goes(job, cluster)
    secrets.up(job, cluster)
    *before, service = rayservice_objects(document, job.facts)
    wanted = [*before, *_around(job, cluster)]
    for obj in wanted:
        ours.apply(cluster, obj)
    change = plan(job, cluster)
    job.tell("detail", STAGE, change.text)
    if change.kind != "none" or not _is_ready(cluster, job):
        access.check(job, cluster)
    _make_room(job, cluster, service, change)
    ours.apply(cluster, service)
    if cluster.dry_run:
        return change.text
    _wait_ready(job, cluster, settle_s=_SETTLE_S if change.kind == "in-place" else 0.0)
    job.tell("detail", STAGE, "proving a KV transfer")
    with endpoint(job, cluster, admin=True) as reached:
        proven = prove(document, reached, job.view)
    _remove_what_is_left_over(job, cluster, [*wanted, service])
    return proven


def down(job: Job, cluster: Cluster) -> str:
    """Remove the service and all that is Diptych's of it; the namespace too, where Diptych made it and it is empty.

    Raises:
        ClusterError: something does not go; the message names what holds it.
    """
    document = job.document
    namespace = document.kubernetes.namespace
    if cluster.get("Namespace", namespace) is None:
        return "nothing is there"
    remove_ray_service(job, cluster)
    removed = remove_objects(job, cluster, kept=())
    text = f"{removed} objects {'would go' if cluster.dry_run else 'removed'}" if removed else "gone"
    if any(each.is_ours and each.watches(namespace) for each in find(cluster)):
        return f"{text}; the namespace {namespace} goes with the operator, which has its rights in it"
    ours.remove_namespace(job, cluster, namespace, STAGE)
    return text


def plan(job: Job, cluster: Cluster) -> Change:
    """What `up` would do to the service that is there, without doing it.

    Raises:
        ClusterError: the RayService is somebody else's, or somebody changed it.
    """
    document = job.document
    service = rayservice_objects(document, job.facts)[-1]
    there = cluster.get("RayService", document.name, document.kubernetes.namespace)
    if there is None:
        return compare(None, service)
    if not ours.is_ours(there):
        raise ClusterError(
            f"{ours.title(there)} is there already, and Diptych did not make it.",
            "Give the service another name or namespace.",
        )
    change = compare(there, cluster.apply(service, dry_run=True))
    if change.kind in ("none", "in-place") and _was_given_up(there):
        return Change("restart", ("KubeRay gave it up after its time to start", *change.what))
    return change


def look(job: Job, cluster: Cluster) -> StepStatus:
    """How the service is."""
    seen = take(cluster, job.document, checkpoint_bytes=job.facts.checkpoint_bytes)
    if seen.service is None:
        return StepStatus(STAGE, "absent", f"There is no RayService {job.document.name}.")
    if is_going(seen.service):
        return StepStatus(STAGE, "going", "It is on its way down.")
    if not ours.is_ours(seen.service):
        return StepStatus(STAGE, "foreign", f"{ours.title(seen.service)} is not Diptych's.")
    if is_ready_strictly(seen):
        return StepStatus(STAGE, "ready", "All applications run.")
    found = first_blocker(seen, time.time())
    text = found.text if found else "It is not ready yet."
    return StepStatus(STAGE, "failed" if found and found.is_fatal else "coming", text)


def deadline_s(job: Job) -> float:
    """Seconds for which a start is waited for."""
    return job.timeout_s or start_deadline_s(job.facts) + _MARGIN_S


def last_start_s(job: Job, cluster: Cluster) -> float | None:
    """Seconds from the making of the Ray cluster that serves until the service was ready; None where nothing tells.

    One that has been unready for a while since would seem to have taken longer than any start may.
    """
    seen = take(cluster, job.document)
    made = unix_time((seen.current or {"metadata": {}})["metadata"].get("creationTimestamp"))
    ready = condition(seen.service, "Ready") if seen.service else {}
    at = unix_time(ready.get("lastTransitionTime")) if ready.get("status") == "True" else None
    if at is None or made is None:
        return None
    return at - made if 0 <= at - made <= start_deadline_s(job.facts) else None


def lacking(job: Job, cluster: Cluster) -> str:
    """The GPUs that the service would not find on the nodes there are, once its pods of now are gone; empty: none."""
    document = job.document
    own = {names.SERVICE_LABEL: document.name}.items()
    others = [
        pod
        for pod in cluster.list("Pod")
        if not (
            own <= labels_of(pod).items() and pod["metadata"]["namespace"] == document.kubernetes.namespace
        )
    ]
    return lacking_gpus(rayservice_objects(document, job.facts)[-1], cluster.list("Node"), others)


def what_is_up(job: Job, cluster: Cluster) -> str:
    """The service as it is now: its pods by phase as its RayService asks for them, and how it is."""
    seen = look(job, cluster)
    there = cluster.get("RayService", job.document.name, job.document.kubernetes.namespace)
    groups = ((there or {}).get("spec") or {}).get("rayClusterConfig", {}).get("workerGroupSpecs") or []
    pods = " and ".join(f"{each.get('replicas')} {each['groupName']}" for each in groups)
    return f"{pods} ({seen.state}): {seen.text}" if pods else seen.text


def _was_given_up(service: Object) -> bool:
    """Whether KubeRay will do nothing more for it."""
    return condition(service, "Ready").get("reason") == "InitializingTimeout"


def _around(job: Job, cluster: Cluster) -> list[dict[str, Any]]:
    """What stands around the service: who may talk to it, ways in, monitoring."""
    document = job.document
    found = [*network_policies(document), *disruption_budgets(document), *exposure_objects(document)]
    if document.monitoring:
        found.append(dashboard(document))
        operated = [*pod_monitors(document), alert_rules(document)]
        if cluster.server and not cluster.knows("PodMonitor"):
            job.view.say(
                "There is no Prometheus operator in this cluster (no PodMonitor): no metrics are collected and "
                "there are no alerts. Install one and run `up` again, or set monitoring: false."
            )
        else:
            found += operated
    return found


def _wait_for_the_end_of_what_goes(job: Job, cluster: Cluster) -> None:
    """A RayService that was deleted and is not gone yet: what would be applied to it would go with it."""
    document = job.document
    there = cluster.get("RayService", document.name, document.kubernetes.namespace)
    if there is not None and is_going(there):
        remove_ray_service(job, cluster)


def _make_room(job: Job, cluster: Cluster, service: Object, change: Change) -> None:
    """Before a change whose pods find no GPUs beside those that run."""
    if change.kind == "new-cluster":
        lacking = lacking_gpus(service, cluster.list("Node"), cluster.list("Pod"))  # of all namespaces
        if lacking and not job.replace:
            raise ClusterError(
                f"{change.text} {lacking} beside what runs: it would wait for ever.",
                "Add nodes; or have it end the service first, with --replace or kubernetes.upgrade: in-place.",
            )
        if not lacking:
            return
    if change.kind in ("restart", "new-cluster"):
        remove_ray_service(job, cluster)


def _is_ready(cluster: Cluster, job: Job) -> bool:
    return is_ready_strictly(take(cluster, job.document))


def _wait_ready(job: Job, cluster: Cluster, *, settle_s: float) -> None:
    ready_since: list[float] = []

    def look() -> Seen:
        seen = take(cluster, job.document, engine_lines=lines, checkpoint_bytes=job.facts.checkpoint_bytes)
        if is_ready_strictly(seen):
            ready_since.append(time.monotonic())
            settled = time.monotonic() - ready_since[0] >= settle_s
            return Seen(done=settled, blocker="Ray Serve takes the change up.")
        ready_since.clear()
        return _blocked(seen)

    with EngineLines(cluster, job.document) as lines:
        wait_for(look, stage=STAGE, view=job.view, deadline_s=deadline_s(job))


def _blocked(seen: Snapshot) -> Seen:
    found = first_blocker(seen, time.time())
    if found is None:
        return Seen(done=False, blocker="KubeRay does not call it ready yet.")
    return Seen(done=False, blocker=found.text, fatal=found.text if found.is_fatal else None, hint=found.do)


def _remove_what_is_left_over(job: Job, cluster: Cluster, wanted: Iterable[Object]) -> None:
    """Objects of an earlier document or version, which nothing refers to any more."""
    kept = {(str(obj["kind"]), name_of(obj)) for obj in wanted}
    kept.add(("Secret", names.api_keys_secret(job.document)[0]))
    if names.has_token(job.document):
        kept.add(("Secret", names.token_secret(job.document)[0]))
    remove_objects(job, cluster, kept=kept)
