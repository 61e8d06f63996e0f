"""What applying a document would do is told before: nothing, in place, a restart, or a second cluster's GPUs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diptych.kube.changes import Change, compare, lacking_gpus
from diptych.kube.job import Job
from diptych.render.rayservice import ray_service
from kube.jobs import document_with, job_for


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return job_for(tmp_path)


def service(job: Job, **sections: Any) -> dict[str, Any]:
    return ray_service(document_with(job.document, **sections) if sections else job.document, job.facts)


def test_what_is_not_there_is_made(job: Job) -> None:
    assert compare(None, service(job)).kind == "first"


def test_the_same_document_changes_nothing(job: Job) -> None:
    assert compare(service(job), service(job)) == Change("none")


@pytest.mark.report("T7")
def test_what_only_ray_serve_reads_is_changed_in_place(job: Job) -> None:
    changed = compare(service(job), service(job, orchestrator={"recovery_backlog_s": 7}))
    assert changed.kind == "in-place" and changed.what == ("serveConfigV2",)


@pytest.mark.report("E1")
@pytest.mark.parametrize(("upgrade", "kind"), [("in-place", "restart"), ("new-cluster", "new-cluster")])
def test_an_edit_of_the_pods_restarts_or_makes_a_second_cluster(job: Job, upgrade: str, kind: str) -> None:
    before = service(job, kubernetes={"upgrade": upgrade})
    changed = compare(before, service(job, kubernetes={"upgrade": upgrade, "head_memory": "16Gi"}))
    assert (changed.kind, changed.phases) == (kind, ("head",))
    assert any("head" in each and "memory" in each for each in changed.what)


def test_the_phase_whose_pods_go_is_named(job: Job) -> None:
    changed = compare(service(job), service(job, decode={"resources": {"cpus": 4}}))
    assert (changed.kind, changed.phases) == ("restart", ("decode",))
    assert "decode: ray-worker.resources.limits.cpu" in changed.what


def test_an_image_replaces_the_pods_of_all_phases(job: Job) -> None:
    image = {"name": "example.com/ray:2", "ray_version": "2.58.0", "vllm_version": "0.26.0"}
    changed = compare(service(job), service(job, image=image))
    assert changed.kind == "restart" and set(changed.phases) == {"head", "prefill", "decode"}
    assert any("image" in each for each in changed.what)


def test_other_code_of_ours_replaces_pods_and_says_so(job: Job) -> None:
    newer = replace(job.facts, serving_archive=b"newer serving code")
    changed = compare(service(job), ray_service(job.document, newer))
    assert changed.kind == "restart" and "Diptych's code in the pods is another" in changed.what


def test_numbers_of_pods_change_in_place(job: Job) -> None:
    before, after = service(job), service(job)
    after["spec"]["rayClusterConfig"]["workerGroupSpecs"][0] |= {
        "replicas": 2,
        "minReplicas": 2,
        "maxReplicas": 2,
    }
    changed = compare(before, after)
    assert changed.kind == "in-place" and changed.what == ("prefill: 2 instead of 1 pods",)


def test_what_kuberay_leaves_out_when_it_compares_does_not_restart(job: Job) -> None:
    before, after = service(job), service(job)
    spec = after["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]
    spec["tolerations"] = [{"key": "other", "operator": "Exists"}]
    assert compare(before, after).kind == "none"


def node(name: str, gpus: int, **labels: str) -> dict[str, Any]:
    meta = {"name": name, "labels": labels}
    return {"metadata": meta, "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}}


def pod(on: str, gpus: int, phase: str = "Running") -> dict[str, Any]:
    container = {"name": "ray-worker", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {
        "metadata": {"name": f"pod-on-{on}"},
        "spec": {"nodeName": on, "containers": [container]},
        "status": {"phase": phase},
    }


@pytest.mark.report("E1")
def test_a_second_cluster_needs_free_gpus_on_each_phases_own_nodes(job: Job) -> None:
    wanted = service(job)
    selector = wanted["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"].get(
        "nodeSelector", {}
    )
    nodes = [node("a", 1, **selector), node("b", 1, **selector)]
    assert lacking_gpus(wanted, nodes, []) == ""
    assert lacking_gpus(wanted, nodes, [pod("a", 1)]) == "GPUs are missing: 1 for decode"
    assert (
        lacking_gpus(wanted, nodes, [pod("a", 1), pod("b", 1)])
        == "GPUs are missing: 1 for prefill, 1 for decode"
    )
    assert lacking_gpus(wanted, nodes, [pod("a", 1, "Succeeded"), pod("b", 1, "Failed")]) == ""


@pytest.mark.parametrize(
    "ill",
    [
        {"spec": {"unschedulable": True}},
        {
            "status": {
                "allocatable": {"nvidia.com/gpu": "1"},
                "conditions": [{"type": "Ready", "status": "Unknown"}],
            }
        },
    ],
)
def test_gpus_of_nodes_that_take_no_pods_do_not_count(job: Job, ill: dict[str, Any]) -> None:
    wanted = service(job)
    selector = wanted["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["nodeSelector"]
    nodes = [node("a", 1, **selector), node("b", 1, **selector) | ill]
    assert lacking_gpus(wanted, nodes, []) == "GPUs are missing: 1 for decode"


def test_gpus_of_nodes_that_a_phase_does_not_select_do_not_count(job: Job) -> None:
    wanted = service(job)
    for group in wanted["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        group["template"]["spec"]["nodeSelector"] = {"pool": group["groupName"]}
    nodes = [node("a", 8, pool="prefill"), node("b", 8, pool="other")]
    assert lacking_gpus(wanted, nodes, []) == "GPUs are missing: 1 for decode"


def test_a_change_says_what_it_does_in_a_sentence() -> None:
    assert Change("restart", ("decode: ray-worker.image",), ("decode",)).text == (
        "Restarts the whole service for changed pods of decode: decode: ray-worker.image. "
        "It does not answer until it is up again."
    )
    assert Change("none").text == "Nothing changes."
