"""Kubernetes' side of the machines: nodes that join with what kubelet and the device plugins say of them.

GPUs and EFA appear on a node only while a DaemonSet of the device plugin is there that goes to it: by its node
selector, node affinity and tolerations (an untolerated taint keeps it away). Not here: the DaemonSets' pods.
"""

import base64
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from diptych.catalog.instances import GIB, InstanceType
from fakes.kubernetes import FakeKubernetes

GPU, EFA, HUGE_PAGES = "nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi"
_PLUGINS = {"k8s-device-plugin": GPU, "efa-k8s-device-plugin": EFA}
_OURS = {"default", "kube-system", "kube-public", "kube-node-lease"}


@dataclass(frozen=True)
class Machine:
    """What a node has."""

    kind: InstanceType
    efa: bool

    def resources(self) -> dict[str, int]:
        """Devices by the name that a plugin gives them."""
        return {GPU: self.kind.gpus, EFA: self.kind.efa_interfaces if self.efa else 0}


@dataclass
class Nodes:
    """The nodes of the one cluster that the fake Kubernetes is; nothing happens where there is none.

    Attributes:
        advertised: what a plugin says of an instance type in place of the truth: type → resource → count.
        broken_plugins: resources whose plugin runs and advertises nothing.
    """

    kubernetes: FakeKubernetes | None
    region: str
    advertised: dict[str, dict[str, int]] = field(default_factory=dict)
    broken_plugins: set[str] = field(default_factory=set)
    machines: dict[str, Machine] = field(default_factory=dict)

    def address(self) -> tuple[str, bytes]:
        """The server's URL and its certificate authority (PEM; empty over plain HTTP)."""
        if self.kubernetes is None:
            return f"https://fake.gr7.{self.region}.eks.amazonaws.com", b"no certificate"
        with tempfile.TemporaryDirectory() as folder:
            text = self.kubernetes.kubeconfig(Path(folder, "config")).read_text()
        authority = yaml.safe_load(text)["clusters"][0]["cluster"].get("certificate-authority-data", "")
        return self.kubernetes.url, base64.b64decode(authority)

    def join(
        self,
        name: str,
        instance: str,
        zone: str,
        kind: InstanceType,
        nodegroup: Mapping[str, Any],
        *,
        efa: bool,
    ) -> None:
        """A node registers, ready, without devices."""
        if self.kubernetes is None:
            return
        self.machines[name] = Machine(kind, efa)
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "node.kubernetes.io/instance-type": kind.name,
            "topology.kubernetes.io/region": self.region,
            "topology.kubernetes.io/zone": zone,
            "eks.amazonaws.com/nodegroup": nodegroup["nodegroupName"],
            "eks.amazonaws.com/capacityType": nodegroup["capacityType"],
            "eks.amazonaws.com/nodegroup-image": "ami-0fa4e00000000000a",
            **nodegroup["labels"],
        }
        taints = [
            {"key": row["key"], "value": row["value"], "effect": _EFFECTS[row["effect"]]}
            for row in nodegroup["taints"]
        ]
        spec: dict[str, Any] = {"providerID": f"aws:///{zone}/{instance}"}
        if taints:
            spec["taints"] = taints
        self.kubernetes.put(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": labels},
                "spec": spec,
                "status": self._status(name, nodegroup["version"]),
            },
            manager="kubelet",
        )
        self.sync()

    def leave(self, name: str) -> None:
        """A node goes, and its pods with it."""
        self.machines.pop(name, None)
        if self.kubernetes is None:
            return
        for pod in self.kubernetes.all("Pod"):
            if pod.get("spec", {}).get("nodeName") == name:
                about = pod["metadata"]
                self.kubernetes.delete("Pod", about["name"], about["namespace"], grace_s=0)
        self.kubernetes.delete("Node", name)

    def forget_all(self) -> None:
        """The cluster is gone, with all that was in it; finalizers or not."""
        if self.kubernetes is None:
            return
        self.machines.clear()
        store = self.kubernetes.store
        with store.lock:
            for kind, thing in list(store.everything()):
                about = thing["metadata"]
                kept = kind.name == "Namespace" and about["name"] in _OURS
                if (
                    not kept
                    and kind.name != "CustomResourceDefinition"
                    and store.find(kind, about.get("namespace", ""), about["name"])
                ):
                    store.remove(kind, thing)
        for definition in self.kubernetes.all("CustomResourceDefinition"):
            self.kubernetes.delete("CustomResourceDefinition", definition["metadata"]["name"])

    def sync(self) -> None:
        """Let the device plugins say what there is; called again and again."""
        if self.kubernetes is None or not self.machines:
            return
        with self.kubernetes.store.lock:  # nodes that join say so beside the clock; nobody writes in between
            self._sync()

    def _sync(self) -> None:
        assert self.kubernetes
        plugins = [(_resource(one), one) for one in self.kubernetes.all("DaemonSet")]
        for name, machine in list(self.machines.items()):
            node = self.kubernetes.get("Node", name)
            if node is None:
                continue
            said = {
                resource: str(self._count(machine, resource))
                for resource, plugin in plugins
                if resource and resource not in self.broken_plugins and _goes_to(plugin, node)
                if self._count(machine, resource)
            }
            devices = {
                key: value for key, value in node["status"]["allocatable"].items() if key in (GPU, EFA)
            }
            if devices != said:
                self._advertise(node, said)

    def _count(self, machine: Machine, resource: str) -> int:
        true = machine.resources()[resource]
        return self.advertised.get(machine.kind.name, {}).get(resource, true)

    def _advertise(self, node: dict[str, Any], devices: Mapping[str, str]) -> None:
        assert self.kubernetes
        status = dict(node["status"])
        for part in ("allocatable", "capacity"):
            kept = {key: value for key, value in status[part].items() if key not in (GPU, EFA)}
            status[part] = {**kept, **devices}
        self.kubernetes.put({**node, "status": status}, manager="kubelet")

    def _status(self, name: str, version: str) -> dict[str, Any]:
        machine = self.machines[name]
        kind = machine.kind
        pages = {HUGE_PAGES: "10256Mi"} if machine.efa else {}  # the EFA driver takes 5128 pages of 2 MiB
        allocatable = {
            "cpu": f"{kind.allocatable_cpu_millis}m",
            "memory": f"{kind.allocatable_memory_bytes // 1024**2}Mi",
            "pods": "234" if kind.vcpus > 8 else "58",
            "ephemeral-storage": f"{80 * GIB}",
            **pages,
        }
        capacity = {
            **allocatable,
            "cpu": str(kind.vcpus),
            "memory": f"{kind.memory_bytes // 1024**2}Mi",
        }
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
            "lastHeartbeatTime": "2026-11-30T12:00:00Z",
            "lastTransitionTime": "2026-11-30T12:00:00Z",
        }
        return {
            "allocatable": allocatable,
            "capacity": capacity,
            "conditions": [ready],
            "addresses": [
                {"type": "InternalIP", "address": _address(name)},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "kernelVersion": "6.12.40-63.114.amzn2023.x86_64",
                "osImage": "Amazon Linux 2023.8.20250915",
                "containerRuntimeVersion": "containerd://2.1.4",
                "kubeletVersion": f"v{version}.2-eks-113cf36",
                "kubeProxyVersion": f"v{version}.2-eks-113cf36",
                "machineID": "ec2",
                "systemUUID": "ec2",
                "bootID": "ec2",
            },
        }


