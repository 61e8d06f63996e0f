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

from diptych.serving.legs import decode_params, is_beam_step, prefill_prompt, prompt_tokens, why_whole
from diptych.serving.record import Leg, current
from diptych.serving.transfers import TAG, ledger

logger = logging.getLogger(__name__)

PREFILL_DEADLINE_S = 300.0


class Whole:
    """Runs every prompt whole on this replica's engine, and keeps the record.

    Args:
        client: vLLM's front end (`AsyncLLM`), whose `generate` this one's takes the place of.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._generate = client.generate

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **more: Any
    ) -> AsyncGenerator[Any, None]:
        """As `AsyncLLM.generate`."""
        record = current.get()
        # Nobody's request, a warm-up, leaves no record; and the steps of a beam search leave one leg.
        if record is None or (record.legs and is_beam_step(request_id)):
            outputs = self._generate(prompt, decode_params(sampling_params, None), request_id, **more)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    yield output
            return
        leg = Leg()
        record.legs.append(leg)
        place = await self._placed(prompt, sampling_params, request_id, leg, more)
        params = decode_params(sampling_params, place)
        outputs = self._generate(prompt, params, f"{TAG}{leg.id}-{request_id}", **more)
        try:
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    _note(leg, output)
                    yield output
        except Exception:
            if place and not leg.begun:
                self._refused(leg, place)
            raise

    async def _placed(
        self, prompt: Any, params: Any, request_id: str, leg: Leg, more: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Where the prompt's KV cache lies; None when it is computed here."""
        return None

    def _refused(self, leg: Leg, place: dict[str, Any]) -> None:
        """Called when the engine would not take a prompt whose KV cache lies elsewhere."""


class Orchestrator(Whole):
    """Prefill on a prefill replica, decode here.

    Args:
        client: as for `Whole`.
        prefill_handle: Ray Serve's handle to the prefill replicas.
        prefill_ready: whether one of them is known to be alive.
    """

    def __init__(self, client: Any, prefill_handle: Any, prefill_ready: Callable[[], bool]) -> None:
        super().__init__(client)
        self._prefill_handle = prefill_handle.options(stream=False)
        self._prefill_ready = prefill_ready
        self._tasks: set[asyncio.Task[None]] = set()

    async def _placed(
        self, prompt: Any, params: Any, request_id: str, leg: Leg, more: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        leg.path, leg.why = "remote", why_whole(prompt, params, request_id, more.get("lora_request"))
        if leg.why:
            leg.path = "local-whole"
            return None
        if not self._prefill_ready():
            leg.path, leg.why = "local-no-prefill", "no prefill replica is ready"
            return None
        return await self._prefill(prompt, leg, more)

    async def _prefill(self, prompt: Any, leg: Leg, more: Mapping[str, Any]) -> dict[str, Any] | None:
        """Run the prompt on a prefill replica; where its KV cache lies, or None when that failed."""
        asked = {
            "prompt": prefill_prompt(prompt),
            "id": leg.id,
            "priority": more.get("priority", 0),
            "trace_headers": more.get("trace_headers"),
        }
        leg.prompt_tokens = len(prompt_tokens(prompt) or ())
        started = time.perf_counter()
        response = self._prefill_handle.prefill.remote(asked)
        try:
            async with asyncio.timeout(PREFILL_DEADLINE_S):
                answer = await response
        except (Exception, asyncio.CancelledError) as error:
            self._call_off(response, leg)
            if isinstance(error, asyncio.CancelledError) and _are_we_cancelled():
                raise
            _recover(leg, f"{type(error).__name__}: {error}")
            return None
        place: dict[str, Any] | None = answer["kv_transfer_params"]
        if not place:
            _recover(leg, "it returned no KV cache")
            return None
        leg.prefill_ms = round((time.perf_counter() - started) * 1e3, 3)
        leg.prefill_replica, leg.queue_ms = answer["replica"], answer["queue_ms"]
        leg.cached_tokens = answer["cached_tokens"]
        return place

    def _call_off(self, response: Any, leg: Leg) -> None:
        """Cancel a prefill that nobody waits for any more; if it is done all the same, free its KV cache."""
        with contextlib.suppress(Exception):  # a call that has failed raises its error here once more
            response.cancel()
        self._in_background(self._free_if_done(response, leg))

    async def _free_if_done(self, response: Any, leg: Leg) -> None:
        async with asyncio.timeout(PREFILL_DEADLINE_S):
            place = (await response)["kv_transfer_params"]
        if place:
            await self._free(leg, place)

    def _refused(self, leg: Leg, place: dict[str, Any]) -> None:
        self._in_background(self._free(leg, place))

    async def _free(self, leg: Leg, place: dict[str, Any]) -> None:
        """Have prefill free a KV cache that decode will not fetch; it would be kept until the lease ends."""
        await self._client.notify_kv_transfer_request_rejected(f"{TAG}{leg.id}", place)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what may fail as well: the lease ends anyway."""

        async def quietly() -> None:
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await work

        task = asyncio.create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _are_we_cancelled() -> bool:
    """Whether a CancelledError is meant for us; awaiting a call that Serve has cancelled raises one, too."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _recover(leg: Leg, why: str) -> None:
    logger.warning("Prefill of %s failed, decode runs it whole: %s", leg.id, why)
    leg.path, leg.why = "recovered", "prefill failed"


def _note(leg: Leg, output: Any) -> None:
    """Fill the leg from the engine's output, and have the output tell the truth about cached tokens.

    For decode all that came over the KV transfer counts as cached; for the client, what prefill did not compute.
    """
    leg.begun = True
    if leg.transfer is None:
        leg.transfer = ledger.take(leg.id)
    if leg.path == "remote":
        output.num_cached_tokens = leg.cached_tokens
    elif leg.cached_tokens is None:
        leg.cached_tokens = output.num_cached_tokens
        leg.prompt_tokens = len(output.prompt_token_ids or ())
