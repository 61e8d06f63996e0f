"""The RayService for KubeRay 1.7, and what it refers to: our code in a ConfigMap, and the workers' service account."""

import base64
from typing import Any

from diptych.render import haproxy, names, pods
from diptych.render.image import ray_version
from diptych.render.inputs import Facts
from diptych.render.layout import WorkerGroup, worker_groups
from diptych.render.objects import metadata
from diptych.render.serve import DRAIN_S, cluster_serve_config
from diptych.render.write import to_yaml
from diptych.spec import Document

PRIVILEGED_NOTE = f"{names.DOMAIN}/privileged"
INITIALIZING_TIMEOUT = "ray.io/initializing-timeout"

_START_S = 2700
_UNKNOWN_CHECKPOINT_S = 3600
_SLOWEST_FETCH = 50_000_000
_IDLE_POD_S = 600


def start_deadline_s(facts: Facts) -> int:
    """Seconds within which the service must have come up for the first time.

    KubeRay then gives up for good, so this is generous. Formula: 45 min for nodes' images and the engines' start, and
    the checkpoint at 50 MB/s, or an hour where its size is not known.
    """
    size = facts.checkpoint_bytes
    return _START_S + (_UNKNOWN_CHECKPOINT_S if size is None else size // _SLOWEST_FETCH)


def rayservice_objects(document: Document, facts: Facts) -> list[dict[str, Any]]:
    """What the service needs in its namespace, in the order in which it must be there; secrets are not among it."""
    return [service_account(document), code_config_map(document, facts), ray_service(document, facts)]


def service_account(document: Document) -> dict[str, Any]:
    """The workers' identity: for access to a bucket. It has no rights in Kubernetes, and no token is mounted."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(
            document,
            names.service_account(document),
            annotations=document.kubernetes.service_account_annotations,
        ),
        "automountServiceAccountToken": False,
    }


def code_config_map(document: Document, facts: Facts) -> dict[str, Any]:
    """`diptych.serving` as a zip archive that Python imports from, and what is started in HAProxy's place.

    Raises:
        ValueError: the facts have no archive.
    """
    if not facts.serving_archive:
        raise ValueError(
            "Facts.serving_archive is empty: read it with diptych.render.archive.serving_archive()"
        )
    file = names.CODE_FILE.rpartition("/")[2]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(document, names.code_config_map(document, facts.serving_archive)),
        "immutable": True,
        "data": {haproxy.PROGRAM: haproxy.program()},
        "binaryData": {file: base64.b64encode(facts.serving_archive).decode("ascii")},
    }


def ray_service(document: Document, facts: Facts) -> dict[str, Any]:
    """The RayService.

    Raises:
        DocumentError: the document cannot be served on a cluster as it is.
    """
    in_place = document.kubernetes.upgrade == "in-place"
    annotations = {INITIALIZING_TIMEOUT: f"{start_deadline_s(facts)}s", **_privileged_note(document)}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": metadata(document, document.name, annotations=annotations),
        "spec": {
            "serveConfigV2": to_yaml(cluster_serve_config(document, facts)),
            "upgradeStrategy": {"type": "None" if in_place else "NewCluster"},
            # An old cluster finishes the answers it is writing.
            "rayClusterDeletionDelaySeconds": DRAIN_S,
            "excludeHeadPodFromServeSvc": _always_has_workers(document),
            "rayClusterConfig": _ray_cluster(document, facts),
        },
    }


def _ray_cluster(document: Document, facts: Facts) -> dict[str, Any]:
    cluster: dict[str, Any] = {"rayVersion": ray_version(document), "authOptions": {"mode": "token"}}
    if pods.has_autoscaler(document):
        cluster["enableInTreeAutoscaling"] = True
        # Version 2 would never restart a head that died.
        cluster["autoscalerOptions"] = {"version": "v1", "idleTimeoutSeconds": _IDLE_POD_S}
    head = pods.head_pod(document)
    head["spec"]["volumes"] = pods.volumes(document, facts)
    cluster["headGroupSpec"] = {"rayStartParams": pods.head_start_parameters(), "template": head}
    cluster["workerGroupSpecs"] = [_worker_group(document, facts, group) for group in worker_groups(document)]
    return cluster


def _worker_group(document: Document, facts: Facts, group: WorkerGroup) -> dict[str, Any]:
    template = pods.worker_pod(document, facts, group)
    template["spec"]["volumes"] = pods.volumes(document, facts, group)
    return {
        "groupName": group.name,
        "replicas": group.least_pods,
        "minReplicas": group.least_pods,
        "maxReplicas": group.most_pods,
        "rayStartParams": pods.worker_start_parameters(group),
        "resources": {group.name: "1"},
        "template": template,
    }


def _always_has_workers(document: Document) -> bool:
    """Whether clients find a proxy on workers at any time; the head's is needed only where all may be gone."""
    return all(phase.least_replicas > 0 for phase in document.phases.values())


def _privileged_note(document: Document) -> dict[str, str]:
    if document.kubernetes.privileged != "auto":
        return {}
    note = "auto: no; should the proof of the transport fail, set kubernetes.privileged: always"
    return {PRIVILEGED_NOTE: note}
