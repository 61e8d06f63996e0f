"""What is up in a cluster, per step and phase, from the scripted cluster's own objects and the endpoint behind it."""

import json
import threading
import time

import pytest

from diptych.kube import operator, service, status
from diptych.kube.blockers import first_blocker
from diptych.kube.job import Job
from diptych.kube.ray_logs import EngineLines
from diptych.kube.snapshot import take
from fakes.kubernetes import Behaviour
from fakes.ray_dashboard import RayDashboard
from kube.world import NAMESPACE, World


def test_a_service_that_is_up_is_ready_with_its_pods_nodes_and_versions(here: World) -> None:
    job = here.job()
    with here.cluster(job) as cluster:
        service.up(job, cluster)
        steps = (operator.look(job, cluster), service.look(job, cluster))
        found = status.look(job, cluster, steps=steps, cost={"per_hour": 4.23})

    told = json.loads(json.dumps(found.to_json()))
    assert found.blocker is None and told["ready"] is True and told["blocker"] is None
    assert told["place"] == "kubernetes" and told["namespace"] == NAMESPACE
    assert [each["step"] for each in told["steps"]] == ["operator", "service"]
    assert told["cost"] == {"per_hour": 4.23}
    assert told["versions"]["kubernetes"] == "1.35" and told["versions"]["kuberay"]
    assert told["endpoint"] == f"http://ray-llm-serve-svc.{NAMESPACE}:8000"
    for phase in ("prefill", "decode"):
        (pod,) = told["phases"][phase]["pods"]
        assert pod["node"] in ("gpu-a", "gpu-b") and pod["zone"] == "us-east-2a" and pod["state"] == "running"
        assert pod["gpus"] == 1 and pod["problem"] is None
    used = {node["name"]: node["gpus_used"] for node in told["nodes"]}
    assert used["gpu-a"] == used["gpu-b"] == 1
    assert told["head"]["node"] == "system"


def test_what_is_not_there_is_told_without_an_error(here: World) -> None:
    job = here.job()
    with here.cluster(job) as cluster:
        found = status.look(job, cluster)

    assert not found.ready and found.started_at is None
    assert found.blocker is not None and "not in namespace" in found.blocker.text
    assert found.to_json()["phases"]["prefill"]["pods"] == []


def test_a_blocked_pod_is_named_in_its_phase_and_for_the_whole(here: World) -> None:
    here.kuberay.missing_images = {"*serve-llm*"}
    job = here.job()
    with here.cluster(job) as cluster:
        with pytest.raises(Exception, match="no such image"):
            service.up(job, cluster)
        found = status.look(job, cluster)

    assert found.blocker is not None and found.blocker.is_fatal and "no such image" in found.blocker.text
    assert found.head is not None and found.head.problem and "no such image" in found.head.problem


def test_while_weights_load_the_blocker_has_the_engines_own_progress(here: World) -> None:
    here.kuberay.held = {"load"}
    job = here.job()
    with (
        RayDashboard() as dashboard,
        here.cluster(job) as cluster,
        EngineLines(cluster, job.document) as lines,
    ):
        here.fake.backends[8265] = dashboard.address
        up = threading.Thread(target=lambda: _quietly(here, job))
        up.start()
        deadline, found = time.monotonic() + 20, None
        while time.monotonic() < deadline and not (found and "engine in pod" in found.text):
            seen = take(cluster, job.document, engine_lines=lines, checkpoint_bytes=19_320_000_000)
            for pod in seen.pods_in("prefill"):
                shards = (
                    "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:10<00:10,  5.10s/it]"
                )
                dashboard.files[pod["status"].get("podIP", ""), "worker-0a-01-911.err"] = [shards]
            found = first_blocker(seen, time.time())
            time.sleep(0.05)
        here.kuberay.held = set()
        up.join(30)

    assert found is not None
    assert "prefill engine" in found.text and "2 of 4 files, 50 %, 966 MB/s" in found.text


def _quietly(here: World, job: Job) -> None:
    with here.cluster(job) as cluster:
        service.up(job, cluster)


@pytest.mark.report("G2")
def test_the_scripted_clusters_own_failures_are_read_as_the_real_ones(here: World) -> None:
    gated = "stage: Qwen/Qwen3.5-9B is gated: accept its terms on its page and set model.token_*"
    here.kuberay.containers["*prefill*/stage-model"] = Behaviour(exit_code=1, lines=[gated], times=20)
    job = here.job()
    with here.cluster(job) as cluster:
        with pytest.raises(Exception, match="gated"):
            service.up(job, cluster)
        found, until = None, time.monotonic() + 20
        while (found is None or "prefill" not in found.where) and time.monotonic() < until:
            # While its container is started once more, others come first.
            found = first_blocker(take(cluster, job.document), time.time())

    assert found is not None and "prefill" in found.where and "the model is gated" in found.text
    assert "Accept the model's terms" in found.do
