"""All objects that tell how a service is doing, read at one time: what `blockers` and `status` look at."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from diptych.kube.connection import Cluster, RefusedError
from diptych.kube.objects import (
    Object,
    container_states,
    is_head,
    is_running,
    labels_of,
    name_of,
    phase_of,
    status_of,
    unix_time,
)
from diptych.spec import Document

OPERATOR_LABELS = {"app.kubernetes.io/name": "kuberay-operator"}
_ORIGIN_NAME = "ray.io/originated-from-cr-name"
_CLUSTER = "ray.io/cluster"
_LINES = 60

EngineLines = Callable[[Object], Sequence[str]]
"""The last lines of the engine in a pod."""


@dataclass(frozen=True)
class Snapshot:
    """One look at a service. What may not be read is empty.

    Args:
        name, namespace: of the RayService.
        service: the RayService; None where there is none.
        clusters: its RayClusters, oldest first.
        pods: theirs, heads first.
        others: pods of others that are on nodes, in all namespaces.
        events: of the namespace, oldest first.
        nodes: of the cluster.
        operator: pods of KubeRay operators, in all namespaces.
        lines: the last lines of containers that fail, or that run before others, by `POD/CONTAINER`.
        engine: the last lines of engines that start, by pod.
        checkpoint_bytes: size of the model's files; None where it is not known.
    """

    name: str
    namespace: str
    service: Object | None = None
    clusters: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()
    others: tuple[Object, ...] = ()
    events: tuple[Object, ...] = ()
    nodes: tuple[Object, ...] = ()
    operator: tuple[Object, ...] = ()
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    engine: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    checkpoint_bytes: int | None = None

    @property
    def serving(self) -> Object:
        """The part of the status that counts: of the RayCluster that comes up, else of the one that serves.

        Before the service was ready once, only the former is there.
        """
        status = status_of(self.service or {})
        pending, active = status.get("pendingServiceStatus") or {}, status.get("activeServiceStatus") or {}
        found: Object = pending if pending.get("rayClusterName") else active
        return found

    @property
    def current(self) -> Object | None:
        """The RayCluster that `serving` is about; before the status names one, the newest that stays."""
        named = self.serving.get("rayClusterName")
        staying = [each for each in self.clusters if not each["metadata"].get("deletionTimestamp")]
        return next((each for each in staying if name_of(each) == named), staying[-1] if staying else None)

    def pods_of(self, cluster: Object | None) -> tuple[Object, ...]:
        """The pods of a RayCluster, its head first."""
        if cluster is None:
            return ()
        return tuple(pod for pod in self.pods if labels_of(pod).get(_CLUSTER) == name_of(cluster))

    def pods_in(self, phase: str) -> tuple[Object, ...]:
        """The worker pods of a phase, of all RayClusters."""
        return tuple(pod for pod in self.pods if phase_of(pod) == phase and not is_head(pod))

    def events_of(self, obj: Object, *reasons: str) -> list[Object]:
        """The events of an object, oldest first; of these reasons only, where some are given."""
        uid, name = obj["metadata"].get("uid"), name_of(obj)
        return [
            event
            for event in self.events
            if _is_about(event, obj.get("kind"), name, uid)
            and (not reasons or event.get("reason") in reasons)
        ]

    def node(self, name: str) -> Object | None:
        """The node of that name."""
        return next((node for node in self.nodes if name_of(node) == name), None)


def take(
    cluster: Cluster,
    document: Document,
    *,
    engine_lines: EngineLines | None = None,
    checkpoint_bytes: int | None = None,
) -> Snapshot:
    """Read all that there is of a document's service.

    Args:
        engine_lines: asks for an engine's log, which is in no object; not asked where nothing starts.
        checkpoint_bytes: size of the model's files, for estimates.

    Raises:
        ClusterError: the cluster can't be asked, or what belongs to the service may not be read.
    """
    name, namespace = document.name, document.kubernetes.namespace
    service = cluster.get("RayService", name, namespace)
    clusters = _by_age(cluster.list("RayCluster", namespace=namespace, labels={_ORIGIN_NAME: name}))
    names = {name_of(each) for each in clusters}
    own = [pod for pod in cluster.list("Pod", namespace=namespace) if labels_of(pod).get(_CLUSTER) in names]
    pods = sorted(own, key=lambda pod: (not is_head(pod), name_of(pod)))
    everywhere = _if_allowed(lambda: cluster.list("Pod"))
    mine = {pod["metadata"].get("uid") for pod in pods}
    found = Snapshot(
        name,
        namespace,
        service=service,
        clusters=tuple(clusters),
        pods=tuple(pods),
        others=tuple(pod for pod in everywhere if _is_placed(pod) and pod["metadata"].get("uid") not in mine),
        events=tuple(sorted(_if_allowed(lambda: cluster.list("Event", namespace=namespace)), key=last_seen)),
        nodes=tuple(_if_allowed(lambda: cluster.list("Node"))),
        operator=tuple(_if_allowed(lambda: cluster.list("Pod", labels=OPERATOR_LABELS))),
        lines=_lines(cluster, pods, namespace),
        checkpoint_bytes=checkpoint_bytes,
    )
    return replace(found, engine=_engine(found, engine_lines)) if engine_lines else found


def last_seen(event: Object) -> float:
    """When an event was seen last, in Unix seconds."""
    series = event.get("series") or {}
    stamps = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    first = next(filter(None, stamps), None) or event["metadata"].get("creationTimestamp")
    return unix_time(first) or 0.0


def is_up(app: Object) -> bool:
    """Whether a Serve application, as a RayService tells of it, runs with all its deployments."""
    deployments = (app.get("serveDeploymentStatuses") or {}).values()
    return app.get("status") == "RUNNING" and all(each.get("status") == "HEALTHY" for each in deployments)


def _engine(found: Snapshot, engine_lines: EngineLines) -> dict[str, tuple[str, ...]]:
    apps = (found.serving.get("applicationStatuses") or {}).values()
    if apps and all(map(is_up, apps)):
        return {}
    workers = [pod for pod in found.pods_of(found.current) if phase_of(pod) and is_running(pod)]
    return {name_of(pod): lines for pod in workers if (lines := tuple(engine_lines(pod)))}


def _lines(cluster: Cluster, pods: Iterable[Object], namespace: str) -> dict[str, tuple[str, ...]]:
    found = {}
    for pod in pods:
        for state in (*container_states(pod, init=True), *container_states(pod)):
            previous = _failed_before(state)
            initial = state in container_states(pod, init=True) and "running" in (state.get("state") or {})
            if previous or initial:
                lines = _log(cluster, name_of(pod), namespace, state["name"], previous=previous)
                found[f"{name_of(pod)}/{state['name']}"] = lines
    return found


def _failed_before(state: Object) -> bool:
    """Whether a container waits to be started again."""
    waiting = (state.get("state") or {}).get("waiting") or {}
    return waiting.get("reason") == "CrashLoopBackOff"


def _log(cluster: Cluster, pod: str, namespace: str, container: str, *, previous: bool) -> tuple[str, ...]:
    with contextlib.suppress(RefusedError):
        return tuple(cluster.log(pod, namespace, container, tail=_LINES, previous=previous))
    return ()


def _if_allowed(read: Callable[[], Sequence[Object]]) -> Sequence[Object]:
    """What lies outside of the service's namespace may be closed to us: it explains, and is not needed."""
    try:
        return read()
    except RefusedError as error:
        if error.status == 403:
            return []
        raise


def _is_placed(pod: Object) -> bool:
    spec, phase = pod.get("spec") or {}, status_of(pod).get("phase")
    return bool(spec.get("nodeName")) and phase not in ("Succeeded", "Failed")


def _by_age(clusters: Iterable[Object]) -> list[Object]:
    return sorted(clusters, key=lambda each: unix_time(each["metadata"].get("creationTimestamp")) or 0.0)


def _is_about(event: Object, kind: str | None, name: str, uid: str | None) -> bool:
    about = event.get("involvedObject") or {}
    if uid and about.get("uid"):
        return bool(about["uid"] == uid)
    return bool(about.get("name") == name and (kind is None or about.get("kind") in (kind, None)))