_EFFECTS = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute", "PREFER_NO_SCHEDULE": "PreferNoSchedule"}


def _address(name: str) -> str:
    """192.168.64.4 of ip-192-168-64-4.us-east-2.compute.internal."""
    return name.split(".")[0].removeprefix("ip-").replace("-", ".")


def _resource(daemon_set: Mapping[str, Any]) -> str | None:
    """What a DaemonSet advertises, if it is a device plugin."""
    for container in daemon_set["spec"]["template"]["spec"]["containers"]:
        image = container["image"].split("@")[0].rsplit("/", 1)[-1].split(":")[0]
        for ending, resource in reversed(_PLUGINS.items()):
            if image.endswith(ending):
                return resource
    return None


def _goes_to(daemon_set: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether its pods run on the node: node selector, required node affinity, taints."""
    pod = daemon_set["spec"]["template"]["spec"]
    labels = node["metadata"]["labels"]
    if any(labels.get(key) != value for key, value in pod.get("nodeSelector", {}).items()):
        return False
    required = (
        pod.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    )
    if required and not any(_meets(term, labels) for term in required["nodeSelectorTerms"]):
        return False
    taints = node.get("spec", {}).get("taints", ())
    return all(
        taint["effect"] == "PreferNoSchedule" or _tolerated(taint, pod.get("tolerations", ()))
        for taint in taints
        if not taint["key"].startswith(
            "node.kubernetes.io/"
        )  # DaemonSets tolerate those of the node's own state
    )


def _meets(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    for one in term.get("matchExpressions", ()):
        value = labels.get(one["key"])
        good = {
            "In": value in one.get("values", ()),
            "NotIn": value not in one.get("values", ()),
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }[one["operator"]]
        if not good:
            return False
    return True


def _tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    for one in tolerations:
        if one.get("effect") not in (None, "", taint["effect"]):
            continue
        if one.get("operator") == "Exists" and one.get("key") in (None, "", taint["key"]):
            return True
        if one.get("key") == taint["key"] and one.get("value", "") == taint.get("value", ""):
            return True
    return False
