"""The proxy that HAProxy falls back to refuses what nobody takes up; Serve's other servers pass everything."""

import asyncio
import contextlib
import json
from typing import Any

import pytest

pytest.importorskip("starlette")

from diptych.serving import fallback
from diptych.serving.fallback import middlewares

PASSED = {"type": "http.response.start", "status": 200, "headers": []}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "BEGINS_WITHIN_S", 0.1)


class Serve:
    """Serve's proxy: it begins its answer after a while, and ends it after another."""

    def __init__(self, begins_s: float = 0.0, ends_s: float = 0.0, error: Exception | None = None) -> None:
        self._begins_s = begins_s
        self._ends_s = ends_s
        self._error = error
        self.was_called_off = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.sleep(self._begins_s)
        except asyncio.CancelledError:
            self.was_called_off = True  # and Serve's own words come from what stands around it
            await send({"type": "http.response.start", "status": 503, "headers": []})
            return
        if self._error:
            raise self._error
        await send(PASSED)
        await asyncio.sleep(self._ends_s)
        await send({"type": "http.response.body", "body": b"{}"})


WAITS = 60.0


def sent(
    app: Any,
    path: str = "/v1/completions",
    server: tuple[str, int | None] | None = ("10.0.0.1", 8500),
    kind: str = "http",
    within_s: float = 5.0,
) -> list[Any]:
    """What a client is sent by Serve's proxy, behind what Serve puts around its servers."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    around: Any = app
    for each in middlewares():
        around = each.cls(around, *each.args, **each.kwargs)
    scope = {"type": kind, "path": path, "method": "POST", "server": server, "headers": []}

    async def play() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(around(scope, None, send), within_s)

    asyncio.run(play())
    return messages


def test_a_request_that_no_replica_takes_up_is_refused_with_a_time_to_come_back() -> None:
    serve = Serve(begins_s=WAITS)
    head, body = sent(serve)
    assert head["status"] == 503
    assert (b"retry-after", b"5") in head["headers"]
    error = json.loads(body["body"])["error"]
    assert (error["type"], error["code"]) == ("service_unavailable", 503)
    assert serve.was_called_off


def test_a_replica_of_which_haproxy_does_not_know_yet_answers() -> None:
    assert sent(Serve())[0] == PASSED


def test_an_answer_that_has_begun_may_take_its_time() -> None:
    head, body = sent(Serve(ends_s=0.3))
    assert (head, body["body"]) == (PASSED, b"{}")


def test_a_fault_is_answered_as_by_serves_proxy() -> None:
    head, _ = sent(Serve(error=ValueError("bug")))
    assert head["status"] == 503
    assert (b"retry-after", b"10") in head["headers"]


def test_a_client_that_leaves_while_it_waits_takes_its_request_along() -> None:
    serve = Serve(begins_s=WAITS)
    assert sent(serve, within_s=0.02) == []
    assert serve.was_called_off


def test_the_port_is_the_one_that_serve_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_FALLBACK_PROXY_HTTP_PORT", "8600")
    assert sent(Serve(begins_s=0.2))[0] == PASSED
    assert sent(Serve(begins_s=WAITS), server=("10.0.0.1", 8600))[0]["status"] == 503


@pytest.mark.parametrize("server", [("10.0.0.1", 8000), ("10.0.0.1", 30000), ("/a/socket", None), None])
def test_other_servers_of_serve_pass_everything(server: tuple[str, int | None] | None) -> None:
    assert sent(Serve(begins_s=0.2), server=server)[0] == PASSED


@pytest.mark.parametrize("path", ["/-/healthz", "/-/routes"])
def test_serves_own_pages_are_there_for_haproxy_to_look_at(path: str) -> None:
    assert sent(Serve(begins_s=0.2), path)[0] == PASSED


def test_what_is_no_http_passes() -> None:
    assert sent(Serve(begins_s=0.2), kind="websocket")[0] == PASSED
