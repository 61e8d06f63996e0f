"""Fewer, larger writes of an answer that streams faster than anybody reads.

Each write of a stream passes several processes, which costs more than the token in it. The first writes, the last
one, and each that comes `LEAST_GAP_S` after the one before go out at once; what comes sooner waits for that moment and
goes out together. So an engine that takes longer for a token is not delayed at all, and none by more.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

LEAST_GAP_S = 0.005
_AT_ONCE = 6  # up to the first token: some routes have as many events of their own before it
_MOST_HELD_BYTES = 64 * 2**10


class SteadyWrites:
    """ASGI middleware: the writes of each stream of events, at least `LEAST_GAP_S` apart. All else passes as it is."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        writes = _Writes(send)
        try:
            await self._app(scope, receive, writes.send)
        finally:
            await writes.end()


class _Writes:
    """One response on its way out."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_stream = False
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._written = 0
        self._due_at = 0.0
        self._timer: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._one_at_a_time = asyncio.Lock()

    async def send(self, message: Message) -> None:
        """Takes the application's messages as a server would."""
        if message["type"] == "http.response.start":
            self._is_stream = _is_stream(message)
        if not self._is_stream or message["type"] != "http.response.body":
            await self._send(message)
            return
        if self._error:
            raise self._error
        self._hold(message.get("body", b""))
        if not message.get("more_body", False):
            await self._write(more=False)
        elif self._is_due():
            await self._write(more=True)
        elif self._timer is None:
            self._timer = asyncio.create_task(self._write_when_due())

    async def end(self) -> None:
        """Write what is held, where the application ended without a last message."""
        await self._write(more=True)

    def _hold(self, body: bytes) -> None:
        if body:
            self._held.append(body)
            self._held_bytes += len(body)

    def _is_due(self) -> bool:
        # A client that reads too slowly must slow the application down: past the limit it waits for its write.
        return self._written < _AT_ONCE or self._held_bytes > _MOST_HELD_BYTES or self._wait_s() <= 0

    def _wait_s(self) -> float:
        return self._due_at - asyncio.get_running_loop().time()

    async def _write_when_due(self) -> None:
        while self._held and self._wait_s() > 0:
            await asyncio.sleep(self._wait_s())
        self._timer = None
        try:
            await self._write(more=True)
        except Exception as error:  # told to the application at its next message
            self._error = error

    async def _write(self, *, more: bool) -> None:
        async with self._one_at_a_time:
            if more and not self._held:
                return
            body, self._held, self._held_bytes = b"".join(self._held), [], 0
            self._written += 1
            self._due_at = asyncio.get_running_loop().time() + LEAST_GAP_S
            await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _is_stream(head: Message) -> bool:
    kinds = (value for name, value in head.get("headers", ()) if name.lower() == b"content-type")
    return next(kinds, b"").startswith(b"text/event-stream")
