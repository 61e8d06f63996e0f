"""Prompts of our own: they measure what prefill costs here, and try pairs of replicas (`proof` says when)."""

import asyncio
import logging
import random
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

from vllm import SamplingParams

from diptych.serving.comparison import Difference, Token, compare
from diptych.serving.orchestrate import Orchestrator
from diptych.serving.outputs import last_output
from diptych.serving.peers import Peer
from diptych.serving.record import Record, current

logger = logging.getLogger(__name__)

_SIZES = (16, 64, 256, 1024, 4096)
_LONG_ENOUGH_S = 0.05
_LOWEST_TOKEN, _MOST_TOKENS = 100, 1000
_ANSWERED_WITHIN_S = 30.0
_NEW_TOKENS, _LOGPROBS = 4, 5
_HERE = ""


class Canary:
    """Sends prompts of our own.

    Args:
        runner: the orchestrator that they go through.
        period_s: seconds without a KV transfer after which a pair is tried; 0: never.

    Attributes:
        sent: prompts so far, by prefill replica, and "" for those that were computed here alone.
    """

    def __init__(self, runner: Orchestrator, period_s: float) -> None:
        self._runner = runner
        self._period_s = period_s
        self.sent: Counter[str] = Counter()

    async def measure_here(self, client: Any) -> None:
        """Measure prefill on this replica: prompts of growing size until one takes long, two at least."""
        for count, size in enumerate(_SIZES):
            if size >= client.vllm_config.model_config.max_model_len:
                return
            seconds = self._runner.learn_here(await _asked(client, _tokens(size), f"measure-{size}"))
            if count and (seconds is None or seconds > _LONG_ENOUGH_S):
                return

    def carried_nothing(self, peer: Peer) -> bool:
        """Whether a pair had no KV transfer for the period, or none yet."""
        last = max(peer.transferred_at or 0.0, peer.transfer_failed_at or 0.0)
        return not last or time.monotonic() - last > self._period_s

    async def attempt(self, name: str, size: int | None = None, priority: int = 0) -> dict[str, Any]:
        """One prompt through one prefill replica, and what became of it.

        Args:
            name: of the replica.
            size: tokens of the prompt; None: one more than a block.
            priority: in the queues of both engines; 0 is a client's.

        Returns:
            The record's JSON, with `prompt_tokens`, `ok` (its KV cache crossed) and `error`.
        """
        record, error = Record(prefill_wish="remote", only_peer=name, priority=priority), None
        self.sent[name] += 1
        try:
            await asyncio.create_task(self._through(record, _tokens(size or self._runner.block_tokens + 1)))
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

    async def both_ways(self, name: str) -> Difference | None:
        """How the greedy answers to one prompt differ: with its KV cache from a prefill replica, and computed here.

        Its length is a block and a token, and each way has a `cache_salt`: neither profits from the other's KV cache.

        Args:
            name: of the prefill replica.

        Returns:
            None where it was not answered both ways: one of them was refused, failed or late, or no KV cache crossed.
        """
        tokens = _tokens(self._runner.block_tokens + 1)
        remote = Record(prefill_wish="remote", only_peer=name)
        local = Record(prefill_wish="local", only_peer=name)
        try:
            async with asyncio.timeout(_ANSWERED_WITHIN_S):
                self.sent[name] += 1
                first = await asyncio.create_task(self._through(remote, tokens, salted=True))
                if remote.path != "remote" or not remote.to_json()["kv_transfer_bytes"]:
                    return None
                self.sent[_HERE] += 1
                second = await asyncio.create_task(self._through(local, tokens, salted=True))
        except Exception as error:
            logger.info("A prompt was not answered both ways, %s: %s: %s", name, type(error).__name__, error)
            return None
        return compare(_said(second), _said(first))

    async def _through(self, record: Record, tokens: list[int], *, salted: bool = False) -> Any:
        current.set(record)  # this task's own
        return await _asked(self._runner, tokens, f"canary-{record.id}", salted=salted)


async def _asked(engine: Any, tokens: list[int], request_id: str, *, salted: bool = False) -> Any:
    """The last output of one greedy token after a prompt; salted: of a few, with their log-probabilities."""
    prompt = {"type": "token", "prompt_token_ids": tokens}
    params = SamplingParams(max_tokens=1, temperature=0)
    if salted:
        prompt |= {"cache_salt": uuid.uuid4().hex}
        params = SamplingParams(max_tokens=_NEW_TOKENS, temperature=0, logprobs=_LOGPROBS)
    return await last_output(engine.generate(prompt, params, request_id))


def _tokens(count: int) -> list[int]:
    """A prompt that no cache knows."""
    return [random.randrange(_LOWEST_TOKEN, _MOST_TOKENS) for _ in range(count)]


def _said(output: Any) -> Sequence[Token]:
    """The tokens of an engine's output, by their numbers."""
    (answer,) = output.outputs
    return [
        Token(str(number), told[number].logprob, {str(other): one.logprob for other, one in told.items()})
        for number, told in zip(answer.token_ids, answer.logprobs or (), strict=True)
    ]
