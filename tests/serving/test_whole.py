"""When the first token came, as records tell it."""

import asyncio
import time
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.metrics.stats import RequestStateStats

from diptych.serving.record import Record, current
from diptych.serving.whole import Whole, _first_token_at
from diptych.serving.writes import LEAST_GAP_S
from fakes.phases import Client, prompt


def test_the_first_token_came_when_the_engine_put_it_out() -> None:
    """Not `first_token_latency` after the hand-over: prefill elsewhere is in it, and would be counted twice."""
    metrics = SimpleNamespace(first_token_ts=1234.5, first_token_latency=0.7)
    assert _first_token_at(metrics) == 1234.5


def test_an_engine_that_does_not_tell_is_taken_at_the_moment() -> None:
    before = time.monotonic()
    assert before <= _first_token_at(SimpleNamespace(first_token_ts=0.0)) <= time.monotonic()


class Telling(Client):
    """An engine that tells when it took a request, first computed for it, and had its first token."""

    async def generate(self, *given: Any, **more: Any) -> AsyncGenerator[RequestOutput, None]:
        async for output in super().generate(*given, **more):
            output.metrics = RequestStateStats(queued_ts=10.0, scheduled_ts=10.25, first_token_ts=12.0)
            yield output


@pytest.mark.parametrize(("client", "told"), [(Telling(), (250.0, 1750.0)), (Client(), (None, None))])
def test_a_leg_has_the_engines_queue_and_its_way_to_the_first_token(client: Client, told: Any) -> None:
    record = Record()

    async def answered() -> None:
        current.set(record)
        async for _ in Whole(client).generate(prompt(), SamplingParams(), "r"):
            pass

    asyncio.run(answered())
    (leg,) = record.legs
    assert (leg.decode_queue_ms, leg.decode_compute_ms) == told


class Fast(Client):
    """An engine that has a token every fifth of a millisecond, and vLLM's own collector of what it puts out."""

    tokens = 300

    async def generate(
        self, prompt: Any, params: Any, request_id: str, **_: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        queue = RequestOutputCollector(RequestOutputKind.DELTA, request_id)
        computing = asyncio.create_task(self._compute(queue, request_id))
        finished = False
        while not finished:
            output: Any = queue.get_nowait() or await queue.get()
            finished = output.finished
            yield output
        await computing

    async def _compute(self, queue: RequestOutputCollector, request_id: str) -> None:
        for number in range(1, self.tokens + 1):
            await asyncio.sleep(0.0002)
            last = number == self.tokens
            token = CompletionOutput(0, "t", [number], None, None, finish_reason="length" if last else None)
            queue.put(RequestOutput(request_id, None, [1], None, [token], last, num_cached_tokens=0))


def test_all_tokens_of_a_fast_engine_come_in_few_pieces() -> None:
    async def ask() -> tuple[list[RequestOutput], float]:
        current.set(Record())
        began = time.monotonic()
        stream = SamplingParams(output_kind=RequestOutputKind.DELTA)
        found = [each async for each in Whole(Fast()).generate(prompt(), stream, "r-1")]
        return found, time.monotonic() - began

    pieces, took_s = asyncio.run(ask())
    assert [token for each in pieces for token in each.outputs[0].token_ids] == list(
        range(1, Fast.tokens + 1)
    )
    assert "".join(each.outputs[0].text for each in pieces) == "t" * Fast.tokens
    assert pieces[-1].outputs[0].finish_reason == "length"
    assert len(pieces) <= took_s / LEAST_GAP_S + 4


def test_a_stream_that_a_dead_engine_ends_says_so_without_vllms_own_words() -> None:
    async def ask() -> str:
        current.set(Record())
        with pytest.raises(EngineDeadError) as died:
            async for _ in Whole(Client(says=(1, EngineDeadError()))).generate(
                prompt(), SamplingParams(), "r-1"
            ):
                pass
        return str(died.value)

    assert asyncio.run(ask()) == "The engine died while it wrote this answer."
