"""A request's way through both phases, and the record of what it took.

`Orchestrator` runs on the decode replica, which owns the request from first byte to last: prefill elsewhere, then
decode here with the KV cache that crossed. What cannot be split, or whose prefill failed, runs whole on decode and
the record says so.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

from diptych.serving.legs import decode_leg, prefill_leg, why_whole
from diptych.serving.ray_llm import ChatCompletionRequest, ErrorResponse, RawRequestInfo
from diptych.serving.transfers import Transfer, ledger

logger = logging.getLogger(__name__)

PREFILL_DEADLINE_S = 300.0
_FORWARDED_HEADERS = frozenset({"traceparent", "tracestate"})


@dataclass
class Record:
    """What one request took. Times in milliseconds as seen on the decode replica.

    `path`: `remote` (prefill elsewhere), `local-whole` (cannot be split), `local-no-prefill` (no prefill replica is
    ready), `recovered` (its prefill failed), `aggregated`.
    """

    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    path: str = "aggregated"
    why: str | None = None
    prefill_ms: float | None = None
    prefill_replica: str | None = None
    decode_replica: str | None = None
    transfer: Transfer | None = None

    def to_json(self) -> dict[str, Any]:
        """The `diptych` object of a response. Everything in it is measured, so `computed` is empty."""
        moved = self.transfer
        return {
            "path": self.path,
            "why": self.why,
            "prefill_ms": self.prefill_ms,
            "prefill_replica": self.prefill_replica,
            "decode_replica": self.decode_replica,
            "kv_transfer_ms": round(moved.seconds * 1e3, 3) if moved else None,
            "kv_transfer_post_ms": round(moved.post_seconds * 1e3, 3) if moved else None,
            "kv_transfer_bytes": moved.bytes if moved else None,
            "kv_transfer_descriptors": moved.descriptors if moved else None,
            "computed": [],
        }


class Whole:
    """Runs a request whole on this replica's engine."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    async def run(self, request: Any, raw: Any, record: Record) -> AsyncGenerator[Any, None]:
        """Answer a chat or completion request: one response object, or streamed SSE strings.

        `record` is filled while the answer is made and complete when the first item is yielded.
        """
        return self._decode(decode_leg(request, record.request_id, None), raw, record)

    async def _decode(self, request: Any, raw: Any, record: Record) -> AsyncGenerator[Any, None]:
        method = self._engine.chat if isinstance(request, ChatCompletionRequest) else self._engine.completions
        async for item in method(request, raw):
            if record.transfer is None:
                record.transfer = ledger.take(record.request_id)
            yield item


class Orchestrator(Whole):
    """Prefill on a prefill replica, decode here."""

    def __init__(self, engine: Any, prefill_handle: Any, prefill_ready: Callable[[], bool]) -> None:
        super().__init__(engine)
        self._prefill_handle = prefill_handle
        self._prefill_ready = prefill_ready

    async def run(self, request: Any, raw: Any, record: Record) -> AsyncGenerator[Any, None]:
        record.path, record.why = "remote", why_whole(request)
        kv_transfer_params = None
        if record.why:
            record.path = "local-whole"
        elif not self._prefill_ready():
            record.path, record.why = "local-no-prefill", "no prefill replica is ready"
        else:
            kv_transfer_params = await self._prefill(request, raw, record)
        return self._decode(decode_leg(request, record.request_id, kv_transfer_params), raw, record)

    async def _prefill(self, request: Any, raw: Any, record: Record) -> dict[str, Any] | None:
        """Run the prompt on a prefill replica; where its KV cache lies, or None when that failed."""
        leg = prefill_leg(request, record.request_id)
        handle = self._prefill_handle
        method = handle.chat if isinstance(request, ChatCompletionRequest) else handle.completions
        headers = {k: v for k, v in raw.headers.items() if k.lower() in _FORWARDED_HEADERS}
        started = time.perf_counter()
        try:
            async with asyncio.timeout(PREFILL_DEADLINE_S):
                answer = await anext(aiter(method.remote(leg, RawRequestInfo(headers=headers))))
        except Exception as error:
            self._recover(record, f"{type(error).__name__}: {error}")
            return None
        record.prefill_ms = round((time.perf_counter() - started) * 1e3, 3)
        if isinstance(answer, ErrorResponse):
            self._recover(record, answer.error.message)
            return None
        params: dict[str, Any] | None = answer.kv_transfer_params
        if not params:
            self._recover(record, "prefill returned no KV cache")
            return None
        record.prefill_replica = params.get("remote_engine_id")
        return params

    def _recover(self, record: Record, why: str) -> None:
        logger.warning("Prefill of request %s failed, decode runs it whole: %s", record.request_id, why)
        record.path, record.why = "recovered", "prefill failed"
