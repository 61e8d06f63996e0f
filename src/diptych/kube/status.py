"""What is up in a cluster, asked of Kubernetes and the endpoint: per step and per phase, and the first blocker."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diptych.endpoint.metrics import fetch_status
from diptych.errors import DiptychError
from diptych.kube import nodes
from diptych.kube.blocker import Blocker
from diptych.kube.blockers import first_blocker, is_ready_strictly
from diptych.kube.connection import Cluster
from diptych.kube.containers import pod_blocker
from diptych.kube.endpoint import endpoint
from diptych.kube.job import Job, StepStatus
from diptych.kube.nodes import NodeStatus
from diptych.kube.objects import (
    EFA,
    GPU,
    Object,
    container_states,
    is_going,
    is_head,
    is_ready,
    is_running,
    name_of,
    node_of,
    requests_of,
    status_of,
    unix_time,
)
from diptych.kube.remembered import recall
from diptych.kube.snapshot import Snapshot, is_up, take
from diptych.render import names
from diptych.render.image import ray_version
from diptych.render.layout import worker_groups
from diptych.spec import Document

_PATIENCE_S = 3.0


@dataclass(frozen=True)
class PodStatus:
    """One pod: where it is, in what state, and what of its node it has."""

    name: str
    node: str
    zone: str
    state: str
    ready: bool
    restarts: int
    gpus: int
    efa: int
    problem: str | None

    def to_json(self) -> dict[str, Any]:
        """The stable shape that `docs/json.md` describes."""
        return {**vars(self), "node": self.node or None, "zone": self.zone or None}


@dataclass(frozen=True)
class PhaseStatus:
    """One phase. `replicas` are those that are wanted, `ready` those that the endpoint tells of as ready."""

    phase: str
    replicas: int
    ready: int
    requests: int | None
    problems: tuple[str, ...]
    pods: tuple[PodStatus, ...]
    replica_details: tuple[dict[str, Any], ...] = ()

    def to_json(self, model: str) -> dict[str, Any]:
        """The stable shape that `docs/json.md` describes."""
        return {
            "replicas": self.replicas,
            "ready": self.ready,
            "model": model,
            "requests": self.requests,
            "problems": list(self.problems),
            "pods": [pod.to_json() for pod in self.pods],
            "replica_details": list(self.replica_details),
        }


@dataclass(frozen=True)
class ClusterStatus:
    """One service in a cluster.

    Args:
        steps: each step, in the order of `up`.
        blocker: the first thing that keeps it from being ready; None where it is.
        fallback: what carries the KV cache instead of what was asked for, where that is allowed.
        cost: what it costs, as the place tells it; None where the place has no prices.
        started_at: when the service was made, in Unix seconds; None where it is not there.
    """

    document: Document
    context: str
    ready: bool
    blocker: Blocker | None
    fallback: str | None
    started_at: float | None
    head: PodStatus | None
    phases: Mapping[str, PhaseStatus]
    nodes: tuple[NodeStatus, ...]
    steps: Sequence[StepStatus] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    cost: Mapping[str, Any] | None = None

    @property
    def endpoint(self) -> str:
        """The endpoint's address within the cluster; from outside, `diptych forward` opens it."""
        service, namespace = names.serve_service(self.document), self.document.kubernetes.namespace
        return f"http://{service}.{namespace}:{names.serve_port(self.document)}"

    def to_json(self) -> dict[str, Any]:
        """The stable shape that `docs/json.md` describes."""
        document = self.document
        return {
            "name": document.name,
            "place": document.on,
            "context": self.context,
            "namespace": document.kubernetes.namespace,
            "topology": document.topology,
            "endpoint": self.endpoint,
            "model": document.model.name,
            "model_source": document.model.source,
            "ready": self.ready,
            "blocker": self.blocker.text if self.blocker else None,
            "do": (self.blocker.do or None) if self.blocker else None,
            "fallback": self.fallback,
            "started_at": self.started_at,
            "steps": [
                {"step": each.step, "state": each.state, "text": each.text, **each.details}
                for each in self.steps
            ],
            "head": self.head.to_json() if self.head else None,
            "phases": {name: phase.to_json(document.model.name) for name, phase in self.phases.items()},
            "nodes": [node.to_json() for node in self.nodes],
            "versions": dict(self.versions),
            "cost": dict(self.cost) if self.cost is not None else None,
        }


