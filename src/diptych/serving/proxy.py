"""What clients hear from Serve's HTTP proxy where no replica answers: OpenAI's words, and when to come back.

A replica that dies takes the requests inside it along, and Serve's proxy then says "Internal Server Error", or breaks
a stream off. Serve calls `middlewares` in the proxy's process where RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names it.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.middleware import Middleware
from starlette.responses import JSONResponse

from diptych.serving.errors import UNAVAILABLE, error_body

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_RETRY_AFTER_S = "10"
_GONE = error_body(
    "The replica that had this request is gone. Another one takes its place: come back later.",
    UNAVAILABLE,
    503,
)
_OF_SERVE = "/-/"


def middlewares() -> list[Middleware]:
    """What goes around Serve's proxy."""
    return [Middleware(LastWords)]


class LastWords:
    """Answers in place of a replica that can't any more: 503 with Retry-After; in a stream, an error event."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_OF_SERVE):
            await self._app(scope, receive, send)
            return
        answer = _Answer(scope, receive, send)
        try:
            await self._app(scope, receive, answer.send)
        except Exception:
            if not await answer.end():
                raise
        else:
            await answer.end()


class _Answer:
    """One response on its way through the proxy."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._begun = self._ended = self._streams = self._is_serves = False

    async def send(self, message: Message) -> None:
        """Takes the proxy's messages as a server would; what Serve says itself of a missing replica is left out."""
        if message["type"] == "http.response.start":
            self._begun = True
            self._is_serves = message["status"] in (500, 503) and not _speaks_json(message)
            self._streams = _content_type(message).startswith(b"text/event-stream")
        elif message["type"] == "http.response.body":
            self._ended = not message.get("more_body", False)
        if not self._is_serves:
            await self._send(message)

    async def end(self) -> bool:
        """Say the last words, where the response has not come to its end; False where none can be said."""
        if not self._begun or self._is_serves:
            headers = {"retry-after": _RETRY_AFTER_S}
            response = JSONResponse(_GONE, status_code=503, headers=headers)
            await response(self._scope, self._receive, self._send)
            return True
        if self._streams and not self._ended:
            event = b"event: error\ndata: " + json.dumps({"type": "error", **_GONE}).encode() + b"\n\n"
            await self._send({"type": "http.response.body", "body": event, "more_body": False})
            return True
        return self._ended


def _content_type(message: Message) -> bytes:
    return next((value for name, value in message.get("headers", ()) if name.lower() == b"content-type"), b"")


def _speaks_json(message: Message) -> bool:
    return _content_type(message).startswith(b"application/json")
