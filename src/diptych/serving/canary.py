"""Prompts of our own: they measure what prefill costs here, and try pairs of replicas (`proof` says when)."""

import asyncio
import logging
import random
import time
from typing import Any

from vllm import SamplingParams

from diptych.serving.orchestrate import Orchestrator
from diptych.serving.outputs import last_output
from diptych.serving.peers import Peer
from diptych.serving.record import Record, current

logger = logging.getLogger(__name__)

_SIZES = (16, 64, 256, 1024, 4096)
_LONG_ENOUGH_S = 0.05
_LOWEST_TOKEN, _MOST_TOKENS = 100, 1000


class Canary:
    """Sends prompts of our own.

    Args:
        runner: the orchestrator that they go through.
        period_s: seconds without a KV transfer after which a pair is tried; 0: never.
    """

    def __init__(self, runner: Orchestrator, period_s: float) -> None:
        self._runner = runner
        self._period_s = period_s

    async def measure_here(self, client: Any) -> None:
        """Measure prefill on this replica: prompts of growing size until one takes long, two at least."""
        for count, size in enumerate(_SIZES):
            if size >= client.vllm_config.model_config.max_model_len:
                return
            seconds = self._runner.learn_here(await _asked(client, size, f"measure-{size}"))
            if count and (seconds is None or seconds > _LONG_ENOUGH_S):
                return

    def carried_nothing(self, peer: Peer) -> bool:
        """Whether a pair had no KV transfer for the period, or none yet."""
        last = max(peer.transferred_at or 0.0, peer.transfer_failed_at or 0.0)
        return not last or time.monotonic() - last > self._period_s

    async def attempt(self, name: str, size: int | None = None) -> dict[str, Any]:
        """One prompt through one prefill replica, and what became of it.

        Args:
            name: of the replica.
            size: tokens of the prompt; None: one more than a block.

        Returns:
            The record's JSON, with `prompt_tokens`, `ok` (its KV cache crossed) and `error`.
        """
        record, error = Record(prefill_wish="remote", only_peer=name), None
        try:
            await asyncio.create_task(self._through(record, size or self._runner.block_tokens + 1))
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        told = record.to_json()
        crossed = error is None and told["path"] == "remote" and bool(told["kv_transfer_bytes"])
        if crossed and told["prefill_replica"] != name:
            crossed, error = False, f"Serve gave it to prefill replica {told['prefill_replica']}"
        if not crossed:
            logger.warning("A prompt of our own did not cross from %s: %s", name, error or told["why"])
        tokens = next((leg.prompt_tokens for leg in record.legs), None)
        return told | {"prefill_replica": name, "prompt_tokens": tokens, "ok": crossed, "error": error}

    async def _through(self, record: Record, size: int) -> None:
        current.set(record)  # this task's own
        await _asked(self._runner, size, f"canary-{record.id}")


async def _asked(engine: Any, size: int, request_id: str) -> Any:
    """The output of one greedy token after so many that no cache knows."""
    tokens = [random.randrange(_LOWEST_TOKEN, _MOST_TOKENS) for _ in range(size)]
    prompt = {"type": "token", "prompt_token_ids": tokens}
    return await last_output(engine.generate(prompt, SamplingParams(max_tokens=1, temperature=0), request_id))
