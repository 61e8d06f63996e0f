"""Both ways to a decode replica, asked the same: HAProxy, which `up` takes, and Serve's own proxy."""

import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from engines.comparison import Answer, answers, complaint, difference
from engines.fields_of_others import MODELS
from engines.service import Service, leftovers, seconds_until
from engines.shapes import SHAPES
from engines.test_dead_engines import (
    asking,
    check_answers,
    decode_killed_and_replaced,
    kill,
    ready_again,
    report,
)
from engines.test_kv_transfer import BYTES_PER_TOKEN, unseen_prompt
from engines.test_loopback import is_loopback

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.load]

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
ALL = {shape.name: shape for shape in [*SHAPES, *(row for model in MODELS for row in model.shapes())]}
ASKED = {
    name: ALL[name]
    for name in (
        f"{CHAT}: plain",
        f"{CHAT}: everything at once",
        f"{CHAT}: a format, streamed, several",
        f"{CHAT}: tools, streamed usage",
        f"{CHAT}: prompt logprobs and several",
        f"{COMPLETIONS}: three prompts streamed",
        f"{COMPLETIONS}: echo of several with logprobs",
        f"{COMPLETIONS}: 129 tokens of prompt",
        f"{COMPLETIONS}: 8200 tokens of prompt and 1 of answer",
        f"{RESPONSES}: a tool, streamed",
        f"{MESSAGES}: system and turns, streamed",
        "models",
        "a model that is none",
        "a response that is none",
    )
}
"""Of all that is compared between the split and the engine alone: each route, streams, refusals."""
HEADERS = {
    f"x-diptych-{name}"
    for name in (
        "path",
        "prefill-replica",
        "prefill-ms",
        "prefill-queue-ms",
        "kv-transfer-ms",
        "kv-transfer-bytes",
        "uncached-tokens",
    )
}
PROXIES = {"HAProxy": "haproxy", "Serve's proxy": "ray::ProxyActor"}
LOGGED_WITHIN_S = 2.0


@pytest.fixture(scope="module")
def by_haproxy(machine: Service) -> dict[str, Answer]:
    """What is answered by HAProxy, which is there first: two cores hold one set of engines."""
    if not machine.is_up():
        machine.down()
        up = machine.up()
        assert up.returncode == 0, up.stderr
    return answers(machine, ASKED)


@pytest.fixture(scope="module", params=PROXIES)
def way(
    request: pytest.FixtureRequest, machine: Service, by_haproxy: dict[str, Answer]
) -> Iterator[tuple[str, Service]]:
    """A way by its name, and the service up that is reached by it."""
    if request.param == "HAProxy":
        yield request.param, machine
        return
    machine.down()
    with tempfile.TemporaryDirectory(prefix="dt-") as directory:
        service = Service(Path(directory))
        service.environment["DIPTYCH_ACCESS__INGRESS"] = "proxy"
        up = service.up()
        assert up.returncode == 0, up.stderr
        yield request.param, service
        service.down()
        assert leftovers(service) == []


@pytest.fixture
def service(way: tuple[str, Service]) -> Service:
    return way[1]


def test_the_way_is_the_one_it_is_named_after(way: tuple[str, Service]) -> None:
    name, service = way
    port = int(service.url.rpartition(":")[2])
    listening = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    (pid,) = {each.pid for each in listening if each.laddr.port == port}
    assert PROXIES[name] in " ".join(psutil.Process(pid).cmdline())


def test_everything_listens_on_loopback_only(service: Service) -> None:
    pids = {process.pid for process in service.processes()}
    listening = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    addresses = [each.laddr for each in listening if each.pid in pids]
    assert len(addresses) > 10
    assert [address for address in addresses if not is_loopback(address.ip)] == []


