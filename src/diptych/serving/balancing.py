"""What HAProxy hears of a replica, which chooses among them itself: whether new requests should go to others.

It asks each replica's own HTTP server `GET /-/healthz` and leaves out one that answers 503, whose running requests it
lets come to their end. Without that a replica that refuses, and so has the fewest requests, would attract them all.
Serve asks the replica's actor instead: it hears nothing of this and replaces nobody.

Serve calls `proxy.middlewares` in the replica's process; in those of its proxies there is no replica to speak of.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import PlainTextResponse

from diptych.serving.routes import route_path

Message = MutableMapping[str, Any]
App = Callable[[Message, Any, Any], Awaitable[None]]

_ASKED = "/-/healthz"


@dataclass
class Here:
    """The replica of this process.

    Args:
        avoid: why new requests should go to another replica, of which one takes them; None: they may come.
    """

    avoid: str | None = None


here = Here()


class Healthz:
    """Answers HAProxy's question with 503 while the replica here is to be avoided; all else is passed on."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if here.avoid is None or scope["type"] != "http" or route_path(scope) != _ASKED:
            await self._app(scope, receive, send)
        else:
            await PlainTextResponse(here.avoid, status_code=503)(scope, receive, send)
