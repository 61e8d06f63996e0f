"""A prompt that runs whole on this replica's engine: what both topologies have in common.

vLLM's front end turns every request, whatever its route and shape, into calls of one method: `generate` of its
engine client. Ours takes that method's place. So what a request means is vLLM's own doing, and no route leads past.
"""

import asyncio
import contextlib
import copy
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from vllm.v1.engine.exceptions import EngineDeadError

from diptych.serving import tracing
from diptych.serving.admission import Bound, Room
from diptych.serving.errors import ENGINE_DIED
from diptych.serving.inside import Inside
from diptych.serving.legs import decode_params, is_beam_step, prompt_length
from diptych.serving.outputs import computed_s, milliseconds, queued_s
from diptych.serving.pace import Pace
from diptych.serving.record import Leg, Record, Refused, current
from diptych.serving.settings import Settings
from diptych.serving.transfers import TAG

Outputs = AsyncGenerator[Any, None]


class Whole:
    """Runs every prompt whole on this replica's engine, and keeps the record.

    Args:
        client: vLLM's front end (`AsyncLLM`), whose `generate` this one's takes the place of.
        settings: how much may wait.
        room: what the engine can hold of one sequence; None: anything.
    """

    def __init__(self, client: Any, settings: Settings | None = None, room: Room | None = None) -> None:
        self._client = client
        self._generate = client.generate
        self.settings = settings or Settings()
        self._room = room
        self._bound = Bound("decode", self.settings.queues.decode, room.kv_cache_tokens if room else None)
        self.inside = Inside(client)

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str, **more: Any) -> Outputs:
        """As `AsyncLLM.generate`."""
        record = current.get()
        # Nobody's request, a warm-up, leaves no record; and the steps of a beam search leave one leg.
        if record is None or (record.legs and is_beam_step(request_id)):
            outputs = self._generate(prompt, decode_params(sampling_params, None), request_id, **more)
        else:
            leg = Leg()
            record.legs.append(leg)
            if worker := asyncio.current_task():
                record.workers.add(worker)
            outputs = self._answered(prompt, sampling_params, request_id, leg, record, more)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                yield output

    async def _answered(
        self, prompt: Any, params: Any, request_id: str, leg: Leg, record: Record, more: dict[str, Any]
    ) -> Outputs:
        leg.prompt_tokens = prompt_length(prompt) or None
        asked = more.get("priority", 0)  # 0: the client asked for none
        more["priority"] = max(record.priority, asked) if asked else record.priority
        try:
            params = self._fitting(leg.prompt_tokens or 1, params)
            if record.only_peer is None:  # a prompt of our own looks whether the way works
                self._check_queue(leg)
            outputs = self._ways(prompt, params, f"{TAG}{leg.id}-{request_id}", leg, record, more)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    yield output
        except Refused as refused:
            record.refusal = refused.refusal
            raise
        except EngineDeadError as error:  # ends a stream that has begun; vLLM's words point to a stack trace
            error.args = (ENGINE_DIED,)
            raise
        finally:
            tracing.leg_done(leg)

    def _ways(
        self, prompt: Any, params: Any, request_id: str, leg: Leg, record: Record, more: dict[str, Any]
    ) -> Outputs:
        """The outputs of a prompt, whichever way it goes."""
        return self._decoded(prompt, params, request_id, leg, more)

    def _fitting(self, tokens: int, params: Any) -> Any:
        """The parameters, cut to what the KV cache can hold."""
        if self._room is None:
            return params
        refusal = self._room.refusal(tokens, params)
        if refusal:
            raise Refused(refusal)
        most = self._room.most_tokens(tokens, params)
        if most is None:
            return params
        params = copy.copy(params)
        params.max_tokens = most
        return params

    async def _decoded(
        self,
        prompt: Any,
        params: Any,
        request_id: str,
        leg: Leg,
        more: Mapping[str, Any],
        place: dict[str, Any] | None = None,
    ) -> Outputs:
        """The engine's outputs; it computes the prompt, or fetches its KV cache from `place`."""
        leg.handed_at = time.monotonic()
        headers = tracing.trace_headers()
        if headers is not None:
            more = {**more, "trace_headers": headers}
        outputs = self._generate(prompt, decode_params(params, place), request_id, **more)
        with self.inside.holding(request_id, leg), self._first_token_given(request_id, leg):
            async with contextlib.aclosing(outputs):
                if leg.first_token is not None and not leg.answered:
                    output = await anext(outputs)
                    leg.answered, leg.first_token_at = True, time.monotonic()
                    self._note(leg, output)
                    yield output
                    if output.finished:
                        return
                output = await self._first(outputs, request_id, leg, place)
                leg.begun = True
                leg.decode_began_at = _first_token_at(output.metrics)
                leg.first_token_at = leg.first_token_at or leg.decode_began_at
                leg.decode_queue_ms = milliseconds(queued_s(output.metrics))
                leg.decode_compute_ms = milliseconds(computed_s(output.metrics))
                self._note(leg, output)
                yield output
                pace = Pace()
                async for output in outputs:
                    pace.took()
                    self._note(leg, output)
                    yield output
                    if not output.finished:
                        await pace.rest()

    def _check_queue(self, leg: Leg) -> None:
        refusal = self._bound.refusal(self._waiting(), leg.prompt_tokens or 1, self.inside.backlog_s or None)
        if refusal:
            raise Refused(refusal)

    def _waiting(self) -> list[int]:
        """The tokens of each prompt that waits for its first token."""
        return [leg.prompt_tokens or 1 for leg in self.inside.waiting]

    def _first_token_given(self, request_id: str, leg: Leg) -> contextlib.AbstractContextManager[None]:
        """While this lasts the request that the engine gets under this id is given prefill's first token, if any."""
        return contextlib.nullcontext()

    async def _first(
        self, outputs: AsyncIterator[Any], request_id: str, leg: Leg, place: dict[str, Any] | None
    ) -> Any:
        return await anext(outputs)

    def _note(self, leg: Leg, output: Any) -> None:
        """Fill the leg from an output of the engine."""
        for each in output.outputs:
            leg.output_tokens += len(each.token_ids)
            leg.finish_reason = each.finish_reason or leg.finish_reason
        if leg.cached_tokens is None:
            leg.cached_tokens = output.num_cached_tokens
            leg.prompt_tokens = len(output.prompt_token_ids or ())


def _first_token_at(metrics: Any) -> float:
    """When the engine put out the first token, by this machine's monotonic clock, which the engine's process shares.

    Not the engine's `first_token_latency`: it counts from when the request came, prefill elsewhere included.
    """
    return float(getattr(metrics, "first_token_ts", 0.0)) or time.monotonic()
