"""When the first token came, as records tell it."""

import asyncio
import time
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.outputs import RequestOutput
from vllm.v1.metrics.stats import RequestStateStats

from diptych.serving.record import Record, current
from diptych.serving.whole import Whole, _first_token_at
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
