"""What every answer says of itself: headers with the request's way, and its record when the client asks for it.

The record is complete when the engine's first output is there. So the head of an answer, and what a stream says
before, wait for it; then the head carries the record, or, where the engine died meanwhile, becomes a 503 that says
when to come back.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import JSONResponse, Response

from diptych.serving import journal, metrics, tracing
from diptych.serving.bodies import RecordInStream, json_with_record
from diptych.serving.errors import ENGINE_DIED, TIMED_OUT, UNAVAILABLE, error_body
from diptych.serving.placement import RATHER_REMOTE
from diptych.serving.record import Record, Refusal, current
from diptych.serving.routes import route_path

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

TIMING_HEADER = b"x-diptych-timing"
PLACEMENT_HEADER = b"x-diptych-prefill"
RETRY_AFTER_S = "10"
_ENGINE_NEEDED = ("/v1/chat/", "/v1/completions", "/v1/responses", "/v1/messages")
_KEEP_ALIVE = b":"  # a comment, that the connection may not look idle


class ReportMiddleware:
    """Opens a record for each request, and tells of it in the response."""

    def __init__(self, app: Any, *, server: Any) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        path = route_path(scope) if scope["type"] == "http" else ""
        if not path.startswith(_ENGINE_NEEDED):
            await self._app(scope, receive, send)
            return
        if self._server.engine_problem:
            await unavailable(self._server.engine_problem)(scope, receive, send)
            return
        record = self._record(scope, path)
        answer = _Answer(scope, send, record, self._server)
        with tracing.incoming(path, _headers(scope), scope["method"]) as request:
            try:
                await self._answered(scope, receive, answer, record)
            finally:
                seconds = time.monotonic() - record.began_at
                request.request_done(record, answer.status)
                metrics.request_done(record, answer.status, seconds)
                journal.write(record, answer.status, seconds)

    async def _answered(self, scope: Message, receive: Any, answer: "_Answer", record: Record) -> None:
        token = current.set(record)
        timeout_s = scope.get("diptych.timeout_s")
        try:
            async with asyncio.timeout(timeout_s) as timeout:
                await self._app(scope, answer.listening(receive), answer.send)
        except Exception as error:
            if isinstance(error, TimeoutError) and timeout.expired():
                record.refusal = Refusal(504, f"The answer took longer than {timeout_s:g} s.", TIMED_OUT)
                record.abandon()
            if not await answer.end_for(error):
                raise
        finally:
            current.reset(token)

    def _record(self, scope: Message, path: str) -> Record:
        return Record(
            decode_replica=self._server.replica_name,
            route=path,
            priority=scope.get("diptych.priority", 0),
            prefill_wish=_prefill_wish(scope),
        )


class _Answer:
    """One response on its way out."""

    def __init__(self, scope: Message, send: Send, record: Record, server: Any) -> None:
        self._send = send
        self._record = record
        self._server = server
        self._asks_engine = scope["method"] == "POST"
        self._with_record = _header(scope, TIMING_HEADER) == b"include"
        self._stream: RecordInStream | None = None
        self._head: Message | None = None
        self._kept = b""
        self._begun = False
        self._ended = False
        self._client_left = False
        self._status = 0

    @property
    def status(self) -> int:
        """Of the answer that was sent to its end; 499 when the client left before that."""
        return self._status if self._ended and not self._client_left else 499

    def listening(self, receive: Any) -> Any:
        """The server's `receive`, which tells when the client leaves."""

        async def received() -> Message:
            message: Message = await receive()
            if message["type"] == "http.disconnect" and not self._ended:
                self._client_left = True
            return message

        return received

    async def send(self, message: Message) -> None:
        """Takes the application's messages as a server would."""
        if message["type"] == "http.response.start":
            self._head = message
            if _header(message, b"content-type").startswith(b"text/event-stream"):
                self._stream = RecordInStream(self._record, told=not self._with_record)
        elif message["type"] == "http.response.body":
            await self._body(message.get("body", b""), message.get("more_body", False))
        else:
            await self._begin()
            await self._send(message)

    async def end_for(self, error: Exception) -> bool:
        """End the response in place of an application that raised; False where its server has to."""
        if self._ended or (self._begun and self._stream is None):
            return False
        refusal = self._record.refusal
        died = refusal is None and await engine_died(self._server)
        if self._begun:
            if refusal is None:
                logger.error("An answer ended early.", exc_info=error)
            self._ended = True
            await self._send(_body_message(_last_words(refusal, died=died)))
        elif refusal or died:
            await self._replace()
        else:
            self._status, self._ended = 500, True  # as its server will say
        return self._begun

    async def _body(self, body: bytes, more: bool) -> None:
        self._kept += body
        if self._ended or (more and self._waits() and not body.startswith(_KEEP_ALIVE)):
            return
        if not self._begun and (self._is_refused() or await self._is_of_dead_engine()):
            await self._replace()
            return
        content, self._kept = self._kept, b""
        if self._stream:
            content = self._stream.pass_on(content, more)
            await self._begin()
        elif self._with_record:
            content = json_with_record(content, self._record)
            await self._begin(len(content))
        else:
            await self._begin()
        self._ended = not more
        await self._send(_body_message(content, more))

    def _is_refused(self) -> bool:
        """Whether the service itself would not take the request; the front end's words for that are not ours."""
        return self._record.refusal is not None

    def _waits(self) -> bool:
        """Whether more has to come first: to a stream the engine's first output, to a record the whole body."""
        if self._stream:
            return self._asks_engine and not self._record.begun
        return self._with_record

    async def _is_of_dead_engine(self) -> bool:
        if self._stream:  # its 200 came before the engine was asked
            return self._waits() and bool(self._server.engine_problem)
        return self._head is not None and self._head["status"] == 500 and await engine_died(self._server)

    async def _begin(self, length: int | None = None) -> None:
        """Send the head, once: with the record, and the length of a body that was changed."""
        if self._head is None or self._begun:
            return
        self._begun = True
        self._status = self._head["status"]
        own = [(name.encode(), value.encode()) for name, value in self._record.headers().items()]
        headers = [*self._head.get("headers", ()), *own]
        if length is not None:
            headers = [pair for pair in headers if pair[0].lower() != b"content-length"]
            headers.append((b"content-length", str(length).encode()))
        await self._send({**self._head, "headers": headers})

    async def _replace(self) -> None:
        self._begun = self._ended = True
        refusal = self._record.refusal
        dead = "the engine died while it worked on this request"
        response = refused(refusal) if refusal else unavailable(dead)
        self._status = response.status_code
        head = {"status": response.status_code, "headers": response.raw_headers}
        await self._send({"type": "http.response.start", **head})
        await self._send(_body_message(response.body))


