"""The kinds that the fake API serves: a table of built-in ones, and what CustomResourceDefinitions add."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fakes.kubernetes import schemas
from fakes.kubernetes.errors import Json
from fakes.kubernetes.schemas import Schema

# group/version, kind, plural, namespaced, has /status, short names
_BUILT_IN = """
v1 Namespace namespaces no yes ns
v1 Node nodes no yes -
v1 PersistentVolume persistentvolumes no yes pv
v1 Pod pods yes yes po
v1 Service services yes yes svc
v1 Endpoints endpoints yes no ep
v1 ConfigMap configmaps yes no cm
v1 Secret secrets yes no -
v1 ServiceAccount serviceaccounts yes no sa
v1 Event events yes no ev
v1 PersistentVolumeClaim persistentvolumeclaims yes yes pvc
v1 ResourceQuota resourcequotas yes yes quota
v1 LimitRange limitranges yes no limits
apps/v1 Deployment deployments yes yes deploy
apps/v1 ReplicaSet replicasets yes yes rs
apps/v1 StatefulSet statefulsets yes yes sts
apps/v1 DaemonSet daemonsets yes yes ds
batch/v1 Job jobs yes yes -
batch/v1 CronJob cronjobs yes yes cj
networking.k8s.io/v1 NetworkPolicy networkpolicies yes no netpol
networking.k8s.io/v1 Ingress ingresses yes yes ing
networking.k8s.io/v1 IngressClass ingressclasses no no -
policy/v1 PodDisruptionBudget poddisruptionbudgets yes yes pdb
rbac.authorization.k8s.io/v1 Role roles yes no -
rbac.authorization.k8s.io/v1 RoleBinding rolebindings yes no -
rbac.authorization.k8s.io/v1 ClusterRole clusterroles no no -
rbac.authorization.k8s.io/v1 ClusterRoleBinding clusterrolebindings no no -
storage.k8s.io/v1 StorageClass storageclasses no no sc
discovery.k8s.io/v1 EndpointSlice endpointslices yes no -
coordination.k8s.io/v1 Lease leases yes no -
scheduling.k8s.io/v1 PriorityClass priorityclasses no no pc
apiextensions.k8s.io/v1 CustomResourceDefinition customresourcedefinitions no yes crd,crds
"""
# What a group's path has besides objects: only ever created.
REVIEWS = {
    "authorization.k8s.io/v1": ("SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    "authentication.k8s.io/v1": ("SelfSubjectReview", "selfsubjectreviews"),
}
SUBRESOURCES = {"pods": ("log", "portforward", "eviction"), "namespaces": ("finalize",)}


@dataclass(frozen=True)
class Kind:
    """One kind of object.

    Attributes:
        versions: the schema of each version that is served, the stored one first.
    """

    group: str
    name: str
    plural: str
    namespaced: bool
    has_status: bool
    versions: Mapping[str, Schema] = field(repr=False, compare=False)
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.group, self.plural

    @property
    def resource(self) -> str:
        """As messages name it: `pods`, `rayservices.ray.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def is_custom(self) -> bool:
        return "." in self.group and not self.group.endswith(".k8s.io")

    @property
    def schema(self) -> Schema:
        """Of the stored version."""
        return next(iter(self.versions.values()))

    def api_version(self, version: str | None = None) -> str:
        version = version or next(iter(self.versions))
        return f"{self.group}/{version}" if self.group else version

    def titled(self, name: str) -> str:
        """An object of this kind as messages name it: `RayService.ray.io "a"`."""
        return f'{self.name}.{self.group} "{name}"' if self.group else f'{self.name} "{name}"'


def built_in(kubernetes: str) -> list[Kind]:
    """The built-in kinds of Kubernetes `kubernetes`, like "1.35"."""
    found = []
    for line in _BUILT_IN.split("\n"):
        if line:
            api_version, name, plural, namespaced, status, short = line.split()
            group, _, version = api_version.rpartition("/")
            schema = schemas.built_in(kubernetes, group, version, name)
            names = () if short == "-" else tuple(short.split(","))
            found.append(
                Kind(group, name, plural, namespaced == "yes", status == "yes", {version: schema}, names)
            )
    return found


def defined_by(crd: Json, kubernetes: str) -> Kind:
    """What a CustomResourceDefinition adds."""
    spec, names = crd["spec"], crd["spec"]["names"]
    served = sorted(
        (each for each in spec["versions"] if each["served"]), key=lambda each: not each["storage"]
    )
    return Kind(
        spec["group"],
        names["kind"],
        names["plural"],
        spec["scope"] == "Namespaced",
        any("status" in each.get("subresources", {}) for each in served),
        {each["name"]: schemas.custom(kubernetes, each["schema"]["openAPIV3Schema"]) for each in served},
        tuple(names.get("shortNames", ())),
        tuple(names.get("categories", ())),
    )
