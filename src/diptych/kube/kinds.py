"""The kinds of objects that Diptych reads or makes, as the Kubernetes API addresses them."""

from dataclasses import dataclass

from diptych.errors import ClusterError


@dataclass(frozen=True)
class Kind:
    """One kind: its API version, its name in paths, and whether its objects are in namespaces."""

    api_version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """The path of one object, or of all of a namespace (None: of all namespaces).

        >>> Kind("v1", "pods").path("inference", "head"), Kind("ray.io/v1", "rayservices").path()
        ('/api/v1/namespaces/inference/pods/head', '/apis/ray.io/v1/rayservices')
        """
        base = self.root
        if self.namespaced and namespace is not None:
            base += f"/namespaces/{namespace}"
        return "/".join([base, self.plural, *([name] if name else [])])

    @property
    def root(self) -> str:
        """The path that lists the kinds of its API version."""
        return f"/{'apis' if '/' in self.api_version else 'api'}/{self.api_version}"


_GATEWAY = "gateway.networking.k8s.io/v1"
_MONITORING = "monitoring.coreos.com"
_RBAC = "rbac.authorization.k8s.io/v1"

KINDS = {
    "ConfigMap": Kind("v1", "configmaps"),
    "Event": Kind("v1", "events"),
    "Namespace": Kind("v1", "namespaces", namespaced=False),
    "Node": Kind("v1", "nodes", namespaced=False),
    "PersistentVolume": Kind("v1", "persistentvolumes", namespaced=False),
    "PersistentVolumeClaim": Kind("v1", "persistentvolumeclaims"),
    "Pod": Kind("v1", "pods"),
    "Secret": Kind("v1", "secrets"),
    "Service": Kind("v1", "services"),
    "ServiceAccount": Kind("v1", "serviceaccounts"),
    "DaemonSet": Kind("apps/v1", "daemonsets"),
    "Deployment": Kind("apps/v1", "deployments"),
    "ReplicaSet": Kind("apps/v1", "replicasets"),
    "StatefulSet": Kind("apps/v1", "statefulsets"),
    "Job": Kind("batch/v1", "jobs"),
    "NetworkPolicy": Kind("networking.k8s.io/v1", "networkpolicies"),
    "Ingress": Kind("networking.k8s.io/v1", "ingresses"),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets"),
    "EndpointSlice": Kind("discovery.k8s.io/v1", "endpointslices"),
    "StorageClass": Kind("storage.k8s.io/v1", "storageclasses", namespaced=False),
    "CustomResourceDefinition": Kind(
        "apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False
    ),
    "Role": Kind(_RBAC, "roles"),
    "RoleBinding": Kind(_RBAC, "rolebindings"),
    "ClusterRole": Kind(_RBAC, "clusterroles", namespaced=False),
    "ClusterRoleBinding": Kind(_RBAC, "clusterrolebindings", namespaced=False),
    "RayService": Kind("ray.io/v1", "rayservices"),
    "RayCluster": Kind("ray.io/v1", "rayclusters"),
    "RayJob": Kind("ray.io/v1", "rayjobs"),
    "RayCronJob": Kind("ray.io/v1", "raycronjobs"),
    "PodMonitor": Kind(f"{_MONITORING}/v1", "podmonitors"),
    "PrometheusRule": Kind(f"{_MONITORING}/v1", "prometheusrules"),
    "Gateway": Kind(_GATEWAY, "gateways"),
    "GatewayClass": Kind(_GATEWAY, "gatewayclasses", namespaced=False),
    "HTTPRoute": Kind(_GATEWAY, "httproutes"),
}


def kind_of(name: str) -> Kind:
    """The kind called `name`.

    Raises:
        ClusterError: it is none that Diptych has to do with.
    """
    if name not in KINDS:
        raise ClusterError(f"Diptych does not know objects of the kind {name}.")
    return KINDS[name]
