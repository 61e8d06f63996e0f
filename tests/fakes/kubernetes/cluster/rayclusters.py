"""The scripted KubeRay operator: RayClusters and their pods. `rayservices` has the RayServices above them."""

import json
from collections.abc import Iterator
from typing import Any

from fakes.kubernetes.cluster.recorder import Recorder, condition, owner
from fakes.kubernetes.cluster.script import Script
from fakes.kubernetes.errors import Json, Refusal
from fakes.kubernetes.objects import now, random_name

_SERVE_LABEL = "ray.io/serve"


class RayClusters:
    """Makes what RayClusters ask for, and says how it is."""

    def __init__(self, recorder: Recorder, script: Script) -> None:
        self._recorder, self._script = recorder, script

    def pods(self, cluster: Json) -> list[Json]:
        namespace, name = cluster["metadata"]["namespace"], cluster["metadata"]["name"]
        return [
            pod
            for pod in self._recorder.all("Pod", namespace)
            if pod["metadata"].get("labels", {}).get("ray.io/cluster") == name
        ]

    def head(self, cluster: Json) -> Json | None:
        return next((pod for pod in self.pods(cluster) if _node_type(pod) == "head"), None)

    def workers(self, cluster: Json) -> list[Json]:
        return [pod for pod in self.pods(cluster) if _node_type(pod) == "worker"]

    def wanted_workers(self, cluster: Json) -> int:
        return sum(_count(group) for group in cluster["spec"].get("workerGroupSpecs", ()))

    def reconcile(self, cluster: Json) -> None:
        if "deletionTimestamp" in cluster["metadata"]:
            self._finalize(cluster)
            return
        finalizer = self._script.cluster_finalizer
        if finalizer and finalizer not in cluster["metadata"].get("finalizers", ()):
            self._recorder.edit(cluster, finalizers=[*cluster["metadata"].get("finalizers", ()), finalizer])
        self._make_head_service(cluster)
        try:
            for pod in self._missing(cluster):
                self._recorder.create("Pod", cluster["metadata"]["namespace"], pod)
                name = f"{cluster['metadata']['namespace']}/{pod['metadata']['name']}"
                head = _node_type(pod) == "head"
                reason = "CreatedHeadPod" if head else "CreatedWorkerPod"
                self._recorder.event(cluster, reason, f"Created {'head' if head else 'worker'} Pod {name}")
        except Refusal as refusal:
            self._recorder.event(cluster, "FailedToCreateWorkerPod", str(refusal), warning=True)
        self._drop_surplus(cluster)
        self._say(cluster)

    def _finalize(self, cluster: Json) -> None:
        for pod in self.pods(cluster):
            self._recorder.delete(pod)
        finalizer = self._script.cluster_finalizer
        held = cluster["metadata"].get("finalizers", [])
        if finalizer in held and "finalize" not in self._script.held and not self.pods(cluster):
            self._recorder.edit(cluster, finalizers=[each for each in held if each != finalizer])

    def _make_head_service(self, cluster: Json) -> None:
        metadata = cluster["metadata"]
        name = f"{metadata['name']}-head-svc"
        if self._recorder.find("Service", metadata["namespace"], name) is None:
            selector = {"ray.io/cluster": metadata["name"], "ray.io/node-type": "head"}
            service = {
                "metadata": {"name": name, "labels": selector, "ownerReferences": [owner(cluster)]},
                "spec": {
                    "clusterIP": "None",
                    "publishNotReadyAddresses": True,
                    "selector": selector,
                    "ports": [{"name": n, "port": p} for n, p in _PORTS.items()],
                },
            }
            self._recorder.create("Service", metadata["namespace"], service)

    def _missing(self, cluster: Json) -> Iterator[Json]:
        pods = self.pods(cluster)
        for pod in pods:
            if (
                pod["status"]["phase"] in ("Failed", "Succeeded")
                and "deletionTimestamp" not in pod["metadata"]
            ):
                words = f"Deleted the Pod {pod['metadata']['name']}: its phase is {pod['status']['phase']}"
                self._recorder.event(cluster, "DeletedPod", words)
                self._recorder.delete(pod)
        alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        if not any(_node_type(pod) == "head" for pod in pods):
            yield self._pod(cluster, cluster["spec"]["headGroupSpec"], "headgroup", "head", 0)
        for group in cluster["spec"].get("workerGroupSpecs", ()):
            there = [pod for pod in alive if pod["metadata"]["labels"]["ray.io/group"] == group["groupName"]]
            for index in range(len(there), _count(group)):
                yield self._pod(cluster, group, group["groupName"], "worker", index)

    def _drop_surplus(self, cluster: Json) -> None:
        for group in cluster["spec"].get("workerGroupSpecs", ()):
            there = [
                pod
                for pod in self.workers(cluster)
                if pod["metadata"]["labels"]["ray.io/group"] == group["groupName"]
                and "deletionTimestamp" not in pod["metadata"]
            ]
            for pod in there[_count(group) :]:
                self._recorder.delete(pod)

    def _pod(self, cluster: Json, group: Json, name: str, node_type: str, index: int) -> Json:
        metadata, template = cluster["metadata"], json.loads(json.dumps(group["template"]))
        pod_name = (
            f"{metadata['name']}-head"
            if node_type == "head"
            else f"{metadata['name']}-{name}-worker-{random_name()}"
        )
        labels = {
            **template.get("metadata", {}).get("labels", {}),
            "ray.io/is-ray-node": "yes",
            "ray.io/cluster": metadata["name"],
            "ray.io/node-type": node_type,
            "ray.io/group": name,
            "ray.io/identifier": f"{metadata['name']}-{node_type}",
            "app.kubernetes.io/name": "kuberay",
            "app.kubernetes.io/created-by": "kuberay-operator",
            _SERVE_LABEL: "true" if node_type == "worker" else "false",
        }
        if node_type == "worker":
            labels["ray.io/worker-group-replica-index"] = str(index)
        annotations = template.get("metadata", {}).get("annotations", {})
        return {
            "metadata": {
                "name": pod_name[:63],
                "labels": labels,
                "annotations": annotations,
                "ownerReferences": [owner(cluster)],
            },
            "spec": self._pod_spec(cluster, template["spec"], node_type),
        }

    def _pod_spec(self, cluster: Json, spec: Json, node_type: str) -> Json:
        ray = spec["containers"][0]
        address = (
            f"{cluster['metadata']['name']}-head-svc.{cluster['metadata']['namespace']}.svc.cluster.local"
        )
        ray["env"] = [*ray.get("env", ()), {"name": "RAY_ADDRESS", "value": f"{address}:6379"}]
        ray.setdefault("command", ["/bin/bash", "-c", "--"])
        ray.setdefault(
            "args", [f"ulimit -n 65536; ray start --block{' --head' if node_type == 'head' else ''}"]
        )
        if node_type == "worker":
            wait = {
                "name": "wait-gcs-ready",
                "image": ray["image"],
                "command": ["/bin/bash", "-c", "--"],
                "args": [f"until ray health-check --address {address}:6379; do sleep 5; done"],
                "resources": {"limits": {"cpu": "200m", "memory": "256Mi"}},
            }
            spec["initContainers"] = [*spec.get("initContainers", ()), wait]
        mounts = ray.setdefault("volumeMounts", [])
        if not any(each["mountPath"] == "/dev/shm" for each in mounts):
            spec.setdefault("volumes", []).append({"name": "shared-mem", "emptyDir": {"medium": "Memory"}})
            mounts.append({"name": "shared-mem", "mountPath": "/dev/shm"})
        return spec

    def _say(self, cluster: Json) -> None:
        pods, head = self.pods(cluster), self.head(cluster)
        before = cluster.get("status", {})
        conditions = before.get("conditions", [])
        is_head_ready = head is not None and is_ready(head)
        wanted = self.wanted_workers(cluster)
        are_all_ready = len(pods) == wanted + 1 and all(is_ready(pod) for pod in pods)
        was_ready = any(
            each["type"] == "RayClusterProvisioned" and each["status"] == "True" for each in conditions
        )
        provisioned = (
            ("True", "AllPodRunningAndReadyFirstTime", "All Ray Pods are ready for the first time")
            if are_all_ready or was_ready
            else (
                "False",
                "RayClusterPodsProvisioning",
                "RayCluster Pods are being provisioned for first time",
            )
        )
        if head is None:
            of_head = ("False", "HeadPodNotFound", "Head Pod not found")
        elif is_head_ready:
            of_head = ("True", "HeadPodRunningAndReady", "Head Pod ready")
        else:
            of_head = ("False", *_why_unready(head))
        status: dict[str, Any] = {
            **before,
            "desiredWorkerReplicas": wanted,
            "minWorkerReplicas": sum(
                each.get("minReplicas", 0) for each in cluster["spec"].get("workerGroupSpecs", ())
            ),
            "maxWorkerReplicas": sum(
                each.get("maxReplicas", 0) for each in cluster["spec"].get("workerGroupSpecs", ())
            ),
            "availableWorkerReplicas": sum(
                pod["status"]["phase"] == "Running" for pod in self.workers(cluster)
            ),
            "readyWorkerReplicas": sum(is_ready(pod) for pod in self.workers(cluster)),
            "observedGeneration": cluster["metadata"]["generation"],
            "conditions": [
                condition("HeadPodReady", *of_head, conditions),
                condition("RayClusterProvisioned", *provisioned, conditions),
            ],
            "endpoints": {name: str(port) for name, port in _PORTS.items()},
            "head": {
                "podName": head["metadata"]["name"] if head else "",
                "podIP": head["status"].get("podIP", "") if head else "",
                "serviceName": f"{cluster['metadata']['name']}-head-svc",
            },
        }
        if are_all_ready:
            status["state"] = "ready"
        if {**status, "lastUpdateTime": ""} != {**before, "lastUpdateTime": ""}:
            status["lastUpdateTime"] = now()
            self._recorder.status(cluster, status)


_PORTS = {"gcs-server": 6379, "dashboard": 8265, "metrics": 8080, "serve": 8000}


def _count(group: Json) -> int:
    return int(group.get("replicas", group.get("minReplicas", 0))) * int(group.get("numOfHosts", 1))


def _node_type(pod: Json) -> str:
    return str(pod["metadata"]["labels"]["ray.io/node-type"])


def is_ready(pod: Json) -> bool:
    found = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in found)


def _why_unready(pod: Json) -> tuple[str, str]:
    for status in pod["status"].get("containerStatuses", ()):
        waiting = status["state"].get("waiting")
        if waiting:
            return waiting["reason"], waiting.get("message", "")
    for each in pod["status"].get("conditions", ()):
        if each["type"] in ("Ready", "PodScheduled") and each["status"] == "False":
            return each["reason"] or "Unknown", each["message"]
    return "Unknown", ""
