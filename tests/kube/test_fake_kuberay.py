"""The scripted cluster: scheduler, kubelets and KubeRay behave as the real ones are known to (T3 to T7)."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fakes.kubernetes import Behaviour, FakeKubernetes, KubeRay, Serve, install_operator

Json = dict[str, Any]
GPU = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}
FINALIZER = "ray.io/rayservice-finalizer"
SERVE = "applications:\n- name: llm\n  deployments: [{name: prefill}, {name: decode}]\n"


def pod(image: str = "ray:2.60", **resources: str) -> Json:
    return {"spec": {"containers": [{"name": "ray", "image": image, "resources": {"limits": resources}}]}}


def service(replicas: int = 1, image: str = "ray:2.60", strategy: str = "None", **annotations: str) -> Json:
    groups = [
        {
            "groupName": name,
            "replicas": replicas,
            "minReplicas": replicas,
            "maxReplicas": replicas,
            "rayStartParams": {},
            "template": pod(image, **{"nvidia.com/gpu": "1"}),
        }
        for name in ("prefill", "decode")
    ]
    head = {"rayStartParams": {}, "template": pod(image, cpu="1")}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "llm", "namespace": "default", "annotations": annotations},
        "spec": {
            "serveConfigV2": SERVE,
            "upgradeStrategy": {"type": strategy},
            "excludeHeadPodFromServeSvc": True,
            "rayClusterConfig": {"rayVersion": "2.60.0", "headGroupSpec": head, "workerGroupSpecs": groups},
        },
    }


@pytest.fixture
def api() -> Iterator[FakeKubernetes]:
    with FakeKubernetes() as found:
        install_operator(found)
        for name in ("gpu-1", "gpu-2"):
            found.add_node(name, GPU)
        yield found


@pytest.fixture
def cluster(api: FakeKubernetes) -> Iterator[KubeRay]:
    with KubeRay(api, time_scale=0.001) as found:
        yield found


def until(look: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What `look` finds, once it finds something."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)
    return found


def status(api: FakeKubernetes) -> Json:
    return (api.get("RayService", "llm", "default") or {}).get("status", {})


def ready(api: FakeKubernetes) -> Json:
    found = status(api).get("conditions", [])
    return next((each for each in found if each["type"] == "Ready"), {"status": "", "reason": ""})


def is_up(api: FakeKubernetes) -> bool:
    return ready(api)["status"] == "True"


def pods(api: FakeKubernetes, node_type: str) -> list[Json]:
    found = api.all("Pod", "default")
    return [each for each in found if each["metadata"]["labels"].get("ray.io/node-type") == node_type]


def events(api: FakeKubernetes, reason: str) -> list[str]:
    return [each["message"] for each in api.all("Event") if each["reason"] == reason]


@pytest.mark.report("T4")
@pytest.mark.report("T5")
@pytest.mark.report("T6")
def test_everything_is_pending_until_it_serves(api: FakeKubernetes, cluster: KubeRay) -> None:
    cluster.held = {"load"}
    api.put(service())
    apps = until(lambda: status(api).get("pendingServiceStatus", {}).get("applicationStatuses"))
    until(lambda: [each["status"]["phase"] for each in pods(api, "worker")] == ["Running", "Running"])
    assert apps["llm"]["status"] == "DEPLOYING"
    assert "rayClusterName" not in status(api)["activeServiceStatus"]
    conditions = pods(api, "worker")[0]["status"]["conditions"]
    assert {each["type"]: each["status"] for each in conditions}["Ready"] == "False"
    assert api.get("Service", "llm-serve-svc", "default") is None
    name = status(api)["pendingServiceStatus"]["rayClusterName"]
    assert api.get("Service", f"{name}-head-svc", "default") is not None
    cluster.held = set()
    until(lambda: is_up(api))
    found = status(api)
    assert found["activeServiceStatus"]["rayClusterName"] == name
    assert found["activeServiceStatus"]["applicationStatuses"]["llm"]["status"] == "RUNNING"
    assert (found["observedGeneration"], found["numServeEndpoints"]) == (1, 2)
    assert api.get("Service", "llm-serve-svc", "default") is not None


def test_a_pod_that_fits_nowhere_is_told_why(api: FakeKubernetes, cluster: KubeRay) -> None:
    api.add_node("tainted", GPU, taints=[{"key": "nvidia.com/gpu", "value": "", "effect": "NoSchedule"}])
    api.put(service(replicas=2))
    said = until(lambda: events(api, "FailedScheduling"))[0]
    assert said == (
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient nvidia.com/gpu. no new claims to "
        "deallocate, preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption "
        "victims found for incoming pod."
    )
    api.add_node("gpu-3", GPU)
    api.add_node("gpu-4", GPU)
    until(lambda: is_up(api))


def test_an_image_that_is_missing_is_backed_off_from(api: FakeKubernetes, cluster: KubeRay) -> None:
    cluster.missing_images = {"ray:*"}
    api.put(service())
    until(lambda: "ImagePullBackOff" in str(pods(api, "head")))
    assert any("not found" in each for each in events(api, "Failed"))
    cluster.missing_images = set()
    until(lambda: is_up(api))


def test_a_container_that_ends_begins_again(api: FakeKubernetes, cluster: KubeRay) -> None:
    cluster.containers["*-head/ray"] = Behaviour(["no memory"], exit_code=137, reason="OOMKilled", times=1)
    api.put(service())
    until(lambda: "CrashLoopBackOff" in str(pods(api, "head")))
    until(lambda: is_up(api))
    found = pods(api, "head")[0]["status"]["containerStatuses"][0]
    assert (found["restartCount"], found["lastState"]["terminated"]["reason"]) == (1, "OOMKilled")
    assert [line.text for line in api.logs["default", pods(api, "head")[0]["metadata"]["name"], "ray", True]]


def test_a_pod_waits_for_the_secret_that_it_mounts(api: FakeKubernetes, cluster: KubeRay) -> None:
    thing = service()
    template = thing["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]
    template["spec"]["volumes"] = [{"name": "keys", "secret": {"secretName": "keys"}}]
    api.put(thing)
    assert 'secret "keys" not found' in until(lambda: events(api, "FailedMount"))[0]
    api.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}})
    until(lambda: is_up(api))


def test_serve_says_what_failed(api: FakeKubernetes, cluster: KubeRay) -> None:
    cluster.serve = Serve("DEPLOY_FAILED", "failed 3 times", {"decode": ("DEPLOY_FAILED", "ValueError: no")})
    api.put(service())
    app = until(
        lambda: (
            "DEPLOY_FAILED" in str(status(api)) and status(api)["pendingServiceStatus"]["applicationStatuses"]
        )
    )
    assert app["llm"]["message"] == "failed 3 times"
    assert app["llm"]["serveDeploymentStatuses"]["decode"]["message"] == "ValueError: no"


@pytest.mark.report("T3")
def test_the_finalizer_goes_only_while_the_operator_runs(api: FakeKubernetes, cluster: KubeRay) -> None:
    api.put(service())
    until(lambda: is_up(api))
    deployment = api.get("Deployment", "kuberay-operator", "kuberay-system") or {}
    api.put({**deployment, "spec": {**deployment["spec"], "replicas": 0}})
    until(lambda: not api.all("Pod", "kuberay-system"))
    api.delete("RayService", "llm", "default")
    time.sleep(0.2)
    found = api.get("RayService", "llm", "default")
    assert found and found["metadata"]["finalizers"] == [FINALIZER]
    assert api.all("RayCluster")
    found["metadata"]["finalizers"] = []
    api.put(found)
    until(lambda: not pods(api, "worker"))
    assert not api.all("RayCluster")


def test_an_operator_before_1_6_2_has_no_finalizer(api: FakeKubernetes, cluster: KubeRay) -> None:
    install_operator(api, version="1.6.1")
    time.sleep(0.2)
    api.put(service())
    until(lambda: is_up(api))
    assert "finalizers" not in (api.get("RayService", "llm", "default") or {})["metadata"]


def test_an_operator_leaves_other_namespaces_alone(api: FakeKubernetes, cluster: KubeRay) -> None:
    install_operator(api, watch=["elsewhere"])
    api.put(service())
    time.sleep(0.3)
    assert not status(api)
    install_operator(api)
    until(lambda: is_up(api))


@pytest.mark.report("T7")
def test_an_edit_without_an_upgrade_does_nothing(api: FakeKubernetes, cluster: KubeRay) -> None:
    api.put(service())
    until(lambda: is_up(api))
    before = [each["metadata"]["uid"] for each in api.all("Pod", "default")]
    api.put(service(image="ray:2.61"))
    until(lambda: status(api)["observedGeneration"] == 2)
    time.sleep(0.1)
    assert [each["metadata"]["uid"] for each in api.all("Pod", "default")] == before
    name = status(api)["activeServiceStatus"]["rayClusterName"]
    api.delete("RayCluster", name, "default")
    until(lambda: is_up(api) and status(api)["activeServiceStatus"]["rayClusterName"] != name)
    assert "ray:2.61" in str(pods(api, "head"))


@pytest.mark.report("T7")
@pytest.mark.report("E1")
def test_an_upgrade_wants_a_second_cluster_and_waits_for_gpus(api: FakeKubernetes, cluster: KubeRay) -> None:
    api.put(service(strategy="NewCluster"))
    until(lambda: is_up(api))
    api.put(service(image="ray:2.61", strategy="NewCluster"))
    until(lambda: events(api, "FailedScheduling"))
    assert len(api.all("RayCluster")) == 2
    upgrade = {each["type"]: each["status"] for each in status(api)["conditions"]}
    assert upgrade["UpgradeInProgress"] == "True"
    for name in ("gpu-3", "gpu-4"):
        api.add_node(name, GPU)
    until(lambda: "ray:2.61" in str(api.all("RayCluster")) and len(api.all("RayCluster")) == 1)


def test_replicas_and_the_serve_config_change_in_place(api: FakeKubernetes, cluster: KubeRay) -> None:
    api.put(service(replicas=1))
    until(lambda: is_up(api))
    for name in ("gpu-3", "gpu-4"):
        api.add_node(name, GPU)
    api.put(service(replicas=2))
    until(lambda: len(pods(api, "worker")) == 4 and status(api)["numServeEndpoints"] == 4)
    assert len(api.all("RayCluster")) == 1


@pytest.mark.report("E12")
def test_a_finalizer_that_stays_holds_the_cluster(api: FakeKubernetes, cluster: KubeRay) -> None:
    cluster.cluster_finalizer, cluster.held = "ray.io/gcs-ft-redis-cleanup-finalizer", {"finalize"}
    api.put(service())
    until(lambda: is_up(api))
    api.delete("RayService", "llm", "default")
    until(lambda: not pods(api, "worker"))
    assert api.get("RayService", "llm", "default") and api.all("RayCluster")
    cluster.held = set()
    until(lambda: not api.all("RayCluster") and not api.all("RayService"))


def test_an_initialization_that_takes_too_long_is_given_up(api: FakeKubernetes, cluster: KubeRay) -> None:
    cluster.held = {"load"}
    api.put(service(**{"ray.io/initializing-timeout": "10m"}))
    until(lambda: ready(api)["reason"] == "InitializingTimeout")
    assert "within the configured timeout of 600s" in ready(api)["message"]
    until(lambda: not api.all("RayCluster"))


def test_an_invalid_service_is_refused_by_the_operator(api: FakeKubernetes, cluster: KubeRay) -> None:
    cluster.invalid = "workerGroupSpecs[0] is wrong"
    api.put(service())
    until(lambda: ready(api)["reason"] == "ValidationFailed")
    assert not api.all("RayCluster")


def test_a_pod_alone_runs_to_its_end(api: FakeKubernetes, cluster: KubeRay) -> None:
    cluster.containers["probe/*"] = Behaviour(["HTTP 403"], exit_code=3)
    alone = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": "default"}}
    api.put({**alone, "spec": {**pod()["spec"], "restartPolicy": "Never"}})
    until(lambda: (api.get("Pod", "probe", "default") or {})["status"]["phase"] == "Failed")
    found = (api.get("Pod", "probe", "default") or {})["status"]["containerStatuses"][0]
    assert found["state"]["terminated"]["exitCode"] == 3
    assert [line.text for line in api.logs["default", "probe", "ray", False]] == ["HTTP 403"]


def test_pods_go_with_their_node(api: FakeKubernetes, cluster: KubeRay) -> None:
    api.put(service())
    until(lambda: is_up(api))
    api.delete("Node", "gpu-2")
    until(lambda: events(api, "FailedScheduling"))
    assert status(api)["numServeEndpoints"] < 2
