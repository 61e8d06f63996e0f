"""The pods of the Ray cluster: the head on a system node, and the workers of each phase on its GPU nodes."""

from typing import Any

from diptych.catalog.instances import GIB, MIB
from diptych.render import names, staging
from diptych.render.engine import engine_settings
from diptych.render.image import container_image, image_name, pull_secrets
from diptych.render.ingress import pod_environment
from diptych.render.inputs import Facts
from diptych.render.layout import PodSize, WorkerGroup, zone_of
from diptych.render.objects import quantity, variables
from diptych.render.serve import drain_s
from diptych.spec import Document

_IMAGE_ENV = "DIPTYCH_IMAGE"
"""What `diptych.serving.generation` reads: engines of two images are no pair."""
_NODE_NAME_ENV, _ZONE_ENV = "DIPTYCH_NODE_NAME", "DIPTYCH_ZONE"
"""What `diptych.serving.surroundings` reads: two replicas on one node, or in two zones, are no split over EFA."""

METRICS_PORT = 8080
GCS_PORT = 6379
DASHBOARD_PORT = 8265

# From the pod's end on Ray has `drain_s` and this to take its replicas away, which have `drain_s` of it; then it ends
# its processes, and the pod is killed if that takes longer than the second.
_DRAIN_MARGIN_S = 10
_STOP_MARGIN_S = 30
_OBJECT_STORE = GIB
"""Answers go past Ray's object store; its default, a third of the memory, would not fit into /dev/shm."""
LEAST_OBJECT_STORE = 75 * MIB
"""Ray starts with no less."""

