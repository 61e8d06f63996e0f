"""A prompt's way through both phases.

vLLM's front end turns every request, whatever its route and shape, into calls of one method: `generate` of its
engine client. The orchestrator takes that method's place on the decode replica: prefill elsewhere, then decode
here with the KV cache that crossed. So what a request means is vLLM's own doing on either path, and no route leads
past the orchestrator. What cannot be split, or whose prefill failed, runs whole on decode and the record says so.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any

from diptych.serving.legs import decode_params, prefill_prompt, prompt_tokens, why_whole
from diptych.serving.record import Leg, current
from diptych.serving.transfers import TAG, ledger

logger = logging.getLogger(__name__)

PREFILL_DEADLINE_S = 300.0

Generate = Callable[..., AsyncGenerator[Any, None]]


class Whole:
    """Runs every prompt whole on this replica's engine, and keeps the record.

    Args:
        generate: `AsyncLLM.generate`, bound to the engine client.
    """

    def __init__(self, generate: Generate) -> None:
        self._generate = generate

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **more: Any
    ) -> AsyncGenerator[Any, None]:
        """As `AsyncLLM.generate`."""
        leg = Leg()
        record = current.get()
        if record is None:  # nobody's request: a warm-up
            params = decode_params(sampling_params, None)
            async for output in self._generate(prompt, params, request_id, **more):
                yield output
            return
        record.legs.append(leg)
        place = await self._placed(prompt, sampling_params, request_id, leg, more)
        params = decode_params(sampling_params, place)
        async for output in self._generate(prompt, params, f"{request_id}-{TAG}{leg.id}", **more):
            _note(leg, output)
            yield output

    async def _placed(
        self, prompt: Any, params: Any, request_id: str, leg: Leg, more: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Where the prompt's KV cache lies; None when it is computed here."""
        return None


class Orchestrator(Whole):
    """Prefill on a prefill replica, decode here."""

    def __init__(self, generate: Generate, prefill_handle: Any, prefill_ready: Callable[[], bool]) -> None:
        super().__init__(generate)
        self._prefill_handle = prefill_handle.options(stream=False)
        self._prefill_ready = prefill_ready
        self._tasks: set[asyncio.Task[None]] = set()

    async def _placed(
        self, prompt: Any, params: Any, request_id: str, leg: Leg, more: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        leg.path, leg.why = "remote", why_whole(prompt, params, request_id)
        if leg.why:
            leg.path = "local-whole"
            return None
        if not self._prefill_ready():
            leg.path, leg.why = "local-no-prefill", "no prefill replica is ready"
            return None
        return await self._prefill(prompt, params, leg, more)

    async def _prefill(
        self, prompt: Any, params: Any, leg: Leg, more: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Run the prompt on a prefill replica; where its KV cache lies, or None when that failed."""
        asked = {
            "prompt": prefill_prompt(prompt),
            "id": leg.id,
            "lora_request": more.get("lora_request"),
            "priority": more.get("priority", 0),
        }
        leg.prompt_tokens = len(prompt_tokens(prompt) or ())
        started = time.perf_counter()
        response = self._prefill_handle.prefill.remote(asked)
        try:
            async with asyncio.timeout(PREFILL_DEADLINE_S):
                answer = await response
        except asyncio.CancelledError:
            response.cancel()
            self._in_background(self._let_go(response, prompt, params, leg))
            raise
        except Exception as error:
            response.cancel()
            return self._recover(leg, f"{type(error).__name__}: {error}")
        leg.prefill_ms = round((time.perf_counter() - started) * 1e3, 3)
        place: dict[str, Any] | None = answer["kv_transfer_params"]
        if not place:
            return self._recover(leg, "prefill returned no KV cache")
        leg.prefill_replica, leg.queue_ms = answer["replica"], answer["queue_ms"]
        leg.cached_tokens = answer["cached_tokens"]
        return place

    async def _let_go(self, response: Any, prompt: Any, params: Any, leg: Leg) -> None:
        """Have prefill free the KV cache of a client who left just as it was done.

        A request that decode gives up before it has begun tells prefill so; otherwise the blocks would be kept
        until the lease ends.
        """
        with contextlib.suppress(Exception, asyncio.CancelledError):
            place = (await response)["kv_transfer_params"]
            given_up = self._generate(prompt, decode_params(params, place), f"{TAG}{leg.id}")
            begun = asyncio.ensure_future(anext(given_up))
            await asyncio.sleep(0)
            begun.cancel()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _recover(self, leg: Leg, why: str) -> None:
        logger.warning("Prefill of %s failed, decode runs it whole: %s", leg.id, why)
        leg.path, leg.why = "recovered", "prefill failed"


def _note(leg: Leg, output: Any) -> None:
    """Fill the leg from the engine's output, and have the output tell the truth about cached tokens.

    For decode all that came over the KV transfer counts as cached; for the client, what prefill did not compute.
    """
    if leg.transfer is None:
        leg.transfer = ledger.take(leg.id)
    if leg.path == "remote":
        output.num_cached_tokens = leg.cached_tokens
    elif leg.cached_tokens is None:
        leg.cached_tokens = output.num_cached_tokens
        leg.prompt_tokens = len(output.prompt_token_ids or ())
