"""The endpoint's HTTP application: the engine's own, with a door before it and a report on every answer."""

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from diptych.serving import nccl
from diptych.serving.access import AccessMiddleware
from diptych.serving.errors import INVALID, error_body
from diptych.serving.report import RETRY_AFTER_S, ReportMiddleware, unavailable
from diptych.serving.routes import ENGINE_ROUTES
from diptych.serving.withholding import WithholdingMiddleware
from diptych.serving.writes import SteadyWrites

# Of the engine's own routes these stay: what its clients use. The others steer the engine, or split a request
# between front end and engine in ways that only another program would.
ENGINE_PATHS = frozenset(ENGINE_ROUTES)


def build_front(app: Any, server: Any, access: Mapping[str, Any]) -> Any:
    """Make the engine's application the endpoint's.

    Args:
        app: vLLM's FastAPI application.
        server: the replica (`facing.Facing`).
        access: who may (`AccessMiddleware`'s arguments).
    """
    app.routes[:] = [route for route in app.routes if getattr(route, "path", None) in ENGINE_PATHS]

    @app.get("/health")
    async def health() -> Response:
        if server.engine_problem:
            return unavailable(server.engine_problem)
        return Response(status_code=200)

    @app.get("/ready")
    async def ready() -> Response:
        readiness = await server.service_readiness()
        headers = {} if readiness.takes_requests else {"retry-after": RETRY_AFTER_S}
        status = 200 if readiness.takes_requests else 503
        return JSONResponse({"state": readiness.state}, status_code=status, headers=headers)

    @app.post("/diptych/v1/canary")
    async def canary() -> Response:
        tried = await server.try_pairs()
        works = bool(tried) and all(one["ok"] for one in tried)
        return JSONResponse({"ok": works, "pairs": tried}, status_code=200 if works else 503)

    @app.post("/diptych/v1/probe")
    async def probe(request: Request) -> Response:
        try:
            return JSONResponse(await server.probe(await request.body()))
        except ValueError as error:
            return JSONResponse(error_body(str(error), INVALID, 400), status_code=400)

    @app.post("/diptych/v1/nccl")
    async def all_reduce() -> Response:
        try:
            return JSONResponse(await nccl.measure())
        except nccl.Busy:
            return JSONResponse(error_body(nccl.BUSY, INVALID, 409), status_code=409)

    @app.get("/diptych/v1/status")
    async def status() -> Response:
        readiness = await server.service_readiness()
        return JSONResponse({"phases": await server.phases(), "readiness": readiness.to_json()})

    @app.get("/diptych/v1/requests")
    async def requests(since: float = 0.0) -> Response:
        return JSONResponse(await server.requests(since))

    @app.exception_handler(HTTPException)
    async def refused(_: Any, error: HTTPException) -> Response:
        """What Starlette and FastAPI refuse themselves (a route, a method, a body of bytes), in OpenAI's words."""
        content = error_body(str(error.detail), INVALID, error.status_code)
        return JSONResponse(content, status_code=error.status_code, headers=error.headers)

    app.middleware_stack = None  # vLLM has built it already; Starlette builds it again with ours on top
    # Innermost: what is joined passes all others but once.
    app.user_middleware.append(Middleware(SteadyWrites))
    app.add_middleware(ReportMiddleware, server=server)
    app.add_middleware(WithholdingMiddleware, server=server)
    app.add_middleware(AccessMiddleware, **{"api_key_file": None, **access})
    return app
