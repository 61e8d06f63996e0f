"""The deployment class of a prefill replica."""

import asyncio
import contextlib
from typing import Any

from diptych.serving import metrics, tracing
from diptych.serving.counters import read_counters
from diptych.serving.drain import wait_until_fetched
from diptych.serving.engine import lease_s
from diptych.serving.legs import prefill_params
from diptych.serving.outputs import computed_s, last_output, milliseconds, queued_s
from diptych.serving.phase import Phase
from diptych.serving.ray_llm import DPPDPrefillServer, PDPrefillServer
from diptych.serving.transfers import TAG

_PREFILL_TELLS = ("kv_transfer_params", "problem", "first_token", "cached_tokens", "queue_ms", "compute_ms")


class PrefillServer(Phase, PDPrefillServer):
    """A prefill replica."""

    phase = "prefill"

    async def __init__(self, llm_config: Any, *, digest: str = "") -> None:  # type: ignore[misc]
        self._digest = digest
        self._waiting: dict[str, int] = {}
        self._is_draining = False
        await super().__init__(llm_config)

    async def prefill(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Compute the KV cache of one prompt and keep it for the decode replica that asks.

        Args:
            asked: `prompt` (as vLLM's front end renders it: its tokens), `id` (32 hexadecimal digits),
                `generation` (of the decode replica), `uncached_tokens` (how many of them it expects to be computed),
                `priority`, `trace_headers`, `drawn` (how the first token of the answer is drawn; None: in any way).

        Returns:
            `kv_transfer_params` (where the KV cache lies; None without one), `problem` (why there is none),
            `first_token` (the answer's first token, where it was asked how to draw it),
            `cached_tokens` (found in this engine's prefix cache), `queue_ms` (waiting for the engine) and
            `compute_ms` (until it was done), None where it does not tell, `waiting_tokens` (to be computed for
            prompts that still wait here), `replica`.
        """
        if asked.get("generation") != self.generation:
            return self._answer(problem=f"it is of generation {self.generation}")
        if self.engine_problem:
            return self._answer(problem=self.engine_problem)
        self._waiting[asked["id"]] = asked["uncached_tokens"]
        try:
            with tracing.continued(asked["trace_headers"], "diptych.prefill.engine") as there:
                output = await self._computed(
                    asked | {"trace_headers": there.headers or asked["trace_headers"]}
                )
        finally:
            self._waiting.pop(asked["id"], None)
        if output is None:
            return self._answer(problem=self.engine_problem)
        queue_ms = milliseconds(queued_s(output.metrics))
        compute_ms = milliseconds(computed_s(output.metrics))
        cached = output.num_cached_tokens or 0
        metrics.prefill_done(len(output.prompt_token_ids or ()) - cached, queue_ms, compute_ms, cached)
        return self._answer(
            kv_transfer_params=output.kv_transfer_params,
            first_token=output.outputs[0].token_ids[0] if asked.get("drawn") else None,
            cached_tokens=output.num_cached_tokens,
            queue_ms=queue_ms,
            compute_ms=compute_ms,
        )

    async def started(self, asked: dict[str, Any]) -> None:
        """Do nothing: decode calls this to have Serve start a replica, and then there is one."""

    async def _computed(self, asked: dict[str, Any]) -> Any:
        """The engine's output; None when the engine dies before."""
        outputs = self.engine.client.generate(
            asked["prompt"],
            prefill_params(asked.get("drawn")),
            f"prefill-{TAG}{asked['id']}",
            priority=asked["priority"],
            trace_headers=asked["trace_headers"],
        )
        computing = asyncio.ensure_future(last_output(outputs))
        dying = asyncio.ensure_future(self._engine_dead.wait())
        try:
            await asyncio.wait({computing, dying}, return_when=asyncio.FIRST_COMPLETED)
            return computing.result() if computing.done() else None
        finally:
            dying.cancel()
            if not computing.done():
                computing.cancel()
                with contextlib.suppress(Exception, asyncio.CancelledError):
                    await computing

    def _answer(self, **fields: Any) -> dict[str, Any]:
        told = {"waiting_tokens": self._waiting_tokens, "replica": self.replica_name}
        return dict.fromkeys(_PREFILL_TELLS) | told | fields

    @property
    def _waiting_tokens(self) -> int:
        return sum(self._waiting.values())

    async def vitals(self) -> dict[str, Any]:
        return await super().vitals() | {
            "waiting_tokens": self._waiting_tokens,
            "draining": self._is_draining,
        }

    async def __del__(self) -> None:
        """Called by Serve before it ends the replica; KV cache that decode is about to fetch stays so long."""
        self._is_draining = True
        has_started = getattr(self, "_engine_vitals", None) is not None  # else there is nothing to be fetched
        if has_started and not self.engine_problem:
            await wait_until_fetched(lambda: read_counters()["kv_cache_usage"], lease_s(self.engine.client))
        await asyncio.to_thread(tracing.flush)
        await super().__del__()


class DataParallelPrefillServer(PrefillServer, DPPDPrefillServer):
    """A rank of a data-parallel prefill replica: Ray starts and restarts all ranks of one together."""
