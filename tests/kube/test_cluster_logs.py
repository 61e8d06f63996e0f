"""The logs of a phase: what containers print and what Ray keeps in files, merged by time, as long as one wants."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diptych.kube.connection import Cluster, Target, connect
from diptych.kube.logs import RAY, PhaseLogs
from diptych.kube.ray_logs import EngineLines
from diptych.kube.snapshot import take
from fakes.kubernetes import FakeKubernetes, crds
from fakes.ray_dashboard import RayDashboard
from kube.shapes import (
    CLUSTER,
    DECODE,
    DOCUMENT,
    HEAD,
    NAMESPACE,
    PREFILL,
    head,
    ray_cluster,
    service,
    worker,
)

TOKEN = "a token that KubeRay made"
ADDRESSES = {HEAD: "10.0.1.5", PREFILL: "10.0.2.20", DECODE: "10.0.2.21"}
AT = 1_796_040_000.0
ENGINE = "worker-0a1b2c-01000000-911"


@pytest.fixture
def dashboard() -> Iterator[RayDashboard]:
    with RayDashboard(TOKEN) as found:
        found.files = {
            (ADDRESSES[HEAD], "raylet.out"): ["[2026-11-30 12:00:01,000 I 71 71] raylet is up"],
            (ADDRESSES[HEAD], "serve/controller_80.log"): [
                "INFO 2026-11-30 12:00:03,120 controller 80 -- Deploying"
            ],
            (ADDRESSES[PREFILL], f"{ENGINE}.out"): [
                ":actor_name:ServeReplica:diptych:Prefill:qwen3.5-9b",
                "(EngineCore pid=912) INFO 11-30 12:00:02 [gpu_model_runner.py:5380] Starting to load "
                "model /models/x...",
            ],
            (ADDRESSES[PREFILL], f"{ENGINE}.err"): [
                "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:10<00:10,  5.10s/it]"
            ],
            (ADDRESSES[PREFILL], "worker-9f9f9f-01000000-600.out"): [
                ":actor_name:SERVE_PROXY_ACTOR",
                "proxy",
            ],
        }
        yield found


@pytest.fixture
def kubernetes(dashboard: RayDashboard) -> Iterator[FakeKubernetes]:
    with FakeKubernetes() as fake:
        fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        fake.backends[8265] = dashboard.address
        encoded = "YSB0b2tlbiB0aGF0IEt1YmVSYXkgbWFkZQ=="
        fake.put(
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": CLUSTER, "namespace": NAMESPACE},
             "data": {"auth_token": encoded}}
        )  # fmt: skip
        account = {"name": DOCUMENT.name, "namespace": NAMESPACE}
        fake.put({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        for each in (*crds(), service(), ray_cluster()):
            fake.put(each)
        for pod in (head(), worker("prefill"), worker("decode")):
            pod["status"]["podIP"] = ADDRESSES[pod["metadata"]["name"]]
            fake.put(pod)
        yield fake


@pytest.fixture
def cluster(kubernetes: FakeKubernetes, tmp_path: Path) -> Iterator[Cluster]:
    with connect(Target(kubernetes.kubeconfig(tmp_path / "kubeconfig"))) as found:
        yield found


def texts(logs: PhaseLogs, tail: int | None = None) -> list[str]:
    return [line.text for line in logs.look(tail)]


def test_a_phases_pods_and_engines_are_merged_by_time(cluster: Cluster, kubernetes: FakeKubernetes) -> None:
    kubernetes.write_log(PREFILL, NAMESPACE, "stage-model", "stage: 4.83 GB are here, 402 MB/s", at=AT)
    kubernetes.write_log(PREFILL, NAMESPACE, "ray-worker", "Ray runtime started.", at=AT + 1)
    kubernetes.write_log(DECODE, NAMESPACE, "ray-worker", "of the other phase", at=AT + 1)

    with PhaseLogs(cluster, DOCUMENT, "prefill") as logs:
        told = texts(logs)
        assert logs.missing is None

    engine = next(line for line in told if "Starting to load model" in line)
    assert (
        told.index("stage: 4.83 GB are here, 402 MB/s")
        < told.index("Ray runtime started.")
        < told.index(engine)
    )
    assert not any("other phase" in line or "actor_name" in line for line in told)


def test_lines_name_the_pod_without_what_all_pods_have(cluster: Cluster, kubernetes: FakeKubernetes) -> None:
    kubernetes.write_log(PREFILL, NAMESPACE, "ray-worker", "hello", at=AT)

    with PhaseLogs(cluster, DOCUMENT, "prefill") as logs:
        assert "prefill-worker-7dl2m: hello" in map(str, logs.look())


def test_only_the_last_lines_are_shown_where_so_many_are_asked_for(
    cluster: Cluster, kubernetes: FakeKubernetes
) -> None:
    for number in range(20):
        kubernetes.write_log(DECODE, NAMESPACE, "ray-worker", f"line {number}", at=AT + number)

    with PhaseLogs(cluster, DOCUMENT, "decode") as logs:
        assert texts(logs, tail=3) == ["line 17", "line 18", "line 19"]


def test_following_brings_each_new_line_once(
    cluster: Cluster, kubernetes: FakeKubernetes, dashboard: RayDashboard
) -> None:
    kubernetes.write_log(PREFILL, NAMESPACE, "ray-worker", "first", at=AT)
    with PhaseLogs(cluster, DOCUMENT, "prefill") as logs:
        followed = logs.follow(tail=1, every_s=0.05)
        next(followed)
        kubernetes.write_log(PREFILL, NAMESPACE, "ray-worker", "second", at=AT + 60)
        assert next(followed).text == "second"
        dashboard.files[ADDRESSES[PREFILL], f"{ENGINE}.out"].append("INFO 11-30 12:02:00 [core.py:1] third")
        assert next(followed).text.endswith("third")


@pytest.mark.report("E19")
def test_what_a_container_printed_before_it_was_started_again_is_there(
    cluster: Cluster, kubernetes: FakeKubernetes
) -> None:
    crashed = kubernetes.get("Pod", DECODE, NAMESPACE)
    assert crashed is not None
    crashed["status"]["containerStatuses"][0]["restartCount"] = 1
    kubernetes.put(crashed)
    kubernetes.write_log(DECODE, NAMESPACE, "ray-worker", "ValueError: the reason", previous=True, at=AT)
    kubernetes.write_log(DECODE, NAMESPACE, "ray-worker", "started again", at=AT + 5)

    with PhaseLogs(cluster, DOCUMENT, "decode") as logs:
        assert texts(logs)[:2] == ["ValueError: the reason", "started again"]


def test_rays_own_files_are_there_under_its_name(cluster: Cluster) -> None:
    with PhaseLogs(cluster, DOCUMENT, RAY) as logs:
        told = texts(logs)

    assert any("raylet is up" in line for line in told) and any("Deploying" in line for line in told)
    assert told.index(next(line for line in told if "raylet" in line)) == 0


def test_without_a_dashboard_the_pods_own_lines_remain_and_it_is_said_what_is_missing(
    cluster: Cluster, kubernetes: FakeKubernetes
) -> None:
    kubernetes.write_log(PREFILL, NAMESPACE, "ray-worker", "only this", at=AT)
    kubernetes.delete("Secret", CLUSTER, NAMESPACE)

    with PhaseLogs(cluster, DOCUMENT, "prefill") as logs:
        assert texts(logs) == ["only this"]
        assert logs.missing and "401" in logs.missing


def test_the_newest_engines_lines_are_found_for_the_blocker(cluster: Cluster) -> None:
    with EngineLines(cluster, DOCUMENT) as lines:
        seen = take(cluster, DOCUMENT, engine_lines=lines)

    assert any("Loading safetensors" in line for line in seen.engine[PREFILL])
    assert DECODE not in seen.engine


def test_engines_are_asked_for_every_few_seconds_only(cluster: Cluster, dashboard: RayDashboard) -> None:
    with EngineLines(cluster, DOCUMENT) as lines:
        pods = {pod["metadata"]["name"]: pod for pod in take(cluster, DOCUMENT).pods}
        lines(pods[PREFILL])
        asked = len(dashboard.asked)
        for _ in range(5):
            lines(pods[PREFILL])

        assert len(dashboard.asked) == asked


def test_a_head_that_hands_nothing_out_is_left_alone_for_a_while(
    cluster: Cluster, kubernetes: FakeKubernetes
) -> None:
    del kubernetes.backends[8265]
    with EngineLines(cluster, DOCUMENT) as lines:
        pods = take(cluster, DOCUMENT).pods
        assert lines(pods[1]) == ()
        began = time.monotonic()
        assert [lines(pod) for pod in pods] == [(), (), ()]

    assert time.monotonic() - began < 2
