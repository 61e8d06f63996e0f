"""What stands around Serve's HTTP servers, its proxy's and, behind HAProxy, each replica's own.

What Serve says itself, clients hear in OpenAI's words, with a time to come back: a replica that dies takes the requests
inside it along, and Serve then says "Internal Server Error" in plain text, or breaks a stream off. And the headers by
which a client could steer Serve past our own rules get no further.

Serve calls `middlewares` in each of these servers where RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names it.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.middleware import Middleware
from starlette.responses import JSONResponse

from diptych.serving.balancing import Healthz
from diptych.serving.errors import OVERLOADED, TIMED_OUT, UNAVAILABLE, error_body

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_RETRY_AFTER_S = b"10"
_GONE = error_body(
    "The replica that had this request is gone. Another one takes its place: come back later.",
    UNAVAILABLE,
    503,
)
_SERVES_OWN = {
    408: error_body("The answer took longer than Ray Serve lets it. Come back later.", TIMED_OUT, 408),
    429: error_body("More requests wait than may. Come back later.", OVERLOADED, 429),
    500: _GONE,
    503: _GONE,
}
"""In place of what Serve says with these statuses; a replica speaks JSON with all of them."""
_STEERING = frozenset({b"x-request-timeout-seconds", b"x-request-disconnect-disabled"})
"""Serve reads them from any client: another deadline than the service's, and work for clients that have left."""
_OF_SERVE = "/-/"
_JSON = b"application/json"


def middlewares() -> list[Middleware]:
    """What goes around each server."""
    return [Middleware(Healthz), Middleware(Unsteered), Middleware(LastWords)]


class Unsteered:
    """Passes requests on without the headers that steer Serve. Our own for a deadline is `x-request-timeout`."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            kept = [pair for pair in scope["headers"] if pair[0].lower() not in _STEERING]
            scope = {**scope, "headers": kept}
        await self._app(scope, receive, send)


class LastWords:
    """Answers in place of Serve, and of a replica that can't any more; in a stream, by an error event."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_OF_SERVE):
            await self._app(scope, receive, send)
            return
        answer = _Answer(scope, receive, send)
        try:
            await self._app(scope, receive, answer.send)
        except (
            asyncio.CancelledError
        ):  # so a replica's server ends a request whose time is up, having said so
            if not await answer.end_withheld():
                raise
        except Exception:
            if not await answer.end():
                raise
        else:
            await answer.end()


class _Answer:
    """One response on its way through the server."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._begun = self._ended = self._streams = False
        self._withheld: Message | None = None

    async def send(self, message: Message) -> None:
        """Takes the application's messages as a server would; what Serve says itself is left out."""
        if message["type"] == "http.response.start":
            self._begun = True
            if message["status"] in _SERVES_OWN and not _header(message, b"content-type").startswith(_JSON):
                self._withheld = message
            self._streams = _header(message, b"content-type").startswith(b"text/event-stream")
        elif message["type"] == "http.response.body":
            self._ended = not message.get("more_body", False)
        if self._withheld is None:
            await self._send(message)

    async def end(self) -> bool:
        """Say the last words, where the response has not come to its end; False where none can be said."""
        if not self._begun:
            await self._say(503, _RETRY_AFTER_S)
            return True
        if self._streams and not self._ended:
            event = b"event: error\ndata: " + json.dumps({"type": "error", **_GONE}).encode() + b"\n\n"
            await self._send({"type": "http.response.body", "body": event, "more_body": False})
            return True
        return await self.end_withheld() or self._ended

    async def end_withheld(self) -> bool:
        """Say in our words what Serve said; False where it said nothing."""
        if self._withheld is None:
            return False
        after = _header(self._withheld, b"retry-after") or _RETRY_AFTER_S
        await self._say(self._withheld["status"], after)
        return True

    async def _say(self, status: int, retry_after: bytes) -> None:
        content = _SERVES_OWN[status]
        headers = {"retry-after": retry_after.decode("latin-1")}
        response = JSONResponse(content, status_code=content["error"]["code"], headers=headers)
        await response(self._scope, self._receive, self._send)


def _header(message: Message, wanted: bytes) -> bytes:
    return next((value for name, value in message.get("headers", ()) if name.lower() == wanted), b"")
