"""The step `service`: applied, watched until it is ready, proven, changed, and taken down."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from diptych.errors import ClusterError
from diptych.kube import service
from diptych.kube.job import Job
from diptych.kube.objects import unix_time
from fakes import probed
from fakes.kubernetes import Behaviour, Serve
from fakes.provable_endpoint import probing
from kube.jobs import document_with, told
from kube.world import NAMESPACE, World, node

CODE = "ConfigMap ray-llm-serving-"


def up(here: World, job: Job) -> str:
    with here.cluster(job) as cluster:
        return service.up(job, cluster)


def down(here: World, job: Job) -> str:
    with here.cluster(job) as cluster:
        return service.down(job, cluster)


def uid(here: World, kind: str = "RayService", name: str = "ray-llm") -> str:
    found = here.fake.get(kind, name, NAMESPACE)
    assert found is not None
    return str(found["metadata"]["uid"])


def changed(job: Job, **sections: Any) -> Job:
    return replace(job, document=document_with(job.document, **sections))


def test_it_comes_up_is_proven_and_goes_again(here: World) -> None:
    job = here.job()
    assert up(here, job).startswith("a KV transfer is proven: 160 tokens, 12.0 MiB in")
    with here.cluster(job) as cluster:
        assert service.look(job, cluster).state == "ready"
        assert service.plan(job, cluster).kind == "none"
    asked = [body["tokens"] for path, _, body in here.endpoint.requests if path.endswith("/probe")]
    assert asked == [[160]]
    down(here, job)
    assert here.left() == [] and here.fake.get("Namespace", NAMESPACE) is None
    with here.cluster(job) as cluster:
        assert service.look(job, cluster).state == "absent"


def test_a_second_up_changes_nothing_and_proves_again(here: World) -> None:
    job = here.job()
    up(here, job)
    before, left = here.fake.get("RayService", "ray-llm", NAMESPACE), here.left()
    assert "KV transfer" in up(here, job)
    after = here.fake.get("RayService", "ray-llm", NAMESPACE)
    assert before is not None and after is not None
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["spec"] == before["spec"] and here.left() == left


def test_what_happens_meanwhile_is_told_in_words(here: World) -> None:
    job = here.job()
    up(here, job)
    texts = told(job).texts()
    assert texts[0] == "The service is made." and texts[-1] == "proving a KV transfer"
    assert any("ray-llm" in text and len(text) > 20 for text in texts[1:-1])


@pytest.mark.report("T7")
def test_a_change_of_ray_serves_config_is_made_in_place(here: World) -> None:
    job = here.job()
    up(here, job)
    before = uid(here), here.left()
    job = changed(job, orchestrator={"recovery_backlog_s": 7})
    up(here, job)
    assert (uid(here), here.left()) == before
    assert "Changes in place: serveConfigV2." in told(job).texts()


@pytest.mark.report("T7")
def test_changed_pods_mean_that_the_service_is_made_anew(here: World) -> None:
    """With `upgradeStrategy: None` KubeRay would ignore the edit."""
    job = here.job()
    up(here, job)
    before = uid(here)
    job = changed(job, decode={"resources": {"cpus": 4}})
    up(here, job)
    assert uid(here) != before
    assert any(
        text.startswith("Restarts the whole service for changed pods of decode: ") and "ray-worker" in text
        for text in told(job).texts()
    )
    (pod,) = [each for each in here.fake.all("Pod", NAMESPACE) if "decode-worker" in each["metadata"]["name"]]
    assert pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "4"


@pytest.mark.report("E1")
def test_a_second_cluster_is_refused_where_its_gpus_are_not_free(here: World) -> None:
    job = here.job(kubernetes={"upgrade": "new-cluster"})
    up(here, job)
    before = uid(here), uid(here, "RayCluster", here.fake.all("RayCluster", NAMESPACE)[0]["metadata"]["name"])
    job = changed(job, decode={"resources": {"cpus": 4}})
    with pytest.raises(ClusterError, match=r"A second Ray cluster takes over.*GPUs are missing") as caught:
        up(here, job)
    assert "--replace" in caught.value.hint
    (cluster,) = here.fake.all("RayCluster", NAMESPACE)
    assert (uid(here), cluster["metadata"]["uid"]) == before


@pytest.mark.report("E1")
def test_told_to_it_ends_the_service_first(here: World) -> None:
    job = here.job(kubernetes={"upgrade": "new-cluster"})
    up(here, job)
    before = uid(here)
    up(here, replace(changed(job, decode={"resources": {"cpus": 4}}), replace=True))
    assert uid(here) != before and len(here.fake.all("RayCluster", NAMESPACE)) == 1


@pytest.mark.report("E1")
def test_with_free_gpus_a_second_cluster_takes_over(here: World) -> None:
    for name, gpus in (("gpu-c", 1), ("gpu-d", 1), ("system-b", 0)):
        here.fake.put(node(name, gpus))
    job = here.job(kubernetes={"upgrade": "new-cluster"})
    up(here, job)
    before, old = uid(here), here.fake.all("RayCluster", NAMESPACE)[0]["metadata"]["name"]
    up(here, changed(job, decode={"resources": {"cpus": 4}}))
    found = here.fake.get("RayService", "ray-llm", NAMESPACE)
    assert found is not None and found["metadata"]["uid"] == before
    assert found["status"]["activeServiceStatus"]["rayClusterName"] != old


def test_other_code_of_ours_leaves_no_old_code_behind(here: World) -> None:
    job = here.job()
    up(here, job)
    newer = replace(job, facts=replace(job.facts, serving_archive=b"newer code"))
    up(here, newer)
    assert sum(each.startswith(CODE) for each in here.left()) == 1


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (lambda here: here.kuberay.missing_images.add("*"), "image"),
        (lambda here: setattr(here.kuberay, "invalid", "spec.x is wrong"), "spec.x is wrong"),
        (
            lambda here: (
                here.kuberay.seconds.update(load=10_000)
                or setattr(here.kuberay, "initializing_timeout_s", 60)
            ),
            "[Tt]imeout|time",
        ),
    ],
    ids=["no such image", "invalid", "initializing timeout"],
)
def test_what_time_does_not_mend_ends_the_waiting(
    here: World, trouble: Callable[[World], None], words: str
) -> None:
    trouble(here)
    job = replace(here.job(), timeout_s=60)
    began = time.monotonic()
    with pytest.raises(ClusterError, match=words):
        up(here, job)
    assert time.monotonic() - began < 30


def test_what_kuberay_gave_up_is_made_anew_by_the_next_up(here: World) -> None:
    here.kuberay.held.add("load")
    here.kuberay.initializing_timeout_s = 100
    job = here.job()
    with pytest.raises(ClusterError):
        up(here, job)
    before = uid(here)
    here.kuberay.held.clear()
    here.kuberay.initializing_timeout_s = None
    assert "KV transfer" in up(here, job)
    assert uid(here) != before


def test_a_kind_that_the_cluster_lacks_is_told_with_what_brings_it(bare: World) -> None:
    with pytest.raises(
        ClusterError, match=r"does not know objects of the kind RayService \(ray.io/v1\)"
    ) as caught:
        up(bare, bare.job())
    assert "diptych up --step operator" in caught.value.hint


@pytest.mark.report("E19")
def test_a_deployment_that_fails_is_told_with_its_exception(here: World) -> None:
    message = "The deployment failed to start 3 times in a row. ModuleNotFoundError: No module named 'nixl'"
    here.kuberay.serve = Serve("DEPLOY_FAILED", "failed", {"Prefill:*": ("UNHEALTHY", message)})
    with pytest.raises(ClusterError, match="No module named 'nixl'"):
        up(here, replace(here.job(), timeout_s=5))


def test_a_deadline_names_what_was_last_in_the_way(here: World) -> None:
    here.kuberay.held.add("load")
    with pytest.raises(ClusterError, match=r"service: not there after \d s\. .*Prefill"):
        up(here, replace(here.job(), timeout_s=3))


@pytest.mark.report("T8")
def test_it_is_not_up_where_the_kv_cache_takes_another_way(here: World) -> None:
    here.endpoint.behaviour.probe = probing(probed.tcp_for_efa)
    with pytest.raises(ClusterError, match="transport is not proven"):
        up(here, here.job())


def test_a_service_of_that_name_that_is_somebody_elses_stays(here: World) -> None:
    job = here.job()
    up(here, job)
    theirs = here.fake.get("RayService", "ray-llm", NAMESPACE)
    assert theirs is not None
    del theirs["metadata"]["labels"]
    here.fake.put(theirs)
    with pytest.raises(
        ClusterError, match="RayService inference/ray-llm is there already, and Diptych did not make it"
    ):
        up(here, job)
    down(here, job)
    assert here.fake.get("RayService", "ray-llm", NAMESPACE) is not None
    assert any("is not Diptych's and stays" in text for text in told(job).said)


def test_a_field_that_somebody_changed_is_named_and_not_overwritten(here: World) -> None:
    job = here.job()
    up(here, job)
    theirs = here.fake.get("RayService", "ray-llm", NAMESPACE)
    assert theirs is not None
    theirs["spec"]["rayClusterDeletionDelaySeconds"] = 5
    here.fake.put(theirs, manager="kubectl-edit")
    with pytest.raises(ClusterError, match=r"changed by kubectl-edit: .*rayClusterDeletionDelaySeconds"):
        up(here, job)


@pytest.mark.report("T3")
def test_without_an_operator_the_finalizer_is_taken_away(here: World) -> None:
    job = here.job()
    up(here, job)
    here.fake.delete("Deployment", "kuberay-operator", "kuberay-system")
    down(here, job)
    assert here.left() == []
    assert any("ray.io/rayservice-finalizer is taken away" in text for text in told(job).said)


@pytest.mark.report("T3")
def test_with_one_the_finalizer_is_left_to_it(here: World) -> None:
    job = here.job()
    up(here, job)
    before = len(here.fake.requests)
    down(here, job)
    patched = [each.path for each in here.fake.requests[before:] if each.method == "PATCH"]
    assert patched == []


@pytest.mark.report("E12")
@pytest.mark.report("I6")
def test_what_does_not_go_is_named_with_its_finalizer(here: World) -> None:
    job = here.job()
    here.kuberay.cluster_finalizer = "ray.io/gcs-ft-redis-cleanup-finalizer"
    up(here, job)
    here.kuberay.held.add("finalize")
    with pytest.raises(ClusterError, match=r"ray\.io/(gcs-ft-redis-cleanup|rayservice)-finalizer|RayCluster"):
        down(here, replace(job, timeout_s=2))
    here.kuberay.held.clear()
    down(here, job)
    assert here.left() == []


def test_down_twice_is_down(here: World) -> None:
    job = here.job()
    up(here, job)
    down(here, job)
    assert down(here, job) == "nothing is there"


def test_what_others_put_into_the_namespace_stays_with_it(here: World) -> None:
    job = here.job()
    up(here, job)
    here.fake.put(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "namespace": NAMESPACE}}
    )
    down(here, job)
    assert here.left() == ["ConfigMap theirs"]
    assert told(job).said == [f"The namespace {NAMESPACE} stays; it holds ConfigMap theirs."]


def test_a_namespace_that_was_there_before_stays(here: World) -> None:
    here.fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    job = here.job()
    up(here, job)
    down(here, job)
    assert here.left() == [] and here.fake.get("Namespace", NAMESPACE) is not None


def test_an_up_after_a_down_that_was_left_in_the_middle_waits_for_its_end(here: World) -> None:
    job = here.job()
    up(here, job)
    before = uid(here)
    here.kuberay.held.add("terminate")
    with pytest.raises(ClusterError):
        down(here, replace(job, timeout_s=0.5))
    here.kuberay.held.clear()
    up(here, job)
    assert uid(here) != before


def test_without_a_prometheus_operator_monitoring_is_left_out_and_told(here: World) -> None:
    job = here.job(monitoring=True)
    up(here, job)
    assert any("There is no Prometheus operator" in text for text in told(job).said)
    assert "ConfigMap ray-llm-board" in here.left()


def test_a_dry_run_tells_all_and_changes_nothing(here: World) -> None:
    job = here.job(dry_run=True)
    up(here, job)
    assert here.fake.get("Namespace", NAMESPACE) is None
    assert f"would apply Namespace {NAMESPACE}" in told(job).said
    assert told(job).said[-1] == f"would apply RayService {NAMESPACE}/ray-llm"
    up(here, replace(job, dry_run=False))
    before = here.left()
    down(here, job)
    assert here.left() == before
    assert f"would delete RayService {NAMESPACE}/ray-llm" in told(job).said


class TestAccess:
    """Whether the model can be read is found out before GPUs wait for it."""

    @pytest.fixture
    def gated(self, here: World, monkeypatch: pytest.MonkeyPatch) -> Job:
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        model = {"source": "meta-llama/Llama-3.1-8B-Instruct", "name": "qwen3.5-9b", "token_env": "HF_TOKEN"}
        return here.job(model=model)

    @pytest.mark.report("G2")
    def test_is_asked_from_inside_a_pod_of_the_workers_account(self, here: World, gated: Job) -> None:
        up(here, gated)
        pods = [
            each.body
            for each in here.fake.requests
            if each.path.endswith("/pods/ray-llm-access") and each.method == "PATCH"
        ]
        (spec,) = [each["spec"] for each in pods]
        container = spec["containers"][0]
        assert container["command"][3:5] == ["meta-llama/Llama-3.1-8B-Instruct", "--check"]
        assert spec["serviceAccountName"] == "ray-llm" and spec["nodeSelector"] == {"pool": "system"}
        assert {
            "name": "HF_TOKEN",
            "valueFrom": {"secretKeyRef": {"name": "ray-llm-hf-token", "key": "token"}},
        } in container["env"]
        assert "hf_secret" not in str(pods)
        assert here.fake.get("Pod", "ray-llm-access", NAMESPACE) is None

    @pytest.mark.report("G2")
    def test_that_is_missing_is_told_before_anything_waits_for_gpus(self, here: World, gated: Job) -> None:
        said = "stage: meta-llama/Llama-3.1-8B-Instruct is gated: accept its terms on its page and set model.token_*"
        here.kuberay.containers["ray-llm-access/*"] = Behaviour([said], exit_code=1)
        with pytest.raises(
            ClusterError, match=r"A pod of the service can't read meta-llama.*is gated"
        ) as caught:
            up(here, gated)
        assert "Accept the model's terms" in caught.value.hint
        assert here.fake.get("RayService", "ray-llm", NAMESPACE) is None
        pod = here.fake.get("Pod", "ray-llm-access", NAMESPACE)
        assert pod is None or "deletionTimestamp" in pod["metadata"]

    def test_to_a_bucket_is_asked_too(self, here: World) -> None:
        here.kuberay.containers["ray-llm-access/*"] = Behaviour(
            ["stage: s3://weights/tiny can't be read with the rights of this pod: AccessDenied"], exit_code=1
        )
        job = here.job(model={"source": "s3://weights/tiny", "name": "qwen3.5-9b"})
        with pytest.raises(ClusterError, match="AccessDenied") as caught:
            up(here, job)
        assert "s3:GetObject" in caught.value.hint and "ray-llm" in caught.value.hint

    def test_of_an_open_model_is_not_asked(self, here: World) -> None:
        up(here, here.job())
        assert not any("ray-llm-access" in each.path for each in here.fake.requests)


def test_what_is_up_is_told_with_its_pods_and_how_it_is(here: World) -> None:
    job = here.job()
    with here.cluster(job) as cluster:
        assert service.what_is_up(job, cluster) == "There is no RayService ray-llm."
        service.up(job, cluster)
        assert service.what_is_up(job, cluster) == "1 prefill and 1 decode (ready): All applications run."


def test_a_last_start_took_until_the_service_was_ready_and_no_longer_than_any_may(here: World) -> None:
    job = here.job()
    with here.cluster(job) as cluster:
        assert service.last_start_s(job, cluster) is None
        service.up(job, cluster)
        ready = here.fake.get("RayService", "ray-llm", NAMESPACE)
        made = here.fake.all("RayCluster", NAMESPACE)[0]["metadata"]["creationTimestamp"]
        assert ready is not None
        at = next(each for each in ready["status"]["conditions"] if each["type"] == "Ready")
        told, began = unix_time(at["lastTransitionTime"]), unix_time(made)
        assert told is not None and began is not None
        assert service.last_start_s(job, cluster) == told - began
        here.kuberay.held.add("operator")
        at["lastTransitionTime"] = "2099-01-01T00:00:00Z"
        here.fake.put(ready)
        assert service.last_start_s(job, cluster) is None


def test_gpus_are_missing_only_beside_others_pods(here: World) -> None:
    job = here.job()
    with here.cluster(job) as cluster:
        assert service.lacking(job, cluster) == ""
        service.up(job, cluster)
        assert service.lacking(job, cluster) == ""
        more = changed(job, decode={"num_replicas": 3})
        assert service.lacking(more, cluster) == "GPUs are missing: 2 for decode"
        other = changed(job, name="other")
        assert service.lacking(other, cluster) == "GPUs are missing: 1 for prefill, 1 for decode"
