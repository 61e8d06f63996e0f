"""Where no replica answers, Serve's proxy speaks OpenAI's words: what it would have said otherwise is not seen."""

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("starlette")

from diptych.serving import fallback
from diptych.serving.balancing import Healthz
from diptych.serving.proxy import LastWords, Unsteered, middlewares

START, BODY = "http.response.start", "http.response.body"


def head(
    status: int, content_type: bytes = b"application/json", *more: tuple[bytes, bytes]
) -> dict[str, Any]:
    return {"type": START, "status": status, "headers": [(b"Content-Type", content_type), *more]}


def body(content: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": BODY, "body": content, "more_body": more}


class Proxy:
    """Serve's proxy: sends some messages, then returns or raises."""

    def __init__(self, *messages: dict[str, Any], error: BaseException | None = None) -> None:
        self.messages, self.error = messages, error

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        for message in self.messages:
            await send(message)
        if self.error:
            raise self.error


def answer(proxy: Proxy, path: str = "/v1/completions", kind: str = "http") -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(LastWords(proxy)({"type": kind, "path": path, "method": "POST"}, receive, send))
    return sent


def check_unavailable(sent: list[dict[str, Any]]) -> None:
    assert [message["type"] for message in sent] == [START, BODY]
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"10") in sent[0]["headers"]
    assert json.loads(sent[1]["body"])["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "proxy",
    [
        Proxy(),
        Proxy(error=RuntimeError("the actor died")),
        Proxy(head(500, b"text/plain"), body(b"Internal Server Error")),
        Proxy(head(503, b"text/plain"), body(b"Deployment is unavailable.")),
    ],
    ids=["says nothing", "raises", "says 500", "says 503"],
)
def test_a_request_that_no_replica_answers_gets_503_and_when_to_come_back(proxy: Proxy) -> None:
    check_unavailable(answer(proxy))


@pytest.mark.parametrize("error", [None, asyncio.CancelledError()], ids=["proxy", "a replica's own server"])
@pytest.mark.parametrize(("status", "kind"), [(408, "timeout_error"), (429, "overloaded_error")])
@pytest.mark.parametrize(
    ("serves", "told"), [((), b"10"), (((b"Retry-After", b"3"),), b"3")], ids=["no time", "a time"]
)
def test_what_serve_refuses_itself_is_told_in_openais_words_with_a_time_to_come_back(
    error: BaseException | None, status: int, kind: str, serves: Any, told: bytes
) -> None:
    start, end = answer(
        Proxy(head(status, b"text/plain", *serves), body(b"Request 7 timed out."), error=error)
    )
    assert (start["status"], end.get("more_body", False)) == (status, False)
    assert (b"retry-after", told) in start["headers"]
    said = json.loads(end["body"])["error"]
    assert (said["type"], said["code"]) == (kind, status)
    assert "7" not in said["message"]


@pytest.mark.parametrize("messages", [[], [head(499, b"text/plain"), body(b"Client disconnected")]])
def test_a_request_whose_client_left_stays_cancelled(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(asyncio.CancelledError):
        answer(Proxy(*messages, error=asyncio.CancelledError()))


@pytest.mark.parametrize("around", [middlewares, fallback.middlewares], ids=["proxy", "behind HAProxy"])
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_headers_that_steer_serve_get_no_further(around: Any, kind: str) -> None:
    passed: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.extend(name for name, _ in scope["headers"])

    async def send(message: Any) -> None:
        pass

    asked = (b"accept", b"X-Request-Timeout-Seconds", b"x-request-disconnect-disabled", b"x-request-timeout")
    scope = {"type": kind, "path": "/v1/models", "headers": [(name, b"1") for name in asked]}
    for each in reversed(around()):
        app = each.cls(app, *each.args, **each.kwargs)
    asyncio.run(app(scope, None, send))
    assert passed == [b"accept", b"x-request-timeout"]
    assert len(scope["headers"]) == len(asked)


@pytest.mark.parametrize("error", [None, RuntimeError("the actor died")])
def test_a_stream_that_breaks_off_ends_with_an_error_event(error: Exception | None) -> None:
    begun = head(200, b"text/event-stream; charset=utf-8"), body(b"data: {}\n\n", more=True)
    sent = answer(Proxy(*begun, error=error))
    assert sent[:2] == list(begun)
    assert sent[2]["body"].startswith(b"event: error\ndata: ")
    assert json.loads(sent[2]["body"].decode().split("data: ")[1])["error"]["code"] == 503
    assert sent[2]["more_body"] is False


@pytest.mark.parametrize(
    "messages",
    [
        [head(200), body(b"{}")],
        [head(503), body(b'{"error": {}}')],
        [head(500), body(b'{"error": {}}')],
        [head(429), body(b'{"error": {}}')],
        [head(408), body(b'{"error": {}}')],
        [head(200, b"text/event-stream"), body(b"data: [DONE]\n\n", more=True), body(b"")],
        [head(404, b"text/plain"), body(b"no such route")],
    ],
)
def test_what_a_replica_says_passes_unchanged(messages: list[dict[str, Any]]) -> None:
    assert answer(Proxy(*messages)) == messages


def test_what_serve_says_of_itself_passes_unchanged() -> None:
    health = [head(503, b"text/plain"), body(b"draining")]
    assert answer(Proxy(*health), path="/-/healthz") == health


def test_an_answer_cut_short_that_is_no_stream_breaks_its_connection() -> None:
    with pytest.raises(RuntimeError):
        answer(Proxy(head(200), body(b"{", more=True), error=RuntimeError("the actor died")))


def test_serve_takes_them_for_its_proxy() -> None:
    util = pytest.importorskip("ray.serve._private.http_util")
    taken = util.validate_http_proxy_callback_return(middlewares())
    assert [each.cls for each in taken] == [Healthz, Unsteered, LastWords]
