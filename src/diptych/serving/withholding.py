"""What clients are told while a decode replica's transport contradicts what was asked for: 503, why, and to come back.

A failed health check would have the replica replaced, which mends no link. Where another replica takes prompts, they
soon go there (`balancing`, `router`); until then, and where there is none, the replica itself refuses them.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import JSONResponse

from diptych.serving import metrics
from diptych.serving.errors import UNAVAILABLE, error_body
from diptych.serving.readiness import CONTRADICTED
from diptych.serving.routes import route_path

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

RETRY_AFTER_S = "10"
_TAKES_PROMPTS = ("/v1/chat/", "/v1/completions", "/v1/responses", "/v1/messages")


class WithholdingMiddleware:
    """Refuses prompts while the replica is `contradicted`. An admin key's are let through: a proof asks with one.

    Args:
        server: the replica, which has `readiness()`.
    """

    def __init__(self, app: Any, *, server: Any) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = self._why_not(scope)
        if why is None:
            await self._app(scope, receive, send)
            return
        metrics.refused(503)
        told = error_body(f"The service is not ready: {why}", UNAVAILABLE, 503)
        response = JSONResponse(told, status_code=503, headers={"retry-after": RETRY_AFTER_S})
        await response(scope, receive, send)

    def _why_not(self, scope: Scope) -> str | None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return None
        key = scope.get("diptych.key")
        if (key is not None and key.admin) or not route_path(scope).startswith(_TAKES_PROMPTS):
            return None
        readiness = self._server.readiness()
        return str(readiness.why) if readiness.state == CONTRADICTED else None
