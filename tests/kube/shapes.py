"""Objects of a service in a cluster, in the shapes that Kubernetes 1.35 and KubeRay 1.7 write them.

The RayService is rendered from the walk-through's document; what a scheduler, a kubelet and an operator add to it is
added here, in their words.
"""

import copy
import datetime
from dataclasses import replace
from typing import Any

from diptych.kube.snapshot import Snapshot
from diptych.render.rayservice import ray_service
from render.golden_documents import example

NOW = 1_796_040_000.0
DOCUMENT, FACTS = example("walkthrough")
NAME, NAMESPACE = DOCUMENT.name, DOCUMENT.kubernetes.namespace
SERVICE = ray_service(DOCUMENT, FACTS)
IMAGE = "public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1.0.0"
CLUSTER = f"{NAME}-x7k2q"
HEAD = f"{CLUSTER}-head-9xkzp"
PREFILL, DECODE = f"{CLUSTER}-prefill-worker-7dl2m", f"{CLUSTER}-decode-worker-q8w4t"
NODES = {"system": "ip-10-0-1-10", "prefill": "ip-10-0-2-20", "decode": "ip-10-0-2-21"}

Object = dict[str, Any]


def ago(seconds: float) -> str:
    """A time stamp of that many seconds ago."""
    return datetime.datetime.fromtimestamp(NOW - seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(
    kind: str, *, is_true: bool, reason: str = "", message: str = "", since_s: float = 60
) -> Object:
    return {
        "type": kind,
        "status": "True" if is_true else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": ago(since_s),
    }


def meta(name: str, labels: dict[str, str] | None = None, **more: Any) -> Object:
    return {
        "name": name,
        "namespace": NAMESPACE,
        "uid": f"uid-{name}",
        "labels": labels or {},
        "creationTimestamp": ago(300),
        **more,
    }


def service(
    *, ready: Object | None = None, active: Object | None = None, pending: Object | None = None
) -> Object:
    made = copy.deepcopy(SERVICE)
    made["metadata"] |= {"uid": f"uid-{NAME}", "generation": 1, "creationTimestamp": ago(300)}
    told = ready or condition(
        "Ready", is_true=False, reason="Initializing", message="RayService is initializing"
    )
    made["status"] = {
        "conditions": [told],
        "observedGeneration": 1,
        "activeServiceStatus": active or {},
        "pendingServiceStatus": pending or {},
        "numServeEndpoints": 1 if told["status"] == "True" else 0,
    }
    return made


def ray_cluster(name: str = CLUSTER, *conditions: Object) -> Object:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": meta(
            name, {"ray.io/originated-from-cr-name": NAME, "ray.io/originated-from-crd": "RayService"}
        ),
        "spec": copy.deepcopy(SERVICE["spec"]["rayClusterConfig"]),
        "status": {
            "conditions": [
                condition(
                    "RayClusterProvisioned",
                    is_true=False,
                    reason="RayClusterPodsProvisioning",
                    message="RayCluster Pods are being provisioned for first time",
                ),
                *conditions,
            ]
        },
    }


def _template(group: str) -> Object:
    spec = SERVICE["spec"]["rayClusterConfig"]
    if group == "headgroup":
        return copy.deepcopy(spec["headGroupSpec"]["template"])
    return copy.deepcopy(
        next(each["template"] for each in spec["workerGroupSpecs"] if each["groupName"] == group)
    )


def pod(name: str, group: str, *, cluster: str = CLUSTER) -> Object:
    """A pod as KubeRay makes it, before anything has happened to it."""
    template = _template(group)
    is_head = group == "headgroup"
    labels = {
        **template["metadata"]["labels"],
        "ray.io/is-ray-node": "yes",
        "ray.io/cluster": cluster,
        "ray.io/node-type": "head" if is_head else "worker",
        "ray.io/group": group,
        "app.kubernetes.io/created-by": "kuberay-operator",
    }
    if not is_head:
        wait = {
            "name": "wait-gcs-ready",
            "image": IMAGE,
            "resources": {"limits": {"cpu": "200m", "memory": "256Mi"}},
        }
        template["spec"]["initContainers"].insert(0, wait)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta(name, labels),
        "spec": template["spec"] | {"restartPolicy": "Always"},
        "status": {"phase": "Pending", "conditions": []},
    }


def state(
    name: str, current: Object, *, last: Object | None = None, restarts: int = 0, ready: bool = False
) -> Object:
    return {
        "name": name,
        "image": IMAGE,
        "imageID": "",
        "ready": ready,
        "restartCount": restarts,
        "state": current,
        "lastState": last or {},
    }


def waiting(reason: str, message: str = "") -> Object:
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


def running(since_s: float = 60) -> Object:
    return {"running": {"startedAt": ago(since_s)}}


def terminated(code: int, reason: str = "Error", message: str = "") -> Object:
    told = {"exitCode": code, "reason": reason, "startedAt": ago(90), "finishedAt": ago(30)}
    return {"terminated": told | ({"message": message} if message else {})}


DONE = terminated(0, "Completed")


def placed(
    made: Object, node: str, *, main: Object, init: list[Object] | None = None, phase: str = "Pending"
) -> Object:
    """The pod on a node, with the states of its containers."""
    made = copy.deepcopy(made)
    made["spec"]["nodeName"] = node
    made["status"] = {
        "phase": phase,
        "conditions": [condition("PodScheduled", is_true=True)],
        "initContainerStatuses": init or [],
        "containerStatuses": [main],
    }
    return made


