"""What clients hear from behind HAProxy while no decode replica is up: soon, that one is being started.

HAProxy then sends them to a proxy of Serve's own on the head, which would have them wait for as long as a replica takes
to start: minutes for a large model. It also does so for a moment after a replica came up, of which Serve knows first:
so each request is passed on, and refused when nothing has come of it within `BEGINS_WITHIN_S`. Serve calls
`middlewares` in the process of each of its HTTP servers where RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names it.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.middleware import Middleware
from starlette.responses import JSONResponse

from diptych.serving import proxy
from diptych.serving.errors import NOBODY_IS_UP

Message = MutableMapping[str, Any]
App = Callable[[Message, Any, Any], Awaitable[None]]

BEGINS_WITHIN_S = 2.0
RETRY_AFTER_S = "5"
_OF_SERVE = "/-/"


def middlewares() -> list[Middleware]:
    """What goes around each of Serve's HTTP servers behind HAProxy."""
    port = int(os.environ.get("RAY_SERVE_FALLBACK_PROXY_HTTP_PORT", "8500"))
    return [*proxy.middlewares(), Middleware(NobodyIsUp, port=port)]


class NobodyIsUp:
    """Refuses what comes to the port that HAProxy falls back to and is not answered soon; other servers' passes.

    Args:
        port: of the proxy that HAProxy falls back to.
    """

    def __init__(self, app: App, *, port: int) -> None:
        self._app = app
        self._port = port

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        server = scope.get("server")
        came_here = scope["type"] == "http" and server is not None and server[1] == self._port
        if came_here and not scope["path"].startswith(_OF_SERVE):
            await self._passed_or_refused(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _passed_or_refused(self, scope: Message, receive: Any, send: Any) -> None:
        begun, given_up = asyncio.Event(), asyncio.Event()

        async def noted(message: Message) -> None:
            if given_up.is_set():  # Serve's proxy ends quietly when it is called off, and others speak for it
                return
            begun.set()
            await send(message)

        passed = asyncio.ensure_future(self._app(scope, receive, noted))
        beginning = asyncio.create_task(begun.wait())
        try:
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait({passed, beginning}, timeout=BEGINS_WITHIN_S, return_when=first)
            if begun.is_set() or passed.done():
                await passed
                return
        finally:
            given_up.set()
            for task in (passed, beginning):
                task.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await passed
        refusal = JSONResponse(NOBODY_IS_UP, status_code=503, headers={"retry-after": RETRY_AFTER_S})
        await refusal(scope, receive, send)
