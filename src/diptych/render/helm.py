"""Values for the Helm charts that a service needs: KubeRay's operator, and the EFA device plugin where need be."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diptych.catalog.instances import EKSCTL_EFA_FAMILIES
from diptych.render import names
from diptych.render.layout import WorkerGroup, worker_groups
from diptych.spec import Document


@dataclass(frozen=True)
class Release:
    """A chart and where it is installed. `version` is the chart's own; None where the document has it."""

    name: str
    namespace: str
    chart: str
    repository: str
    version: str | None = None


KUBERAY = Release(
    name="kuberay-operator",
    namespace="kuberay-operator",
    chart="kuberay-operator",
    repository="https://ray-project.github.io/kuberay-helm/",
)
EFA_PLUGIN = Release(
    name="diptych-efa-device-plugin",
    namespace="kube-system",
    chart="aws-efa-k8s-device-plugin",
    repository="https://aws.github.io/eks-charts",
    version="v0.5.30",
)

EFA_PLUGIN_IMAGE_TAG = "v0.5.20"
"""Below 0.5.10 it advertises 10 interfaces of a p6-b200, which has 8."""

# Accounts that hold EKS's images, where it is not the usual one; eksctl 0.230.0, `EKSResourceAccountID`.
_USUAL_ACCOUNT = "602401143452"
_ACCOUNTS = {
    "af-south-1": "877085696533",
    "ap-east-1": "800184023465",
    "ap-east-2": "533267051163",
    "ap-south-2": "900889452093",
    "ap-southeast-3": "296578399912",
    "ap-southeast-4": "491585149902",
    "ap-southeast-5": "151610086707",
    "ap-southeast-6": "333609536671",
    "ap-southeast-7": "121268973566",
    "ca-west-1": "761377655185",
    "cn-north-1": "918309763551",
    "cn-northwest-1": "961992271922",
    "eu-central-2": "900612956339",
    "eu-south-1": "590381155156",
    "eu-south-2": "455263428931",
    "il-central-1": "066635153087",
    "me-central-1": "759879836304",
    "me-south-1": "558608220178",
    "mx-central-1": "730335286997",
    "us-gov-east-1": "151742754352",
    "us-gov-west-1": "013241004608",
}


def kuberay_values(document: Document, watched: Sequence[str] = ()) -> dict[str, Any]:
    """Values for the chart `kuberay-operator` of the document's KubeRay version.

    The operator is on the system nodes, so that GPU nodes are for inference. It watches the service's namespace only
    and has rights there only (a Role in each watched namespace, which must exist before the chart is installed); with
    the chart's defaults it could make pods anywhere in the cluster. Its own namespace is another one: deleted
    together with the service, it would leave the RayService with a finalizer that nobody removes.

    Args:
        watched: namespaces that the installed release watches for other services; they stay watched.
    """
    return {
        "image": {"tag": f"v{document.kubernetes.kuberay_version}"},
        "nodeSelector": names.system_nodes(document),
        "singleNamespaceInstall": True,
        "watchNamespace": sorted({*watched, document.kubernetes.namespace}),
        # The chart's 100m is a limit too, which makes it slow when several clusters change at once.
        "resources": {
            "requests": {"cpu": "100m", "memory": "512Mi"},
            "limits": {"cpu": "1", "memory": "512Mi"},
        },
    }


def efa_plugin_values(document: Document) -> dict[str, Any] | None:
    """Values for the chart `aws-efa-k8s-device-plugin`; None where eksctl installs the plugin, or nobody needs it.

    eksctl's plugin (0.230.0) runs on the types of its own list only. On others `vpc.amazonaws.com/efa` never appears
    without this one. It has another name than eksctl's, which Helm would refuse to take over, and runs on the types
    that eksctl's leaves out: two plugins on one node would fight for one resource name.
    """
    missing = sorted({group.instance_type or "" for group in worker_groups(document) if _lacks_plugin(group)})
    if document.on != "eks" or not missing:
        return None
    return {
        "fullnameOverride": EFA_PLUGIN.name,
        "image": {
            "repository": f"{_registry(document.eks.region)}/eks/aws-efa-k8s-device-plugin",
            "tag": EFA_PLUGIN_IMAGE_TAG,
        },
        "supportedInstanceLabels": {"keys": ["node.kubernetes.io/instance-type"], "values": missing},
    }


def _lacks_plugin(group: WorkerGroup) -> bool:
    """The group's nodes have EFA and eksctl's plugin does not run on them; a type we don't know goes by its family."""
    if not group.size.efa or group.instance_type is None:
        return False
    if group.instance is not None:
        return not group.instance.efa_plugin_by_eksctl
    return group.instance_type.partition(".")[0] not in EKSCTL_EFA_FAMILIES


def _registry(region: str) -> str:
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"{_ACCOUNTS.get(region, _USUAL_ACCOUNT)}.dkr.ecr.{region}.{suffix}"
