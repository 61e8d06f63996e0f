"""The endpoint's HTTP application: the engine's own, with the routes that both phases share replaced by ours."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from diptych.serving.access import AccessMiddleware, error_body
from diptych.serving.orchestrate import Record, Whole
from diptych.serving.ray_llm import (
    NON_STREAMING_RESPONSE_TYPES,
    ChatCompletionRequest,
    CompletionRequest,
    ErrorResponse,
    RawRequestInfo,
    materialise_chat_messages,
)

# Of the engine's own routes only these stay: the others reach into the engine past the orchestrator.
ENGINE_PATHS = frozenset(
    {"/v1/models", "/v1/models/{model:path}", "/tokenize", "/detokenize", "/version", "/metrics"}
)
TIMING_HEADER = "x-diptych-timing"
RETRY_AFTER_S = "10"
_DONE = "data: [DONE]"


def build_front(app: Any, runner: Whole, server: Any, api_key_file: str | None) -> Any:
    """Make the engine's application the endpoint's.

    Args:
        app: vLLM's FastAPI application.
        runner: answers chat and completion requests.
        server: the replica; tells `phases()` and `engine_problem`.
        api_key_file: file with the keys that are let in, one per line; None lets everybody in.
    """
    app.routes[:] = [route for route in app.routes if getattr(route, "path", None) in ENGINE_PATHS]

    @app.post("/v1/chat/completions")
    async def chat(body: ChatCompletionRequest, request: Request) -> Response:
        return await answer(runner, server, materialise_chat_messages(body), request)

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await answer(runner, server, body, request)

    @app.get("/health")
    async def health() -> Response:
        if server.engine_problem:
            return unavailable(server.engine_problem)
        return Response(status_code=200)

    @app.get("/diptych/v1/status")
    async def status() -> Response:
        return JSONResponse({"phases": await server.phases()})

    app.middleware_stack = None  # vLLM has built it already; Starlette builds it again with ours on top
    app.add_middleware(AccessMiddleware, api_key_file=api_key_file)
    return app


async def answer(runner: Whole, server: Any, body: Any, request: Request) -> Response:
    """Run one chat or completion request and shape its answer, streamed or not."""
    if server.engine_problem:
        return unavailable(server.engine_problem)
    record = Record(decode_replica=server.replica_name)
    raw = RawRequestInfo.from_starlette_request(request)
    asked = raw.headers.get(TIMING_HEADER) == "include"
    items = await runner.run(body, raw, record)
    try:
        first = await _first_unless_gone(items, request)
    except ClientGoneError:
        return Response(status_code=499)
    except Exception:
        # Serve replaces the replica of a dead engine; anything else is the engine's own error and stays one.
        if await _engine_died(server):
            return unavailable("the engine died while it worked on this request")
        raise
    headers = _headers(record)
    if isinstance(first, ErrorResponse):
        return JSONResponse(first.model_dump(), status_code=first.error.code or 400, headers=headers)
    if isinstance(first, NON_STREAMING_RESPONSE_TYPES):
        content = first.model_dump() | ({"diptych": record.to_json()} if asked else {})
        return JSONResponse(content, headers=headers)
    stream = _stream(first, items, record if asked else None, server)
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


class ClientGoneError(Exception):
    """The client closed its connection before there was an answer."""


async def _first_unless_gone(items: Any, request: Request) -> Any:
    """The first item, or ClientGoneError; the engine's work on the request ends with it."""
    first = asyncio.ensure_future(anext(aiter(items)))
    gone = asyncio.ensure_future(_until_disconnected(request))
    try:
        await asyncio.wait({first, gone}, return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            return first.result()
        raise ClientGoneError
    finally:
        for task in (first, gone):
            task.cancel()


async def _until_disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stream(first: Any, items: Any, record: Record | None, server: Any) -> AsyncIterator[str]:
    try:
        yield _with_record(first, record)
        async for item in items:
            yield _with_record(item, record)
    except Exception:
        died = await _engine_died(server)
        message = (
            "The engine died while it wrote this answer." if died else "The engine failed on this request."
        )
        yield f"data: {json.dumps(error_body(message, 'server_error', 503 if died else 500))}\n\n{_DONE}\n\n"


def _with_record(item: str, record: Record | None) -> str:
    """Put the record, as a chunk of its own without choices, before the end of the stream."""
    if record is None or not item.startswith(_DONE):
        return item
    chunk = {
        "id": record.request_id,
        "object": "chat.completion.chunk",
        "choices": [],
        "diptych": record.to_json(),
    }
    return f"data: {json.dumps(chunk)}\n\n{item}"


async def _engine_died(server: Any) -> bool:
    for _ in range(20):
        if server.engine_problem:
            return True
        await asyncio.sleep(0.1)
    return False


def unavailable(why: str) -> Response:
    """503 with a time to come back: Serve is replacing the replica."""
    content = error_body(f"The service is restarting an engine: {why}.", "service_unavailable", 503)
    return JSONResponse(content, status_code=503, headers={"retry-after": RETRY_AFTER_S})


def _headers(record: Record) -> dict[str, str]:
    told = {
        "x-diptych-path": record.path,
        "x-diptych-why": record.why,
        "x-diptych-prefill-ms": record.prefill_ms,
        "x-diptych-kv-transfer-bytes": record.transfer.bytes if record.transfer else None,
    }
    return {name: str(value) for name, value in told.items() if value is not None}
