"""Where no replica answers, Serve's proxy speaks OpenAI's words: what it would have said otherwise is not seen."""

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("starlette")

from diptych.serving.proxy import LastWords, middlewares

START, BODY = "http.response.start", "http.response.body"


def head(status: int, content_type: bytes = b"application/json") -> dict[str, Any]:
    return {"type": START, "status": status, "headers": [(b"Content-Type", content_type)]}


def body(content: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": BODY, "body": content, "more_body": more}


class Proxy:
    """Serve's proxy: sends some messages, then returns or raises."""

    def __init__(self, *messages: dict[str, Any], error: Exception | None = None) -> None:
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
    assert util.validate_http_proxy_callback_return(middlewares())[0].cls is LastWords
