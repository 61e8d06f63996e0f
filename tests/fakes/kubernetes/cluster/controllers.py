"""Kubernetes' own controllers, as far as they are needed: pods of Deployments, endpoints of Services."""

import hashlib
import json

from fakes.kubernetes.cluster.rayclusters import is_ready
from fakes.kubernetes.cluster.recorder import Recorder, condition, owner
from fakes.kubernetes.errors import Json
from fakes.kubernetes.objects import random_name


class Controllers:
    """Keeps what follows from Deployments and Services."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def tick(self) -> None:
        for deployment in self._recorder.all("Deployment"):
            if "deletionTimestamp" not in deployment["metadata"]:
                self._deploy(deployment)
        for service in self._recorder.all("Service"):
            if service["spec"].get("selector"):
                self._expose(service)

    def _deploy(self, deployment: Json) -> None:
        metadata, spec = deployment["metadata"], deployment["spec"]
        text = json.dumps(spec["template"], sort_keys=True)
        revision = hashlib.sha1(text.encode()).hexdigest()[:10]
        pods = [
            pod
            for pod in self._recorder.all("Pod", metadata["namespace"])
            if any(each["uid"] == metadata["uid"] for each in pod["metadata"].get("ownerReferences", ()))
            and "deletionTimestamp" not in pod["metadata"]
        ]
        new = [pod for pod in pods if pod["metadata"]["labels"].get("pod-template-hash") == revision]
        wanted = spec.get("replicas", 1)
        for _ in range(len(new), wanted):
            self._make(deployment, revision)
        for pod in [*(each for each in pods if each not in new), *new[wanted:]]:
            self._recorder.delete(pod)
        ready = sum(is_ready(pod) for pod in new)
        before = deployment.get("status", {})
        is_available = ready >= wanted
        words = f"Deployment {'has' if is_available else 'does not have'} minimum availability."
        reason = "MinimumReplicasAvailable" if is_available else "MinimumReplicasUnavailable"
        status = {
            "observedGeneration": metadata["generation"],
            "replicas": len(new),
            "updatedReplicas": len(new),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(wanted - ready, 0),
            "conditions": [
                condition("Available", str(is_available), reason, words, before.get("conditions", [])),
                condition("Progressing", "True", "NewReplicaSetAvailable", "", before.get("conditions", [])),
            ],
        }
        if status != before:
            self._recorder.status(deployment, status)

    def _make(self, deployment: Json, revision: str) -> None:
        metadata, template = deployment["metadata"], deployment["spec"]["template"]
        labels = {**template.get("metadata", {}).get("labels", {}), "pod-template-hash": revision}
        pod = {
            "metadata": {
                "name": f"{metadata['name']}-{revision}-{random_name()}",
                "labels": labels,
                "ownerReferences": [owner(deployment)],
            },
            "spec": template["spec"],
        }
        self._recorder.create("Pod", metadata["namespace"], pod)

    def _expose(self, service: Json) -> None:
        """One EndpointSlice with the pods that a Service selects."""
        metadata, selector = service["metadata"], service["spec"]["selector"]
        endpoints = [
            {
                "addresses": [pod["status"]["podIP"]],
                "conditions": {"ready": is_ready(pod) and "deletionTimestamp" not in pod["metadata"]},
                "nodeName": pod["spec"]["nodeName"],
                "targetRef": {
                    "kind": "Pod",
                    "name": pod["metadata"]["name"],
                    "namespace": metadata["namespace"],
                    "uid": pod["metadata"]["uid"],
                },
            }
            for pod in self._recorder.all("Pod", metadata["namespace"])
            if selector.items() <= pod["metadata"].get("labels", {}).items() and pod["status"].get("podIP")
        ]
        found = next(
            (
                each
                for each in self._recorder.all("EndpointSlice", metadata["namespace"])
                if any(one["uid"] == metadata["uid"] for one in each["metadata"].get("ownerReferences", ()))
            ),
            None,
        )
        if found is None:
            made = {
                "metadata": {
                    "name": f"{metadata['name']}-{random_name()}",
                    "labels": {"kubernetes.io/service-name": metadata["name"]},
                    "ownerReferences": [owner(service)],
                },
                "addressType": "IPv4",
                "endpoints": endpoints,
                "ports": [
                    {"name": each.get("name", ""), "port": each["port"]} for each in service["spec"]["ports"]
                ],
            }
            self._recorder.create("EndpointSlice", metadata["namespace"], made)
        elif found.get("endpoints") != endpoints:
            self._recorder.edit(found, endpoints=endpoints)