async def engine_died(server: Any) -> bool:
    """Whether the engine is dead, or found dead within two seconds."""
    for _ in range(20):
        if server.engine_problem:
            return True
        await asyncio.sleep(0.1)
    return False


def unavailable(why: str) -> Response:
    """503 with a time to come back: Serve is replacing the replica."""
    content = error_body(f"The service is restarting an engine: {why}.", UNAVAILABLE, 503)
    return JSONResponse(content, status_code=503, headers={"retry-after": RETRY_AFTER_S})


def refused(refusal: Refusal) -> Response:
    """What a client is told whom the service would not serve."""
    content = error_body(refusal.message, refusal.kind, refusal.status)
    headers = {} if refusal.retry_after_s is None else {"retry-after": str(refusal.retry_after_s)}
    return JSONResponse(content, status_code=refusal.status, headers=headers)


def _last_words(refusal: Refusal | None, *, died: bool) -> bytes:
    """The end of a stream that broke off: an error event as OpenAI's and Anthropic's clients raise it."""
    if refusal:
        error = error_body(refusal.message, refusal.kind, refusal.status)
    else:
        message = ENGINE_DIED if died else "The engine failed on this request."
        error = error_body(message, "server_error", 503 if died else 500)
    return b"event: error\ndata: " + json.dumps({"type": "error", **error}).encode() + b"\n\n"


def _prefill_wish(scope: Message) -> str | None:
    """What the request may ask of the placement, which weighs what burdens whom: only an operator may insist."""
    wish, key = _header(scope, PLACEMENT_HEADER), scope.get("diptych.key")
    if wish not in (b"remote", b"local"):
        return None
    if key is not None and key.admin:
        return wish.decode()
    return RATHER_REMOTE if wish == b"remote" else None


def _body_message(body: bytes, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def _headers(message: Message) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]}


def _header(message: Message, wanted: bytes) -> bytes:
    return next((value for name, value in message.get("headers", ()) if name.lower() == wanted), b"")