_QUIET = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAYLLM_ENABLE_REQUEST_PROMPT_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Nothing phones home, and no prompt is logged."""

_KEYS_GROUP = 65532
_EXECUTABLE = 0o555
"""May read the endpoint's keys: the pod's processes are in it, whatever user the image has. Host paths keep theirs."""

_TOLERATIONS = (
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "aws.amazon.com/efa", "operator": "Exists", "effect": "NoSchedule"},
)
"""Taints that keep other pods off GPU nodes; the first is what most clusters use."""


def head_start_parameters() -> dict[str, str]:
    """Options of `ray start` for the head: it has no resources, so that no replica lands on it."""
    return {"num-cpus": "0", "num-gpus": "0", "object-store-memory": str(_OBJECT_STORE)}


def worker_start_parameters(group: WorkerGroup) -> dict[str, str]:
    """Options of `ray start` for workers; KubeRay takes CPUs, memory and GPUs from the pod's limits."""
    half = max(group.size.shared_memory // 2, LEAST_OBJECT_STORE)
    return {"object-store-memory": str(min(_OBJECT_STORE, half))}


def head_pod(document: Document) -> dict[str, Any]:
    """The head's pod template. KubeRay adds probes, /dev/shm, addresses and the token for Ray."""
    section = document.kubernetes
    share = {"cpu": str(section.head_cpus), "memory": quantity(section.head_memory)}
    # A dead head ends the cluster: there is nothing to drain for.
    environment = {
        "PYTHONPATH": names.CODE_FILE,
        **pod_environment(document),
        **_QUIET,
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    selector = names.system_nodes(document)
    spec: dict[str, Any] = {
        "automountServiceAccountToken": has_autoscaler(document),
        "enableServiceLinks": False,
        **pull_secrets(document),
        **({"nodeSelector": selector} if selector else {}),
        "containers": [
            {
                "name": "ray-head",
                **container_image(document),
                "env": variables(environment),
                "ports": [
                    _port("gcs-server", GCS_PORT),
                    _port("dashboard", DASHBOARD_PORT),
                    _port("metrics", METRICS_PORT),
                    _port("serve", names.serve_port(document)),
                ],
                "resources": {"requests": share, "limits": share},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "volumeMounts": [_code_mount()],
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
    }
    return {"metadata": {"labels": _labels(document)}, "spec": spec}


def worker_pod(document: Document, facts: Facts, group: WorkerGroup) -> dict[str, Any]:
    """The pod template of one phase's workers."""
    staged = staging.is_staged(document)
    code = _code_mount()
    inits = [staging.init_container(document, facts, group, code, names.CODE_FILE)] if staged else []
    spec: dict[str, Any] = {
        "serviceAccountName": names.service_account(document),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **pull_secrets(document),
        **_placement(document, facts, group),
        **({"securityContext": {"fsGroup": _KEYS_GROUP}} if _faces_clients(group) else {}),
        "terminationGracePeriodSeconds": _ray_drain_s(document, group) + _STOP_MARGIN_S,
        **({"initContainers": inits} if inits else {}),
        "containers": [_worker(document, facts, group)],
    }
    return {"metadata": {"labels": _labels(document, group)}, "spec": spec}


def volumes(document: Document, facts: Facts, group: WorkerGroup | None = None) -> list[dict[str, Any]]:
    """A pod's volumes: the code; for workers shared memory, the model and, where clients are faced, the keys."""
    config_map = names.code_config_map(document, facts.serving_archive)
    found: list[dict[str, Any]] = [
        {"name": "code", "configMap": {"name": config_map, "defaultMode": _EXECUTABLE}}
    ]
    if group is None:
        return found
    shared = quantity(group.size.shared_memory)
    found.append({"name": "shared-mem", "emptyDir": {"medium": "Memory", "sizeLimit": shared}})
    if staging.is_staged(document):
        found.append(staging.volume(document, group))
    if _faces_clients(group):
        name, key = names.api_keys_secret(document)
        items = [{"key": key, "path": names.API_KEYS_FILE.rpartition("/")[2]}]
        secret = {"secretName": name, "defaultMode": 0o440, "items": items}
        found.append({"name": "api-keys", "secret": secret})
    return found


def has_autoscaler(document: Document) -> bool:
    """Whether Ray's autoscaler makes and removes worker pods: where the number of replicas may change it."""
    return any(phase.autoscaling_config is not None for phase in document.phases.values())


def _worker(document: Document, facts: Facts, group: WorkerGroup) -> dict[str, Any]:
    resources = _resources(group.size)
    return {
        "name": "ray-worker",
        **container_image(document),
        "env": _worker_environment(document, facts, group),
        "ports": [_port("metrics", METRICS_PORT), _port("serve", names.serve_port(document))],
        "resources": {"requests": resources, "limits": resources},
        "securityContext": _security(document),
        "lifecycle": {"preStop": {"exec": {"command": ["python", "-m", "diptych.serving.drain"]}}},
        "volumeMounts": _mounts(document, group),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _worker_environment(document: Document, facts: Facts, group: WorkerGroup) -> list[dict[str, Any]]:
    address = {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    node = {"name": _NODE_NAME_ENV, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    more = pod_environment(document) | dict(engine_settings(document, group.phase, facts).pod_environment)
    if staging.is_local(document):
        more["HF_HUB_OFFLINE"] = "1"
    more["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = str(_ray_drain_s(document, group))
    more[_IMAGE_ENV] = image_name(document)
    zone = zone_of(document, group.nodes, facts)
    if zone:
        more[_ZONE_ENV] = zone
    token = [] if staging.is_local(document) else staging.token(document)
    return [*variables({"PYTHONPATH": names.CODE_FILE}), address, node, *variables(more | _QUIET), *token]


def _ray_drain_s(document: Document, group: WorkerGroup) -> int:
    """Seconds after which Ray ends a worker pod's processes, whatever its replicas still do."""
    return drain_s(document, group.phase) + _DRAIN_MARGIN_S


def _resources(size: PodSize) -> dict[str, str]:
    """Requests and limits alike: the pod is the last that the node evicts, and its cores are its own."""
    found = {"cpu": str(size.cpus), "memory": quantity(size.memory), "nvidia.com/gpu": str(size.gpus)}
    if size.efa:
        found["vpc.amazonaws.com/efa"] = str(size.efa)
    if size.hugepages_2mi:
        found["hugepages-2Mi"] = quantity(size.hugepages_2mi)
    return found


def _security(document: Document) -> dict[str, Any]:
    """IPC_LOCK lets NIXL pin memory; the device plugins hand over GPUs and EFA without more."""
    if document.kubernetes.privileged == "always":
        return {"privileged": True}
    return {"privileged": False, "capabilities": {"add": ["IPC_LOCK"]}}


def _mounts(document: Document, group: WorkerGroup) -> list[dict[str, Any]]:
    found = [_code_mount(), {"name": "shared-mem", "mountPath": "/dev/shm"}]
    if staging.is_staged(document):
        found.append(staging.mount())
    if _faces_clients(group):
        folder = names.API_KEYS_FILE.rpartition("/")[0]
        found.append({"name": "api-keys", "mountPath": folder, "readOnly": True})
    return found


def _placement(document: Document, facts: Facts, group: WorkerGroup) -> dict[str, Any]:
    """On which nodes: those of the phase, one pod per node, all in one zone."""
    zone = zone_of(document, group.nodes, facts)
    selector = dict(group.nodes.selector or {})
    if document.on == "eks":
        own_phase = {} if facts.any_phase_nodes else {names.PHASE_LABEL: group.name}
        selector |= {**own_phase, names.SERVICE_LABEL: document.name}
    elif group.nodes.instance_type:
        selector["node.kubernetes.io/instance-type"] = group.nodes.instance_type
    if zone:
        selector["topology.kubernetes.io/zone"] = zone
    found: dict[str, Any] = {"nodeSelector": selector} if selector else {}
    found["tolerations"] = _tolerations(group)
    return found | _apart(document, group)


def _tolerations(group: WorkerGroup) -> list[dict[str, Any]]:
    if group.nodes.tolerations is None:
        return list(_TOLERATIONS)
    return [each.model_dump(exclude_none=True) for each in group.nodes.tolerations]


def _apart(document: Document, group: WorkerGroup) -> dict[str, Any]:
    """Pods of a phase on nodes of their own: on EKS there is one node for each, elsewhere where there are enough."""
    siblings = {"matchLabels": _labels(document, group)}
    if document.on == "eks":
        rule = {"labelSelector": siblings, "topologyKey": "kubernetes.io/hostname"}
        return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": siblings,
    }
    found: dict[str, Any] = {"topologySpreadConstraints": [spread]}
    if group.size.efa:  # EFA does not leave its zone
        workers = [{"key": names.PHASE_LABEL, "operator": "Exists"}]
        term = {
            "labelSelector": {"matchLabels": _labels(document), "matchExpressions": workers},
            "topologyKey": "topology.kubernetes.io/zone",
        }
        preferred = [{"weight": 100, "podAffinityTerm": term}]
        found["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    return found


def _faces_clients(group: WorkerGroup) -> bool:
    return group.phase == "decode"


def _labels(document: Document, group: WorkerGroup | None = None) -> dict[str, str]:
    """Ours only: KubeRay's Services select by its own `app.kubernetes.io/name`, which labels here would replace."""
    found = {names.SERVICE_LABEL: document.name}
    return found | ({names.PHASE_LABEL: group.name} if group else {})


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "containerPort": number}


def _code_mount() -> dict[str, Any]:
    return {"name": "code", "mountPath": names.CODE_FOLDER, "readOnly": True}
