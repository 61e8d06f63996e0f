"""The small proxy before two bare vLLM servers, as vLLM's documentation of disaggregated prefill describes it.

A request goes to prefill first, for one token and with the order to keep the KV cache; then, with the place of that
KV cache, to decode, whose answer is passed on as it comes.
Run: `python small_proxy.py PORT PREFILL_URL DECODE_URL`.
"""

import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

_KEEP = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def build(prefill_url: str, decode_url: str) -> FastAPI:
    """The proxy's application."""
    app = FastAPI()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    prefill, decode = (
        httpx.AsyncClient(base_url=url, timeout=None, limits=limits, trust_env=False)
        for url in (prefill_url, decode_url)
    )

    async def keep(path: str, asked: dict[str, Any], headers: dict[str, str]) -> Any:
        """Have prefill compute the prompt's KV cache; where it lies."""
        leg = {**asked, "stream": False, "max_tokens": 1, "kv_transfer_params": _KEEP}
        leg.pop("stream_options", None)
        if "max_completion_tokens" in leg:
            leg["max_completion_tokens"] = 1
        answer = await prefill.post(path, json=leg, headers=headers)
        answer.raise_for_status()
        return answer.json()["kv_transfer_params"]

    async def handle(request: Request) -> StreamingResponse:
        asked, headers = await request.json(), {"X-Request-Id": str(uuid.uuid4())}
        asked["kv_transfer_params"] = await keep(request.url.path, asked, headers)
        call = decode.build_request("POST", request.url.path, json=asked, headers=headers)
        answer = await decode.send(call, stream=True)

        async def passed_on() -> AsyncIterator[bytes]:
            async for part in answer.aiter_bytes():
                yield part
            await answer.aclose()

        return StreamingResponse(
            passed_on(), status_code=answer.status_code, media_type=answer.headers["content-type"]
        )

    app.post("/v1/completions")(handle)
    app.post("/v1/chat/completions")(handle)
    return app


if __name__ == "__main__":
    uvicorn.run(build(*sys.argv[2:4]), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
