"""What is not ours in a cluster is told from what is, and no option lets it go."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diptych.eks import workloads
from diptych.errors import ClusterError
from diptych.kube.connection import Cluster, Target, connect
from fakes.kubernetes import FakeKubernetes, crds


@pytest.fixture
def kubernetes() -> Iterator[FakeKubernetes]:
    with FakeKubernetes() as made:
        yield made


@pytest.fixture
def cluster(kubernetes: FakeKubernetes, tmp_path: Path) -> Iterator[Cluster]:
    with connect(Target(kubernetes.kubeconfig(tmp_path / "config"))) as there:
        yield there


def pod(name: str, namespace: str = "default", **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **meta},
        "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "image"}]},
        "status": {"phase": "Running"},
    }


OURS = {"labels": {"diptych.dev/service": "llm"}}
DAEMON = {
    "ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "logs", "uid": "0-1", "controller": True}
    ]
}


def test_pods_of_others_are_foreign_and_those_of_ours_of_daemon_sets_and_of_the_system_are_not(
    kubernetes: FakeKubernetes, cluster: Cluster
) -> None:
    kubernetes.put(pod("theirs"))
    kubernetes.put(pod("worker", **OURS))
    kubernetes.put(pod("logs-x7", **DAEMON))
    kubernetes.put(pod("coredns-1", "kube-system"))
    kubernetes.put({**pod("finished"), "status": {"phase": "Succeeded"}})
    assert [str(each) for each in workloads.on_nodes(cluster, ["node-1"])] == [
        "pod default/theirs on node-1 (not ours)"
    ]
    assert workloads.on_nodes(cluster, ["node-2"]) == []


def test_claims_volumes_and_load_balancers_of_others_are_in_a_clusters_way(
    kubernetes: FakeKubernetes, cluster: Cluster
) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    kubernetes.put(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "default"},
            "spec": claim,
        }
    )
    for name, kind, meta in (
        ("web", "LoadBalancer", {}),
        ("inner", "ClusterIP", {}),
        ("llm-lb", "LoadBalancer", OURS),
    ):
        kubernetes.put(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name, "namespace": "default", **meta},
                "spec": {"type": kind, "ports": [{"port": 80}]},
            }
        )
    found = [str(each) for each in workloads.in_cluster(cluster, "llm")]
    assert found == [
        "PersistentVolumeClaim default/data (it holds data)",
        "Service default/web (it has a load balancer)",
    ]


def ray(kind: str, name: str, **meta: Any) -> dict[str, Any]:
    """Something of KubeRay's, with what its schema asks for."""
    container = {"name": "ray", "image": "image"}
    head = {"rayStartParams": {}, "template": {"spec": {"containers": [container]}}}
    cluster = {"headGroupSpec": head}
    spec: dict[str, Any] = {"RayService": {"rayClusterConfig": cluster}, "RayCluster": cluster}.get(kind, {})
    about = {"name": name, "namespace": "default", **meta}
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": about, "spec": spec}


SECOND = {"labels": {"diptych.dev/service": "second", "app.kubernetes.io/managed-by": "diptych"}}


def test_other_services_of_diptych_and_all_that_ray_runs_are_in_a_clusters_way(
    kubernetes: FakeKubernetes, cluster: Cluster
) -> None:
    for crd in crds():
        kubernetes.put(crd)
    made = {
        "ownerReferences": [{"apiVersion": "ray.io/v1", "kind": "RayService", "name": "second", "uid": "0-2"}]
    }
    kubernetes.put(ray("RayService", "llm", **OURS))
    kubernetes.put(ray("RayService", "second", **SECOND))
    kubernetes.put(ray("RayCluster", "second-x7", **made))
    kubernetes.put(ray("RayCluster", "theirs"))
    kubernetes.put(ray("RayJob", "training"))
    kubernetes.put(pod("worker", **OURS))
    kubernetes.put(pod("second-worker", **SECOND))
    assert [str(each) for each in workloads.in_cluster(cluster, "llm")] == [
        "pod default/second-worker (of the service second)",
        "RayService default/second (of the service second)",
        "RayCluster default/theirs (not ours)",
        "RayJob default/training (not ours)",
    ]


def test_a_namespace_is_the_systems_by_its_whole_name(kubernetes: FakeKubernetes, cluster: Cluster) -> None:
    for namespace in ("aws-team", "eks-demo", "amazon-shop", "amazon-cloudwatch", "kuberay-operator"):
        kubernetes.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        kubernetes.put(pod("main", namespace))
    assert [each.what for each in workloads.on_nodes(cluster, ["node-1"])] == [
        "pod amazon-shop/main on node-1",
        "pod aws-team/main on node-1",
        "pod eks-demo/main on node-1",
    ]


def test_what_is_foreign_is_listed_and_refused() -> None:
    found = [workloads.Foreign(f"pod default/web-{number}", "not ours") for number in range(15)]
    with pytest.raises(ClusterError, match="Removing llm would take away") as refused:
        workloads.refuse(found, "Removing llm")
    assert "pod default/web-0 (not ours)" in refused.value.message and "and 3 more" in refused.value.message
    assert "no option overrides this" in refused.value.hint
    workloads.refuse([], "Removing llm")


@pytest.mark.report("I2")
def test_a_disruption_budget_that_lets_nothing_go_is_named(
    kubernetes: FakeKubernetes, cluster: Cluster
) -> None:
    for name, allowed in (("strict", 0), ("lenient", 1)):
        kubernetes.put(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": name, "namespace": "kube-system"},
                "spec": {"maxUnavailable": allowed, "selector": {"matchLabels": {"app": name}}},
                "status": {
                    "disruptionsAllowed": allowed,
                    "expectedPods": 1,
                    "currentHealthy": 1,
                    "desiredHealthy": 1,
                },
            }
        )
    assert workloads.blocking_budgets(cluster) == ["kube-system/strict"]
