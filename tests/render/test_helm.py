"""Values for Helm charts: keys that the charts have, pods where they belong, and no rights beyond what is needed."""

from typing import Any

import pytest

from diptych.catalog.instances import instance_types
from diptych.render import eksctl, helm
from diptych.render.inputs import Facts
from diptych.spec import Document

# The keys at the top of `helm-chart/kuberay-operator/values.yaml`, the same in 1.6.0 and 1.7.0 of those used here.
KUBERAY_KEYS = {
    *("nameOverride", "fullnameOverride", "componentOverride", "replicas", "image", "imagePullSecrets"),
    *("nodeSelector", "priorityClassName", "labels", "annotations", "affinity", "tolerations"),
    *("serviceAccount", "logging", "batchScheduler", "configuration", "featureGates", "metrics"),
    *("operatorCommand", "leaderElectionEnabled", "reconcileConcurrency", "kubeClient", "rbacEnable"),
    *("crNamespacedRbacEnable", "singleNamespaceInstall", "watchNamespace", "env", "resources"),
    *("livenessProbe", "readinessProbe", "podSecurityContext", "securityContext", "service"),
}
# And of `stable/aws-efa-k8s-device-plugin/values.yaml`, chart v0.5.30.
EFA_PLUGIN_KEYS = {
    *("image", "securityContext", "supportedInstanceLabels", "resources", "nodeSelector", "updateStrategy"),
    *("tolerations", "additionalPodAnnotations", "additionalPodLabels", "nameOverride", "fullnameOverride"),
    "imagePullSecrets",
}
WITHOUT_EKSCTLS_PLUGIN = sorted(
    each.name for each in instance_types().values() if each.has_efa and not each.efa_plugin_by_eksctl
)


def document(**fields: Any) -> Document:
    return Document.model_validate({"on": "eks", "model": "Qwen/Qwen3-8B", **fields})


def plugin(**fields: Any) -> dict[str, Any] | None:
    values = helm.efa_plugin_values(document(**fields))
    assert values is None or set(values) <= EFA_PLUGIN_KEYS
    return values


def test_the_operator_is_of_the_documents_version_on_the_system_nodes() -> None:
    values = helm.kuberay_values(document(kubernetes={"kuberay_version": "1.6.2"}))
    assert set(values) <= KUBERAY_KEYS
    assert values["image"] == {"tag": "v1.6.2"}
    groups = eksctl.cluster_config(document(), Facts())["managedNodeGroups"]
    holding = [group["name"] for group in groups if values["nodeSelector"].items() <= group["labels"].items()]
    assert holding == ["system"]


def test_on_another_cluster_the_operator_is_on_the_nodes_that_the_document_names() -> None:
    named = document(on="kubernetes", kubernetes={"head_selector": {"pool": "cpu"}})
    assert helm.kuberay_values(named)["nodeSelector"] == {"pool": "cpu"}
    assert helm.kuberay_values(document(on="kubernetes"))["nodeSelector"] == {}


def test_the_operator_has_rights_in_the_namespaces_of_services_only() -> None:
    values = helm.kuberay_values(document(kubernetes={"namespace": "inference"}), ["other", "inference"])
    assert values["singleNamespaceInstall"] is True
    assert values["watchNamespace"] == ["inference", "other"]
    assert helm.KUBERAY.namespace not in values["watchNamespace"]


@pytest.mark.parametrize("instance_type", WITHOUT_EKSCTLS_PLUGIN)
def test_a_type_that_eksctls_plugin_leaves_out_gets_the_charts(instance_type: str) -> None:
    values = plugin(nodes={"instance_type": instance_type})
    assert values is not None
    assert values["supportedInstanceLabels"]["values"] == [instance_type]


@pytest.mark.parametrize("instance_type", ["g6.8xlarge", "g6.xlarge", "p5.48xlarge", "p5en.48xlarge"])
def test_other_types_get_none_from_us(instance_type: str) -> None:
    assert plugin(nodes={"instance_type": instance_type}) is None


@pytest.mark.parametrize(("instance_type", "ours"), [("p9.48xlarge", True), ("g6e.96xlarge", False)])
def test_a_type_that_nobody_knows_goes_by_its_family(instance_type: str, ours: bool) -> None:
    fields = {"nodes": {"instance_type": instance_type}}
    assert plugin(**fields) is None  # nobody asks for EFA
    phases = {phase: {"resources": {"efa": 4}} for phase in ("prefill", "decode")}
    assert (plugin(**fields, **phases) is not None) == ours


def test_it_never_runs_where_eksctls_plugin_runs_nor_under_its_name() -> None:
    values = plugin(
        prefill={"nodes": {"instance_type": "p6-b200.48xlarge"}},
        decode={"nodes": {"instance_type": "g6e.8xlarge"}},
    )
    assert values is not None
    assert values["supportedInstanceLabels"] == {
        "keys": ["node.kubernetes.io/instance-type"],
        "values": ["p6-b200.48xlarge"],
    }
    assert values["fullnameOverride"] != "aws-efa-k8s-device-plugin"
    major, minor, patch = (int(part) for part in values["image"]["tag"].removeprefix("v").split("."))
    assert (major, minor, patch) >= (0, 5, 10)  # below, it counts 10 interfaces on p6-b200


@pytest.mark.parametrize(
    ("region", "registry"),
    [
        ("us-east-2", "602401143452.dkr.ecr.us-east-2.amazonaws.com"),
        ("eu-south-2", "455263428931.dkr.ecr.eu-south-2.amazonaws.com"),
        ("cn-north-1", "918309763551.dkr.ecr.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_the_plugins_image_comes_from_the_region(region: str, registry: str) -> None:
    values = plugin(eks={"region": region}, nodes={"instance_type": "g7e.8xlarge"})
    assert values is not None
    assert values["image"]["repository"] == f"{registry}/eks/aws-efa-k8s-device-plugin"


def test_another_cluster_keeps_its_own_plugins() -> None:
    assert plugin(on="kubernetes", nodes={"instance_type": "p6-b200.48xlarge"}) is None
