"""A replica whose transport contradicts what was asked for takes no prompts, whichever way they came in."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from diptych.serving.front import build_front
from diptych.serving.keys import Key
from diptych.serving.readiness import Readiness
from diptych.serving.withholding import RETRY_AFTER_S, WithholdingMiddleware

WHY = "EFA was asked for, and LIBFABRIC over tcp is in use."
PROMPTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


class Server:
    """The replica, with a state that tests change."""

    state = "contradicted"

    def readiness(self) -> Readiness:
        return Readiness(self.state, None if self.state == "ready" else WHY, [])


class Endpoint:
    """The middleware before an application that answers everything, with or without an admin key."""

    def __init__(self, server: Server, *, admin: bool = False, prefix: str = "") -> None:
        self._app = WithholdingMiddleware(PlainTextResponse("answered"), server=server)
        self._more = {"diptych.key": Key(admin=admin), "root_path": prefix}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope | self._more, receive, send)


@pytest.mark.parametrize("path", PROMPTS)
def test_prompts_are_refused_with_the_reason_and_a_time_to_come_back(path: str) -> None:
    answer = TestClient(Endpoint(Server())).post(path)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, RETRY_AFTER_S)
    assert answer.json()["error"] == {
        "message": f"The service is not ready: {WHY}",
        "type": "service_unavailable",
        "param": None,
        "code": 503,
    }


def test_under_a_prefix_it_is_the_same() -> None:
    assert TestClient(Endpoint(Server(), prefix="/llm")).post("/llm/v1/completions").status_code == 503


@pytest.mark.parametrize("state", ["ready", "degraded", "starting"])
def test_only_a_contradiction_withholds_a_replica_and_it_ends_by_itself(state: str) -> None:
    server = Server()
    client = TestClient(Endpoint(server))
    assert client.post(PROMPTS[0]).status_code == 503
    server.state = state
    assert client.post(PROMPTS[0]).text == "answered"


@pytest.mark.parametrize("path", ["/ready", "/health", "/metrics", "/v1/models", "/diptych/v1/status"])
def test_what_needs_no_prompt_is_answered(path: str) -> None:
    assert TestClient(Endpoint(Server())).get(path).text == "answered"


def test_an_admin_key_is_let_through_so_that_a_proof_can_look() -> None:
    assert TestClient(Endpoint(Server(), admin=True)).post(PROMPTS[0]).text == "answered"


def test_nothing_else_than_http_is_touched() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    asyncio.run(WithholdingMiddleware(app, server=Server())({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert seen == ["lifespan"]


def test_the_endpoint_has_it_behind_the_door() -> None:
    """A stranger learns nothing of the transport."""
    from fastapi import FastAPI

    server: Any = SimpleNamespace(readiness=Server().readiness, engine_problem=None, replica_name="decode-1")
    app = build_front(FastAPI(), server, {"api_key_file": None, "open": True})
    answer = TestClient(app, client=("127.0.0.1", 5)).post(PROMPTS[0], json={})
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        503,
        f"The service is not ready: {WHY}",
    )
    assert TestClient(app, client=("10.0.0.9", 5)).post(PROMPTS[0], json={}).status_code == 401
