"""How often a client gets a piece of its answer, by how fast the engine is."""

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest

from diptych.serving import pace
from diptych.serving.pace import Pace
from diptych.serving.writes import LEAST_GAP_S


class Clock:
    """Time that passes only where somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = 100.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(pace.asyncio, "sleep", clock.sleep)
    yield clock


def taken(clock: Clock, next_s: Callable[[float], float], count: int) -> list[float]:
    """When each of `count` outputs is taken, seconds from the first.

    Args:
        next_s: when the engine has the next output, by when the last was taken.
    """

    async def answer() -> list[float]:
        own = Pace()
        own._clock = lambda: clock.now
        own._taken_at = own._asked_at = clock.now
        times = [clock.now]
        for _ in range(count - 1):
            clock.now = max(clock.now, next_s(times[-1]))
            own.took()
            times.append(clock.now)
            await own.rest()
        return [round(each - times[0], 6) for each in times]

    return asyncio.run(answer())


def gaps(times: list[float]) -> list[float]:
    return [round(after - before, 6) for before, after in itertools.pairwise(times)]


@pytest.mark.parametrize("step_s", [LEAST_GAP_S, 0.008, 0.05])
def test_an_engine_that_takes_longer_is_never_waited_with(clock: Clock, step_s: float) -> None:
    assert gaps(taken(clock, lambda last: last + step_s, 6)) == [round(step_s, 6)] * 5


@pytest.mark.parametrize("step_s", [0.0, 0.0002, 0.003])
def test_of_a_fast_engine_outputs_are_taken_that_far_apart_from_the_third_on(
    clock: Clock, step_s: float
) -> None:
    began = clock.now

    def next_s(last: float) -> float:
        steps = 0 if not step_s else int((last - began) / step_s) + 1
        return began + steps * step_s

    found = gaps(taken(clock, next_s, 8))
    assert found[0] == pytest.approx(step_s, abs=1e-6)
    assert all(gap >= LEAST_GAP_S - 1e-6 for gap in found[1:])
    assert all(gap <= LEAST_GAP_S + step_s + 1e-6 for gap in found[1:])


def test_an_engine_that_becomes_slow_is_not_waited_with_any_more(clock: Clock) -> None:
    began = clock.now
    steps = [0.001] * 5 + [0.02] * 5

    def next_s(last: float) -> float:
        at = began
        for step in steps:
            at += step
            if at > last:
                return at
        return at

    times = taken(clock, next_s, 8)
    assert [round(each, 3) for each in times[-4:]] == [0.045, 0.065, 0.085, 0.105]
