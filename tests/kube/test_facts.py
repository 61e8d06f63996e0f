"""What `check` is told of a cluster: all that can be asked, and what could not."""

from pathlib import Path

from diptych.kube.connection import Target
from diptych.kube.facts import facts_of, gather
from fakes.kubernetes import install_operator
from kube.world import NAMESPACE, World


def test_nodes_operators_rights_and_versions_are_found(bare: World) -> None:
    install_operator(bare.fake, "kuberay-system", watch=["others"])
    job = bare.job()
    with bare.cluster(job) as cluster:
        found = facts_of(job.document, cluster)

    assert found.version == "1.35" and found.has_namespace is False
    nodes = {node.name: node for node in found.nodes or ()}
    assert (nodes["gpu-a"].gpus, nodes["gpu-a"].efa, nodes["gpu-a"].gpus_used) == (1, 1, 0)
    assert nodes["gpu-a"].cpu_millis == 31850 and nodes["system"].gpus == 0
    (operator,) = found.operators or ()
    assert operator.namespace == "kuberay-system" and operator.watches == ("others",) and not operator.ours
    assert found.denied == () and found.unasked == ()


def test_rights_that_are_missing_are_named(bare: World) -> None:
    bare.fake.denied |= {("create", "secrets"), ("create", "rayservices")}
    job = bare.job()
    with bare.cluster(job) as cluster:
        found = facts_of(job.document, cluster)

    assert {"create secrets", "create rayservices.ray.io"} <= {str(right) for right in found.denied}


def test_what_may_not_be_asked_is_told_and_the_rest_is_found(bare: World) -> None:
    bare.fake.denied.add(("list", "nodes"))
    job = bare.job()
    with bare.cluster(job) as cluster:
        found = facts_of(job.document, cluster)

    assert found.nodes is None and found.version == "1.35"
    assert any("nodes" in each.what for each in found.unasked)


def test_a_cluster_that_is_not_there_is_a_fact_too(bare: World, tmp_path: Path) -> None:
    found = gather(bare.job().document, Target(tmp_path / "none"))

    assert found.refused is not None and "no kubeconfig" in found.refused.why and found.nodes is None


def test_what_others_pods_have_is_counted_and_the_documents_own_is_not(bare: World) -> None:
    job = bare.job()
    for name, labels, namespace in (
        ("theirs", {}, "default"),
        ("ours", {"diptych.dev/service": "ray-llm"}, NAMESPACE),
    ):
        if namespace != "default":
            bare.fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        bare.fake.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, "labels": labels},
                "spec": {"nodeName": "gpu-a", "containers": [container]},
                "status": {"phase": "Running"},
            }
        )
    with bare.cluster(job) as cluster:
        found = facts_of(job.document, cluster)

    assert {node.name: node.gpus_used for node in found.nodes or ()}["gpu-a"] == 1