def test_requests_of_every_kind_are_answered_as_by_haproxy(
    service: Service, by_haproxy: dict[str, Answer]
) -> None:
    said = answers(service, ASKED)
    assert {name: answer.status for name, answer in said.items()} == {
        name: answer.status for name, answer in by_haproxy.items()
    }
    assert {
        name: found for name in ASKED if (found := difference(said[name].said, by_haproxy[name].said))
    } == {}
    refused = {name: answer for name, answer in said.items() if answer.status >= 400}
    assert len(refused) >= 3
    assert {name: found for name, answer in refused.items() if (found := complaint(answer))} == {}


@pytest.mark.parametrize("stream", [False, True])
def test_the_headers_tell_of_the_way_and_the_kv_transfer(service: Service, stream: bool) -> None:
    response = service.post(COMPLETIONS, prompt=unseen_prompt(200), max_tokens=3, stream=stream)
    told = {name: value for name, value in response.headers.items() if name.startswith("x-diptych-")}
    assert (told["x-diptych-path"], told.get("x-diptych-why")) == ("remote", None)
    if stream:  # the headers leave with prefill's token, before the KV transfer; the end tells of it
        lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
        moved = json.loads(lines[-1])["diptych"]
        told |= {f"x-diptych-kv-transfer-{name}": moved[f"kv_transfer_{name}"] for name in ("ms", "bytes")}
        assert moved["first_token_from"] == "prefill"
    assert told.keys() == HEADERS
    assert told["x-diptych-uncached-tokens"] == "200"
    assert int(told["x-diptych-kv-transfer-bytes"]) == 256 * BYTES_PER_TOKEN
    assert min(float(told[f"x-diptych-{name}-ms"]) for name in ("prefill", "kv-transfer")) > 0


def test_the_last_chunk_of_a_stream_holds_the_record_when_asked(service: Service) -> None:
    response = service.post(COMPLETIONS, prompt=unseen_prompt(200), max_tokens=3, stream=True)
    *_, last, done = [line for line in response.text.splitlines() if line]
    assert done == "data: [DONE]"
    chunk = json.loads(last.removeprefix("data: "))
    assert chunk["choices"] == []
    assert chunk["diptych"]["path"] == "remote"
    assert chunk["diptych"]["kv_transfer_bytes"] == 256 * BYTES_PER_TOKEN


def test_tokens_come_one_by_one_as_the_engine_makes_them(service: Service) -> None:
    """On either way: an engine on a core takes far longer for a token than writes are apart."""
    body = {"model": service.model, "prompt": "Once", "max_tokens": 16, "ignore_eos": True, "stream": True}
    with service.client() as client, client.stream("POST", COMPLETIONS, json=body) as response:
        tokens = [piece.count('"text":') for piece in response.iter_text()]
    assert [count for count in tokens if count] == [1] * 16


@pytest.mark.parametrize("path", ["/v1/models", CHAT, "/diptych/v1/status", "/metrics", "/no/such/path"])
def test_without_a_key_nothing_is_told(service: Service, path: str) -> None:
    for headers in ({}, {"x-forwarded-for": "127.0.0.1"}, {"authorization": "Bearer wrong"}):
        response = httpx.get(service.url + path, headers=headers, trust_env=False)
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "invalid_api_key"


def test_the_address_of_kv_cache_is_not_for_clients_to_set(service: Service) -> None:
    there = {"do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_port": 5}
    response = service.post(CHAT, messages=[{"role": "user", "content": "Hi"}], kv_transfer_params=there)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "kv_transfer_params"


@pytest.mark.parametrize(("size", "status"), [(20_000, 200), (40_000, 431)])
def test_headers_are_limited_by_the_endpoint_itself(service: Service, size: int, status: int) -> None:
    with service.client() as client:
        assert client.get("/v1/models", headers={"x-large": "x" * size}).status_code == status


def test_a_body_that_is_too_large_is_refused_in_words(service: Service) -> None:
    response = service.post(COMPLETIONS, prompt="x" * (33 * 2**20))
    assert response.status_code == 413
    assert "32 MiB" in response.json()["error"]["message"]


