"""The scripted KubeRay operator: RayServices. First everything is pending; what serves becomes active.

The order of things, the conditions and their words are those of KubeRay 1.7.
"""

from collections.abc import Callable
from typing import Any

from fakes.kubernetes.cluster import applications
from fakes.kubernetes.cluster.rayclusters import RayClusters, is_ready
from fakes.kubernetes.cluster.rayservice_spec import initializing_timeout, invalid, spec_hash
from fakes.kubernetes.cluster.recorder import Recorder, condition, named, owner
from fakes.kubernetes.cluster.script import Script
from fakes.kubernetes.errors import Json
from fakes.kubernetes.objects import now, random_name

FINALIZER = "ray.io/rayservice-finalizer"
_HASH = "ray.io/hash-without-replicas-and-workers-to-delete"
_FINALIZER_SINCE = (1, 6, 2)


class RayServices:
    """Brings RayServices up, and takes them down.

    Args:
        serving: told of clusters whose proxies answer now: pods count as ready from then on.
    """

    def __init__(
        self, recorder: Recorder, clusters: RayClusters, script: Script, serving: Callable[[Json], None]
    ) -> None:
        self._recorder, self._clusters, self._script, self._serving = recorder, clusters, script, serving
        self._loading: dict[str, tuple[str, float | None]] = {}  # config and since when, by the cluster's uid
        self._outdated: dict[str, float] = {}  # when a cluster that nobody names goes, by its uid
        self._initializing: dict[str, float] = {}  # since when, by the service's uid
        self.version = (1, 7, 0)

    def reconcile(self, service: Json) -> None:
        metadata = service["metadata"]
        if "deletionTimestamp" in metadata:
            self._finalize(service)
            return
        if self.version >= _FINALIZER_SINCE and FINALIZER not in metadata.get("finalizers", ()):
            self._recorder.edit(service, finalizers=[*metadata.get("finalizers", ()), FINALIZER])
            return
        if (why := self._script.invalid or invalid(service)) is not None:
            self._refuse(service, why)
            return
        status = service.get("status", {})
        self._drop_outdated(service, status)
        if _reason(status) == "InitializingTimeout":
            return
        self._bring_up(service, status)

    def _finalize(self, service: Json) -> None:
        clusters = self._clusters_of(service)
        for cluster in clusters:
            if "deletionTimestamp" not in cluster["metadata"]:
                self._recorder.delete(cluster)
        if not clusters:
            held = service["metadata"].get("finalizers", [])
            if FINALIZER in held:
                self._recorder.edit(service, finalizers=[each for each in held if each != FINALIZER])

    def _clusters_of(self, service: Json) -> list[Json]:
        return [
            each
            for each in self._recorder.all("RayCluster", service["metadata"]["namespace"])
            if any(
                one["uid"] == service["metadata"]["uid"]
                for one in each["metadata"].get("ownerReferences", ())
            )
        ]

    def _refuse(self, service: Json, why: str) -> None:
        before = service.get("status", {})
        conditions = [condition("Ready", "False", "ValidationFailed", why, before.get("conditions", []))]
        if before.get("conditions") != conditions:
            self._recorder.event(service, "InvalidRayServiceSpec", f"{named(service)}: {why}", warning=True)
            self._recorder.status(service, {**before, "conditions": conditions, "lastUpdateTime": now()})

    def _drop_outdated(self, service: Json, status: Json) -> None:
        """Clusters that are neither active nor pending go after the deletion delay."""
        in_use = {
            status.get(each, {}).get("rayClusterName")
            for each in ("activeServiceStatus", "pendingServiceStatus")
        }
        for cluster in self._clusters_of(service):
            uid = cluster["metadata"]["uid"]
            if cluster["metadata"]["name"] in in_use or "deletionTimestamp" in cluster["metadata"]:
                continue
            delay = service["spec"].get("rayClusterDeletionDelaySeconds", 60)
            if self._script.now() >= self._outdated.setdefault(uid, self._script.now() + delay):
                self._recorder.delete(cluster)
                self._recorder.event(service, "DeletedRayCluster", f"Deleted the RayCluster {named(cluster)}")

    def _bring_up(self, service: Json, before: Json) -> None:
        namespace = service["metadata"]["namespace"]
        active, pending = (dict(before.get(f"{each}ServiceStatus", {})) for each in ("active", "pending"))
        active_cluster = self._find(namespace, active.get("rayClusterName"))
        pending_cluster = self._find(namespace, pending.get("rayClusterName"))
        if pending.get("rayClusterName") and pending_cluster is None:
            pending_cluster = self._make_cluster(service, pending["rayClusterName"])
        self._update_in_place(service, pending_cluster or active_cluster)
        served = pending_cluster or active_cluster
        is_new = (
            active_cluster is not None
            and pending_cluster is None
            and self._needs_new(service, active_cluster)
        )
        is_up, apps = (False, {}) if served is None or is_new else self._serve(service, served)
        for side, cluster in ((active, active_cluster), (pending, pending_cluster)):
            side.pop("applicationStatuses", None)
            side["rayClusterStatus"] = dict(cluster.get("status", {})) if cluster else {}
            if cluster is served and apps:
                side["applicationStatuses"] = apps
        if is_up and served is not None:
            self._make_services(service, served)
            if served is pending_cluster:
                active, pending = pending, {}
        elif served is None or is_new:
            pending = {"rayClusterName": f"{service['metadata']['name']}-{random_name()}"}
        self._say(service, before, active, pending)

    def _find(self, namespace: str, name: str | None) -> Json | None:
        return self._recorder.find("RayCluster", namespace, name) if name else None

    def _make_cluster(self, service: Json, name: str) -> Json:
        metadata, spec = service["metadata"], service["spec"]["rayClusterConfig"]
        annotations = {
            **metadata.get("annotations", {}),
            _HASH: spec_hash(spec),
            "ray.io/num-worker-groups": str(len(spec.get("workerGroupSpecs", ()))),
            "ray.io/kuberay-version": "v" + ".".join(map(str, self.version)),
        }
        cluster = {
            "metadata": {
                "name": name,
                "labels": {
                    **metadata.get("labels", {}),
                    "ray.io/originated-from-cr-name": metadata["name"],
                    "ray.io/originated-from-crd": "RayService",
                },
                "annotations": annotations,
                "ownerReferences": [owner(service)],
            },
            "spec": spec,
        }
        words = f"Created the RayCluster {metadata['namespace']}/{name}"
        self._recorder.event(service, "CreatedRayCluster", words)
        return self._recorder.create("RayCluster", metadata["namespace"], cluster)

    def _update_in_place(self, service: Json, cluster: Json | None) -> None:
        spec = service["spec"]["rayClusterConfig"]
        if cluster is None or cluster["spec"] == spec:
            return
        if cluster["metadata"]["annotations"].get(_HASH) == spec_hash(spec):
            self._recorder.edit(cluster, spec=spec)

    def _needs_new(self, service: Json, cluster: Json) -> bool:
        """Whether a change of the spec starts a second cluster."""
        strategy = service["spec"].get("upgradeStrategy", {}).get("type", "NewCluster")
        is_same = cluster["metadata"]["annotations"].get(_HASH) == spec_hash(
            service["spec"]["rayClusterConfig"]
        )
        return not is_same and strategy != "None"

    def _serve(self, service: Json, cluster: Json) -> tuple[bool, Json]:
        """Whether all applications of a cluster run, and what Serve says of them."""
        head = self._clusters.head(cluster)
        if head is None or not is_ready(head):
            return False, {}
        uid, config = cluster["metadata"]["uid"], service["spec"].get("serveConfigV2", "")
        known, since = self._loading.get(uid, ("", None))
        if known != config:
            self._recorder.event(
                service,
                "UpdatedServeApplications",
                f"Updated serve applications to the RayCluster {named(cluster)}",
            )
            since = None if not known else self._script.now()
        workers = self._clusters.workers(cluster)
        running = [pod for pod in workers if pod["status"]["phase"] == "Running"]
        are_there = len(running) >= self._clusters.wanted_workers(cluster)
        if are_there and since is None:
            since = self._script.now()
        self._loading[uid] = (config, since)
        if not are_there:
            return False, applications.statuses(config, "DEPLOYING", "", "UPDATING", applications.NO_ROOM)
        assert since is not None
        is_loaded = (
            self._script.now() - since >= self._script.seconds["load"] and "load" not in self._script.held
        )
        if not is_loaded:
            return False, applications.statuses(config, "DEPLOYING", "", "UPDATING", "")
        said = self._script.serve
        if said.status == "RUNNING":
            self._serving(cluster)
            serves = str(not service["spec"].get("excludeHeadPodFromServeSvc", False)).lower()
            if head["metadata"]["labels"]["ray.io/serve"] != serves:
                self._recorder.edit(head, labels={**head["metadata"]["labels"], "ray.io/serve": serves})
        each = {"RUNNING": "HEALTHY", "DEPLOYING": "UPDATING"}.get(said.status, "UNHEALTHY")
        return said.status == "RUNNING", applications.statuses(
            config, said.status, said.message, each, "", said.deployments
        )

    def _make_services(self, service: Json, cluster: Json) -> None:
        metadata, name = service["metadata"], cluster["metadata"]["name"]
        for suffix, selector in (
            ("head-svc", {"ray.io/node-type": "head"}),
            ("serve-svc", {"ray.io/serve": "true"}),
        ):
            wanted = {"ray.io/cluster": name, **selector}
            found = self._recorder.find("Service", metadata["namespace"], f"{metadata['name']}-{suffix}")
            if found is None:
                made: Json = {
                    "metadata": {
                        "name": f"{metadata['name']}-{suffix}",
                        "labels": {"ray.io/originated-from-cr-name": metadata["name"]},
                        "ownerReferences": [owner(service)],
                    },
                    "spec": {
                        "selector": wanted,
                        "ports": [{"name": "serve", "port": 8000, "targetPort": 8000}],
                    },
                }
                self._recorder.create("Service", metadata["namespace"], made)
                words = f"Created the service {metadata['namespace']}/{made['metadata']['name']}"
                self._recorder.event(service, "CreatedService", words)
            elif found["spec"]["selector"] != wanted:
                self._recorder.edit(found, spec={**found["spec"], "selector": wanted})

    def _say(self, service: Json, before: Json, active: Json, pending: Json) -> None:
        name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
        endpoints = sum(
            bool(each.get("conditions", {}).get("ready"))
            for slice_ in self._recorder.all("EndpointSlice", namespace)
            if slice_["metadata"]["labels"].get("kubernetes.io/service-name") == f"{name}-serve-svc"
            for each in slice_.get("endpoints") or ()
        )
        old = before.get("conditions", [])
        ready = self._ready(service, old, endpoints)
        if ready["reason"] == "InitializingTimeout":
            active.pop("rayClusterName", None)
            pending.pop("rayClusterName", None)
        upgrade = _upgrade(active, pending, old)
        status: dict[str, Any] = {
            "activeServiceStatus": active,
            "pendingServiceStatus": pending,
            "numServeEndpoints": endpoints,
            "observedGeneration": service["metadata"]["generation"],
            "conditions": [ready, upgrade],
            "serviceStatus": "Running" if ready["status"] == "True" else "",
        }
        if status != {key: value for key, value in before.items() if key != "lastUpdateTime"}:
            self._recorder.status(service, {**status, "lastUpdateTime": now()})

    def _ready(self, service: Json, old: list[Json], endpoints: int) -> Json:
        was = next((each for each in old if each["type"] == "Ready"), None)
        if endpoints:
            words = "Number of serve endpoints is greater than 0"
            return condition("Ready", "True", "NonZeroServeEndpoints", words, old)
        if was is None:
            self._initializing[service["metadata"]["uid"]] = self._script.now()
            return condition("Ready", "False", "Initializing", "RayService is initializing", old)
        if was["status"] == "True":
            words = "Number of serve endpoints dropped to 0"
            return condition("Ready", "False", "ZeroServeEndpoints", words, old)
        limit = self._script.initializing_timeout_s or initializing_timeout(service)
        spent = self._script.now() - self._initializing.get(service["metadata"]["uid"], self._script.now())
        if limit is not None and was["reason"] == "Initializing" and spent >= limit:
            words = (
                f"RayService failed to become ready within the configured timeout of {limit:.0f}s. "
                f"Time spent initializing: {spent:.3f}s"
            )
            event = f"RayService initializing timeout exceeded after {spent:.3f}s (configured timeout: {limit:.0f}s)"
            self._recorder.event(service, "RayServiceInitializingTimeout", event, warning=True)
            return condition("Ready", "False", "InitializingTimeout", words, old)
        return was


def _reason(status: Json) -> str | None:
    return next((each["reason"] for each in status.get("conditions", ()) if each["type"] == "Ready"), None)


def _upgrade(active: Json, pending: Json, old: list[Json]) -> Json:
    if active.get("rayClusterName") and pending.get("rayClusterName"):
        words = "Both active and pending Ray clusters exist"
        return condition("UpgradeInProgress", "True", "BothActivePendingClustersExist", words, old)
    if active.get("rayClusterName"):
        words = "Active Ray cluster exists and no pending Ray cluster"
        return condition("UpgradeInProgress", "False", "NoPendingCluster", words, old)
    return condition("UpgradeInProgress", "False", "Initializing", "RayService is initializing", old)