def unplaced(made: Object, message: str, reason: str = "Unschedulable") -> Object:
    made = copy.deepcopy(made)
    made["status"]["conditions"] = [condition("PodScheduled", is_true=False, reason=reason, message=message)]
    return made


def worker(phase: str, main: Object | None = None, *, init: list[Object] | None = None) -> Object:
    """A worker pod on its node; running, and not ready: no Serve proxy is on it yet (trap T4)."""
    name = {"prefill": PREFILL, "decode": DECODE}[phase]
    before = init if init is not None else [state("wait-gcs-ready", DONE), state("stage-model", DONE)]
    made = placed(
        pod(name, phase),
        NODES[phase],
        main=main or state("ray-worker", running()),
        init=before,
        phase="Running",
    )
    told = condition(
        "Ready", is_true=False, reason="ContainersNotReady", message="containers with unready status"
    )
    made["status"]["conditions"].append(told)
    return made


def head(main: Object | None = None, *, is_ready: bool = True, since_s: float = 60) -> Object:
    made = placed(
        pod(HEAD, "headgroup"),
        NODES["system"],
        main=main or state("ray-head", running(), ready=is_ready),
        phase="Running",
    )
    made["status"]["conditions"].append(
        condition("Ready", is_true=is_ready, reason="" if is_ready else "ContainersNotReady", since_s=since_s)
    )
    return made


def ready(made: Object) -> Object:
    made = copy.deepcopy(made)
    others = [each for each in made["status"]["conditions"] if each["type"] != "Ready"]
    made["status"]["conditions"] = [*others, condition("Ready", is_true=True)]
    return made


def node(
    phase: str,
    *,
    name: str = "",
    zone: str = "us-east-2a",
    taints: list[Object] | None = None,
    **amounts: str,
) -> Object:
    """A node as EKS has it: g6.8xlarge for a phase, m7i.xlarge for the system. Amounts by short name replace it."""
    is_system = phase == "system"
    there = (
        {"cpu": "3920m", "memory": "14162Mi"}
        if is_system
        else {
            "cpu": "31850m",
            "memory": "118312Mi",
            "nvidia.com/gpu": "1",
            "vpc.amazonaws.com/efa": "1",
            "hugepages-2Mi": "0",
        }
    )
    names = {"gpu": "nvidia.com/gpu", "efa": "vpc.amazonaws.com/efa", "hugepages": "hugepages-2Mi"}
    there |= {names.get(short, short): value for short, value in amounts.items()}
    labels = {
        "diptych.dev/phase": phase,
        "topology.kubernetes.io/zone": zone,
        "node.kubernetes.io/instance-type": "m7i.xlarge" if is_system else "g6.8xlarge",
    }
    labels |= {} if is_system else {"diptych.dev/service": NAME}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name or NODES[phase], "labels": labels, "creationTimestamp": ago(3000)},
        "spec": {"taints": taints or []},
        "status": {
            "allocatable": there,
            "conditions": [condition("Ready", is_true=True, reason="KubeletReady")],
            "nodeInfo": {
                "osImage": "Amazon Linux 2023.9.20260810",
                "kernelVersion": "6.12.40-64.114.amzn2023.x86_64",
            },
        },
    }


def event(obj: Object, reason: str, message: str, *, since_s: float = 20, host: str = "") -> Object:
    about = {
        "kind": obj["kind"],
        "name": obj["metadata"]["name"],
        "namespace": NAMESPACE,
        "uid": obj["metadata"].get("uid"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{obj['metadata']['name']}.{reason}.{since_s}",
            "creationTimestamp": ago(since_s),
        },
        "involvedObject": about,
        "reason": reason,
        "message": message,
        "firstTimestamp": ago(since_s),
        "lastTimestamp": ago(since_s),
        "source": {"host": host} if host else {"component": "default-scheduler"},
    }


def deployments(**told: tuple[str, str]) -> Object:
    """The status of the application: `Prefill=("UPDATING", "message")`."""
    return {name: {"status": status, "message": message} for name, (status, message) in told.items()}


HEALTHY = {"DPServer:prefill:qwen3.5-9b": ("HEALTHY", "")}


def serving(status: str = "DEPLOYING", message: str = "", **told: tuple[str, str]) -> Object:
    """An active or pending status, with the one application."""
    app = {"status": status, "message": message, "serveDeploymentStatuses": deployments(**told)}
    return {"rayClusterName": CLUSTER, "applicationStatuses": {"diptych": app}, "rayClusterStatus": {}}


def operator() -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "kuberay-operator-5d8f7b-abcde",
            "namespace": "kuberay-system",
            "uid": "uid-operator",
            "labels": {"app.kubernetes.io/name": "kuberay-operator"},
            "creationTimestamp": ago(3000),
        },
        "spec": {
            "nodeName": NODES["system"],
            "containers": [{"name": "kuberay-operator", "image": "quay.io/kuberay/operator:v1.7.0"}],
        },
        "status": {
            "phase": "Running",
            "conditions": [condition("PodScheduled", is_true=True), condition("Ready", is_true=True)],
            "containerStatuses": [state("kuberay-operator", running(3000), ready=True)],
        },
    }


def snapshot(**changes: Any) -> Snapshot:
    """A service whose pods run and whose application is being deployed; `changes` replace what it has."""
    usual = Snapshot(
        NAME,
        NAMESPACE,
        service=service(pending=serving(Prefill=("UPDATING", ""), Decode=("UPDATING", ""))),
        clusters=(ray_cluster(),),
        pods=(head(), worker("decode"), worker("prefill")),
        nodes=tuple(map(node, NODES)),
        operator=(operator(),),
    )
    return replace(usual, **changes)