def test_health_and_readiness_are_open_and_status_and_metrics_are_for_admins(service: Service) -> None:
    assert httpx.get(f"{service.url}/health", trust_env=False).status_code == 200
    ready = httpx.get(f"{service.url}/ready", trust_env=False)
    assert (ready.status_code, ready.json()) == (200, {"state": "ready"})
    with service.client() as client:
        assert [client.get(path).status_code for path in ("/diptych/v1/status", "/metrics")] == [403, 403]
    assert {phase: len(replicas) for phase, replicas in service.phases().items()} == {
        "prefill": 1,
        "decode": 1,
    }
    with service.client(key=service.admin_key) as client:
        metrics = client.get("/metrics")
    assert metrics.status_code == 200
    assert "diptych_requests" in metrics.text
    assert "vllm:generation_tokens_total" in metrics.text


def logged(service: Service) -> list[dict[str, Any]]:
    """The lines of requests in the logs of decode's replicas, oldest first: of one that is gone, too."""
    files = service.ray_directory.glob("session_latest/logs/serve/replica_*_Decode_*.log")
    lines = [line for file in files for line in file.read_text().splitlines() if '{"request":' in line]
    lines.sort(key=lambda line: line.split()[1:3])  # its time, after its level
    return [json.loads(line[line.index('{"request":') :]) for line in lines]


def test_each_request_has_its_line_in_the_log_at_once(service: Service) -> None:
    before = len(logged(service))
    service.complete(unseen_prompt(130), max_tokens=5)
    seconds_until(lambda: len(logged(service)) > before, LOGGED_WITHIN_S, every_s=0.05)
    (line,) = logged(service)[before:]
    told = {name: line[name] for name in ("route", "status", "path", "prompt_tokens", "output_tokens")}
    assert told == {
        "route": COMPLETIONS,
        "status": 200,
        "path": "remote",
        "prompt_tokens": 130,
        "output_tokens": 5,
    }


def test_a_client_that_leaves_frees_the_kv_cache_of_both_phases(service: Service) -> None:
    answer = {"max_tokens": 2000, "ignore_eos": True, "stream": True}
    body = {"model": service.model, "prompt": unseen_prompt(300)} | answer
    with service.client() as client, client.stream("POST", COMPLETIONS, json=body) as response:
        next(response.iter_text())
        seconds_until(lambda: service.counters()["decode"]["requests_running"] == 1, 5.0)
    left_at = time.monotonic()

    def idle() -> bool:
        counters = service.counters().values()
        return all(one["requests_running"] == one["kv_cache_usage"] == 0 for one in counters)

    seconds_until(idle, 10.0)
    print(f"\nKV cache free {time.monotonic() - left_at:.1f} s after the client left")
    assert logged(service)[-1]["status"] == 499


@pytest.mark.parametrize("way", ["Serve's proxy"], indirect=True)  # by HAProxy: test_dead_engines
def test_a_dead_decode_engine_is_503_in_words_until_it_is_replaced(service: Service) -> None:
    assert 503 in decode_killed_and_replaced(service).statuses()
    assert service.complete("And then")["diptych"]["path"] == "remote"


@pytest.mark.parametrize("way", ["Serve's proxy"], indirect=True)  # by HAProxy: test_chaos
def test_a_decode_replica_that_is_gone_leaves_503_in_words_until_it_is_replaced(service: Service) -> None:
    body = {"prompt": "Count:", "max_tokens": 400, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool, asking(service) as asked:
        inside = pool.submit(service.post, COMPLETIONS, **body)
        seconds_until(lambda: service.counters()["decode"]["requests_running"] >= 1, 20.0)
        kill(psutil.Process(service.phases()["decode"][0]["pid"]))
        killed_at = time.monotonic()
        told = inside.result()
        print(f"\ninside: {told.status_code} after {time.monotonic() - killed_at:.1f} s: {told.text[:200]!r}")
        seconds_until(lambda: not service.status()["ready"], 30.0)
        ready = ready_again(service)
    report("decode replica killed", 0.0, ready, asked)
    check_answers(asked, {200, 503})
    assert 503 in asked.statuses()
