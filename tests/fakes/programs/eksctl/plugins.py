"""The device plugins that eksctl installs, reduced to what decides where they run."""

from typing import Any

from fakes.programs.efa_types import EFA_TYPES

GPU_FAMILIES = ("g", "p")


def nvidia(taints: list[dict[str, Any]]) -> dict[str, Any]:
    """Tolerates nvidia.com/gpu and the node group's own taints."""
    tolerations = [
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        *({"key": row["key"], "value": row.get("value", ""), "effect": row["effect"]} for row in taints),
    ]
    image = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"
    return _daemon_set("nvidia-device-plugin-daemonset", "nvidia-device-plugin-ctr", image, tolerations)


def efa() -> dict[str, Any]:
    """Tolerates no GPU taint, and knows only the instance types of its list."""
    tolerations = [
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
        {"key": "aws.amazon.com/efa", "operator": "Exists", "effect": "NoSchedule"},
    ]
    image = "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin:v0.5.4"
    made = _daemon_set("aws-efa-k8s-device-plugin-daemonset", "aws-efa-k8s-device-plugin", image, tolerations)
    wanted = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": EFA_TYPES}
    made["spec"]["template"]["spec"]["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [wanted]}]
            }
        }
    }
    return made


def _daemon_set(name: str, container: str, image: str, tolerations: list[dict[str, Any]]) -> dict[str, Any]:
    labels = {"name": name.removesuffix("-daemonset")}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"tolerations": tolerations, "containers": [{"name": container, "image": image}]},
            },
        },
    }
