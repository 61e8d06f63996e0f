"""The charts' values.yaml, by the keys at their top, and the CRD of RayJob, which no schema here describes."""

from collections.abc import Mapping
from typing import Any

from fakes.programs.efa_types import EFA_TYPES

OPERATOR_VALUES: Mapping[str, Any] = {
    **dict.fromkeys(("nameOverride", "fullnameOverride", "componentOverride"), "kuberay-operator"),
    "replicas": 1,
    "image": {"repository": "quay.io/kuberay/operator", "tag": "", "pullPolicy": "IfNotPresent"},
    "imagePullSecrets": [],
    "nodeSelector": {},
    "priorityClassName": "",
    "labels": {},
    "annotations": {},
    "affinity": {},
    "tolerations": [],
    "serviceAccount": {"create": True, "name": "kuberay-operator"},
    "logging": {},
    "batchScheduler": {"enabled": False, "name": ""},
    "configuration": {"enabled": False},
    "featureGates": [{"name": "RayServiceIncrementalUpgrade", "enabled": True}],
    "metrics": {"enabled": True},
    "operatorCommand": "/manager",
    "leaderElectionEnabled": True,
    "reconcileConcurrency": 1,
    "kubeClient": {"qps": 100.0, "burst": 200},
    "rbacEnable": True,
    "crNamespacedRbacEnable": True,
    "singleNamespaceInstall": False,
    "watchNamespace": [],
    "env": [],
    "resources": {"limits": {"cpu": "100m", "memory": "512Mi"}},
    "livenessProbe": {},
    "readinessProbe": {},
    "podSecurityContext": {},
    "securityContext": {},
    "service": {"type": "ClusterIP", "port": 8080},
}
EFA_VALUES: Mapping[str, Any] = {
    "image": {
        "repository": "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin",
        "tag": "v0.5.20",
    },
    "securityContext": {},
    "supportedInstanceLabels": {"keys": ["node.kubernetes.io/instance-type"], "values": EFA_TYPES},
    "resources": {},
    "nodeSelector": {},
    "updateStrategy": {},
    "tolerations": [],
    "additionalPodAnnotations": {},
    "additionalPodLabels": {},
    "nameOverride": "",
    "fullnameOverride": "",
    "imagePullSecrets": [],
}
# Without these labels, which node feature discovery sets, the chart's DaemonSet goes to no node.
_DISCOVERED = ("feature.node.kubernetes.io/pci-10de.present", "nvidia.com/gpu.present")
GPU_VALUES: Mapping[str, Any] = {
    **dict.fromkeys(
        ("compatWithCPUManager", "migStrategy", "failOnInitError", "deviceListStrategy", "deviceIDStrategy")
    ),
    **dict.fromkeys(
        ("nvidiaDriverRoot", "gdrcopyEnabled", "gdsEnabled", "mofedEnabled", "deviceDiscoveryStrategy")
    ),
    "config": {},
    "nameOverride": "",
    "fullnameOverride": "",
    "namespaceOverride": "",
    "selectorLabelsOverride": {},
    "allowDefaultNamespace": False,
    "imagePullSecrets": [],
    "image": {"repository": "nvcr.io/nvidia/k8s-device-plugin", "tag": "", "pullPolicy": "IfNotPresent"},
    "updateStrategy": {},
    "podAnnotations": {},
    "podSecurityContext": {},
    "securityContext": {},
    "resources": {},
    "nodeSelector": {},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": key, "operator": "In", "values": ["true"]}]}
                    for key in _DISCOVERED
                ]
            }
        }
    },
    "tolerations": [
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    ],
    "priorityClassName": "system-node-critical",
    "runtimeClassName": None,
    **{key: {} for key in ("devicePlugin", "gfd", "nfd", "mps", "cdi")},
}
RAY_JOB = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: rayjobs.ray.io
spec:
  group: ray.io
  names: {kind: RayJob, listKind: RayJobList, plural: rayjobs, singular: rayjob}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
            status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""
