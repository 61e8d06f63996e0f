"""The endpoint's routes: which there are, how an answer is shaped, and what a dead engine sounds like."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from fastapi import FastAPI
from fastapi.testclient import TestClient

from diptych.serving import front
from diptych.serving.front import _with_record, build_front
from diptych.serving.orchestrate import Record
from diptych.serving.ray_llm import ErrorResponse
from diptych.serving.transfers import Transfer

KEY = "dk-right"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


class Runner:
    """Answers with the items that the test chose; an exception among them is raised."""

    def __init__(self, *items: Any) -> None:
        self.items = items
        self.asked: list[Any] = []

    async def run(self, request: Any, raw: Any, record: Record) -> AsyncIterator[Any]:
        self.asked.append(request)
        record.path, record.prefill_ms, record.transfer = "remote", 12.5, Transfer(100, 0.001, 0.001, 1)

        async def all_of_them() -> AsyncIterator[Any]:
            for item in self.items:
                if isinstance(item, Exception):
                    raise item
                yield item

        return all_of_them()


class Server:
    engine_problem: str | None = None
    replica_name = "decode-1"

    async def phases(self) -> dict[str, Any]:
        return {"prefill": [], "decode": []}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(KEY)
    return path


def client_of(runner: Runner, server: Server, key_file: Path) -> TestClient:
    engine = FastAPI()

    @engine.get("/v1/models")
    async def models() -> dict[str, str]:
        return {"of": "the engine"}

    @engine.post("/v1/chat/completions")
    async def past_the_orchestrator() -> dict[str, str]:
        return {"of": "the engine"}

    @engine.post("/v1/responses")
    async def responses() -> dict[str, str]:
        return {"of": "the engine"}

    app = build_front(engine, runner, server, str(key_file))
    return TestClient(app, headers={"authorization": f"Bearer {KEY}"}, raise_server_exceptions=False)


def test_the_engines_harmless_routes_stay_and_those_that_bypass_the_orchestrator_go(
    server: Server, key_file: Path
) -> None:
    client = client_of(Runner("data: x\n\n", "data: [DONE]\n\n"), server, key_file)
    assert client.get("/v1/models").json() == {"of": "the engine"}
    assert client.post("/v1/responses", json={}).status_code == 404
    assert client.get("/docs").status_code == 404
    assert "of" not in client.post("/v1/chat/completions", json=CHAT).text


def test_the_door_stands_before_every_route(server: Server, key_file: Path) -> None:
    runner = Runner("data: [DONE]\n\n")
    client = client_of(runner, server, key_file)
    client.headers.pop("authorization")
    for method, path in (
        ("GET", "/v1/models"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/diptych/v1/status"),
    ):
        assert client.request(method, path, json=CHAT).status_code == 401
    assert client.get("/health").status_code == 200
    assert runner.asked == []


def test_a_stream_goes_out_as_it_came_and_tells_its_path_in_the_headers(
    server: Server, key_file: Path
) -> None:
    items = ("data: one\n\n", "data: two\n\n", "data: [DONE]\n\n")
    response = client_of(Runner(*items), server, key_file).post(
        "/v1/chat/completions", json=CHAT | {"stream": True}
    )
    assert response.text == "".join(items)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-diptych-path"] == "remote"
    assert response.headers["x-diptych-kv-transfer-bytes"] == "100"


def test_a_stream_whose_client_asked_for_timing_has_the_record_just_before_its_end(
    server: Server, key_file: Path
) -> None:
    client = client_of(Runner("data: one\n\n", "data: [DONE]\n\n"), server, key_file)
    response = client.post(
        "/v1/chat/completions", json=CHAT | {"stream": True}, headers={"x-diptych-timing": "include"}
    )
    events = response.text.split("\n\n")
    assert events[0] == "data: one"
    chunk = json.loads(events[1].removeprefix("data: "))
    assert chunk["choices"] == []
    assert (chunk["diptych"]["path"], chunk["diptych"]["decode_replica"]) == ("remote", "decode-1")
    assert events[2:] == ["data: [DONE]", ""]


def test_the_record_is_put_before_the_end_only_and_only_for_those_who_asked() -> None:
    record = Record()
    assert _with_record("data: {}\n\n", record) == "data: {}\n\n"
    assert _with_record("data: [DONE]\n\n", None) == "data: [DONE]\n\n"
    assert _with_record("data: [DONE]\n\n", record).endswith("\n\ndata: [DONE]\n\n")
    assert record.request_id in _with_record("data: [DONE]\n\n", record)


def test_an_error_of_the_engine_keeps_its_status_and_words(server: Server, key_file: Path) -> None:
    error = ErrorResponse(
        error={"message": "max_tokens is too large", "type": "BadRequestError", "code": 400}
    )
    response = client_of(Runner(error), server, key_file).post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "max_tokens is too large"


def test_a_dead_engine_answers_503_with_a_time_to_come_back_and_its_problem(
    server: Server, key_file: Path
) -> None:
    server.engine_problem = "engine process 7 is gone"
    client = client_of(Runner(), server, key_file)
    for response in (client.post("/v1/chat/completions", json=CHAT), client.get("/health")):
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert "engine process 7 is gone" in response.json()["error"]["message"]


class DyingServer(Server):
    """Its engine dies while it works: the problem is seen a moment after the request failed."""

    looks = 0

    @property
    def engine_problem(self) -> str | None:  # type: ignore[override]
        self.looks += 1
        return "engine process 7 is gone" if self.looks > 3 else None


def test_an_engine_that_dies_before_the_first_token_is_503_and_not_500(key_file: Path) -> None:
    runner = Runner(RuntimeError("EngineDeadError"))
    response = client_of(runner, DyingServer(), key_file).post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 503
    assert "retry-after" in response.headers


def test_an_engine_that_dies_in_the_middle_of_a_stream_ends_it_with_an_error_in_words(key_file: Path) -> None:
    runner = Runner("data: one\n\n", RuntimeError("EngineDeadError: secret prompt"))
    response = client_of(runner, DyingServer(), key_file).post(
        "/v1/chat/completions", json=CHAT | {"stream": True}
    )
    events = response.text.split("\n\n")
    assert events[0] == "data: one"
    assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == 503
    assert events[2] == "data: [DONE]"
    assert "secret" not in response.text


def test_a_fault_of_a_living_engine_stays_a_fault(
    server: Server, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(_: Any) -> bool:
        return False

    monkeypatch.setattr(front, "_engine_died", at_once)
    response = client_of(Runner(ValueError("bug")), server, key_file).post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 500


def test_status_tells_the_phases(server: Server, key_file: Path) -> None:
    assert client_of(Runner(), server, key_file).get("/diptych/v1/status").json() == {
        "phases": {"prefill": [], "decode": []}
    }