def look(
    job: Job,
    cluster: Cluster,
    *,
    steps: Sequence[StepStatus] = (),
    cost: Mapping[str, Any] | None = None,
    now: float | None = None,
) -> ClusterStatus:
    """Look at a service, once.

    Args:
        steps: as each step tells of itself.
        cost: what the place knows of it.
        now: Unix seconds; the clock's without.

    Raises:
        ClusterError: the cluster can't be asked.
    """
    now = time.time() if now is None else now
    seen = take(cluster, job.document, checkpoint_bytes=job.facts.checkpoint_bytes)
    told = _told(job, cluster, seen)
    readiness = told.get("readiness") or {}
    blocker = first_blocker(seen, now) or _unproven(seen, told, readiness)
    own = [
        node
        for node in nodes.look(seen.nodes, (*seen.pods, *seen.others))
        if _is_mine(job.document, seen, node)
    ]
    return ClusterStatus(
        document=job.document,
        context=cluster.context,
        ready=blocker is None,
        blocker=blocker,
        fallback=(readiness.get("transport") or {}).get("fallback") or _put_up_with(job.document),
        started_at=unix_time(seen.service["metadata"].get("creationTimestamp")) if seen.service else None,
        head=next((_pod(pod, seen, now) for pod in seen.pods if is_head(pod)), None),
        phases=_phases(job.document, seen, told.get("phases") or {}, now),
        nodes=tuple(own),
        steps=tuple(steps),
        versions=_versions(job.document, cluster, seen),
        cost=cost,
    )


def _put_up_with(document: Document) -> str | None:
    """What `verify --allow-fallback` found in place of what was asked for; None: nothing, or nobody asked."""
    known = recall(document.name, document.on)
    return known.fallback if known else None


def _told(job: Job, cluster: Cluster, seen: Snapshot) -> dict[str, Any]:
    """What the endpoint tells of itself; empty where nothing serves, or it can't be reached."""
    apps = (seen.serving.get("applicationStatuses") or {}).values()
    if not any(is_up(app) for app in apps):
        return {}
    try:
        with endpoint(job, cluster, admin=True, patience_s=_PATIENCE_S) as reached:
            return fetch_status(reached) or {}
    except DiptychError:
        return {}


def _unproven(seen: Snapshot, told: Mapping[str, Any], readiness: Mapping[str, Any]) -> Blocker | None:
    """What the endpoint says is in the way though Kubernetes finds nothing."""
    if not is_ready_strictly(seen):
        return None
    where = f"the endpoint of {seen.name}"
    if not told:
        return Blocker(where, "does not answer", "`diptych logs ray` says why.")
    if readiness.get("state") == "contradicted":
        return Blocker(where, f"is not ready: {readiness.get('why')}", "`diptych verify` shows the evidence.")
    if readiness.get("state") in ("starting", "down"):
        return Blocker(where, f"is not ready: {readiness.get('why')}", "`diptych logs decode` says more.")
    return None


def _phases(
    document: Document, seen: Snapshot, told: Mapping[str, Any], now: float
) -> dict[str, PhaseStatus]:
    found = {}
    for group in worker_groups(document):
        replicas = list(told.get(group.name) or [])
        pods = tuple(_pod(pod, seen, now) for pod in seen.pods_in(group.name))
        problems = [pod.problem for pod in pods if pod.problem]
        problems += [one["problem"] for one in replicas if one.get("problem")]
        done = [one["counters"]["requests_finished"] for one in replicas if one.get("counters")]
        found[group.name] = PhaseStatus(
            phase=group.name,
            replicas=max(document.phases[group.phase].least_replicas, len(replicas)),
            ready=sum(bool(one.get("ready")) for one in replicas),
            requests=round(sum(done)) if done else None,
            problems=tuple(dict.fromkeys(problems)),
            pods=pods,
            replica_details=tuple(replicas),
        )
    return found


def _pod(pod: Object, seen: Snapshot, now: float) -> PodStatus:
    asked = requests_of(pod)
    node = seen.node(node_of(pod))
    found = None if is_going(pod) else pod_blocker(pod, seen, now)
    return PodStatus(
        name=name_of(pod),
        node=node_of(pod),
        zone=nodes.zone_of(node) if node else "",
        state=_state(pod),
        ready=is_ready(pod),
        restarts=sum(int(each.get("restartCount") or 0) for each in container_states(pod)),
        gpus=int(asked.get(GPU, 0)),
        efa=int(asked.get(EFA, 0)),
        problem=found.text if found else None,
    )


def _state(pod: Object) -> str:
    """What a pod does, in a word."""
    if is_going(pod):
        return "ending"
    if is_running(pod):
        return "running"
    if not node_of(pod):
        return "unplaced"
    return str(status_of(pod).get("phase") or "Pending").lower()


def _is_mine(document: Document, seen: Snapshot, node: NodeStatus) -> bool:
    """Whether a node has pods of the service, or is meant for them."""
    used = {node_of(pod) for pod in seen.pods}
    return node.name in used or node.phase in {group.name for group in worker_groups(document)}


def _versions(document: Document, cluster: Cluster, seen: Snapshot) -> dict[str, str]:
    """Of Kubernetes, KubeRay and Ray, as far as objects tell."""
    images: Iterable[str] = (
        str(container.get("image", "")) for pod in seen.operator for container in pod["spec"]["containers"]
    )
    kuberay = next((image.rpartition(":")[2].removeprefix("v") for image in images if ":" in image), "")
    found = {"kubernetes": cluster.version(), "kuberay": kuberay, "ray": ray_version(document) or ""}
    return {name: version for name, version in found.items() if version}
