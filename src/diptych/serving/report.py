"""What every answer says of itself: headers with the request's way, and its record when the client asks for it.

The record is complete when the engine's first output is there. So the head of a response waits for its body; then
it carries the record, or, where the engine died meanwhile, becomes a 503 that says when to come back.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import JSONResponse, Response

from diptych.serving.access import error_body
from diptych.serving.record import Record, current

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

TIMING_HEADER = b"x-diptych-timing"
RETRY_AFTER_S = "10"
_DONE = b"data: [DONE]"
_ENGINE_NEEDED = ("/v1/chat/", "/v1/completions", "/v1/responses", "/v1/messages")


class ReportMiddleware:
    """Opens a record for each request, and tells of it in the response."""

    def __init__(self, app: Any, *, server: Any) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_ENGINE_NEEDED):
            await self._app(scope, receive, send)
            return
        if self._server.engine_problem:
            await unavailable(self._server.engine_problem)(scope, receive, send)
            return
        record = Record(decode_replica=self._server.replica_name)
        asked = any(name == TIMING_HEADER and value == b"include" for name, value in scope["headers"])
        answer = _Answer(send, record, self._server, with_record=asked)
        token = current.set(record)
        try:
            await self._app(scope, receive, answer.send)
        finally:
            current.reset(token)


class _Answer:
    """One response on its way out."""

    def __init__(self, send: Send, record: Record, server: Any, *, with_record: bool) -> None:
        self._send = send
        self._record = record
        self._server = server
        self._with_record = with_record
        self._head: Message | None = None
        self._kept = b""
        self._is_stream = False
        self._replaced = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
        elif self._replaced:
            return
        elif message["type"] == "http.response.body":
            await self._body(message)
        else:
            await self._send(message)

    async def _body(self, message: Message) -> None:
        if self._head is not None and self._head["status"] >= 500 and await engine_died(self._server):
            self._replaced = True
            await _send_whole(self._send, unavailable("the engine died while it worked on this request"))
            return
        if self._head is not None:
            self._is_stream = _content_type(self._head).startswith(b"text/event-stream")
        if self._is_stream or not self._with_record:
            await self._begin()
            body = message.get("body", b"")
            await self._send({**message, "body": self._stream_with_record(body) if self._is_stream else body})
            return
        self._kept += message.get("body", b"")
        if not message.get("more_body", False):
            content = _json_with_record(self._kept, self._record)
            await self._begin(len(content))
            await self._send({"type": "http.response.body", "body": content})

    async def _begin(self, length: int | None = None) -> None:
        """Send the head, once: with the record, and the length of a body that was changed."""
        if self._head is None:
            return
        own = [(name.encode(), value.encode()) for name, value in self._record.headers().items()]
        headers = [*self._head.get("headers", ()), *own]
        if length is not None:
            headers = [pair for pair in headers if pair[0].lower() != b"content-length"]
            headers.append((b"content-length", str(length).encode()))
        head, self._head = self._head, None
        await self._send({**head, "headers": headers})

    def _stream_with_record(self, body: bytes) -> bytes:
        """Put the record, as a chunk of its own without choices, before the end of the stream."""
        if not self._with_record or _DONE not in body or not self._record.legs:
            return body
        chunk = {
            "id": self._record.legs[0].id,
            "object": "chat.completion.chunk",
            "choices": [],
            "diptych": self._record.to_json(),
        }
        return body.replace(_DONE, b"data: " + json.dumps(chunk).encode() + b"\n\n" + _DONE, 1)


async def engine_died(server: Any) -> bool:
    """Whether the engine is dead, or found dead within two seconds."""
    for _ in range(20):
        if server.engine_problem:
            return True
        await asyncio.sleep(0.1)
    return False


def unavailable(why: str) -> Response:
    """503 with a time to come back: Serve is replacing the replica."""
    content = error_body(f"The service is restarting an engine: {why}.", "service_unavailable", 503)
    return JSONResponse(content, status_code=503, headers={"retry-after": RETRY_AFTER_S})


async def _send_whole(send: Send, response: Response) -> None:
    await send(
        {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
    )
    await send({"type": "http.response.body", "body": response.body})


def _content_type(head: Message) -> bytes:
    return next((value for name, value in head.get("headers", ()) if name.lower() == b"content-type"), b"")


def _json_with_record(body: bytes, record: Record) -> bytes:
    try:
        content = json.loads(body)
    except ValueError:
        return body
    if not isinstance(content, dict) or "error" in content or not record.legs:
        return body
    return json.dumps({**content, "diptych": record.to_json()}, ensure_ascii=False).encode()
