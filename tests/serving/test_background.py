"""Work beside the requests goes on after a failure, which is told once."""

import asyncio
import logging

import pytest

from diptych.serving import background
from diptych.serving.background import keep_going


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_AGAIN_AFTER_S", 0.0)


def begun(failures: list[Exception], caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of work that fails with each of these in turn and then comes to its end."""
    left = list(failures)

    async def work() -> None:
        if left:
            raise left.pop(0)

    async def all_of_it() -> None:
        await asyncio.wait_for(keep_going("Looking", work), 5)

    with caplog.at_level(logging.ERROR):
        asyncio.run(all_of_it())
    assert left == []
    return [record.getMessage() for record in caplog.records]


def test_work_that_fails_is_begun_again_and_each_kind_of_failure_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = begun([ValueError("1"), ValueError("2"), KeyError("3"), ValueError("4")], caplog)
    assert len(told) == 2
    assert all(each.startswith("Looking failed") for each in told)
    assert "ValueError: 1" in caplog.text


def test_work_that_comes_to_its_end_is_over(caplog: pytest.LogCaptureFixture) -> None:
    assert begun([], caplog) == []


def test_work_that_is_cancelled_is_over() -> None:
    async def cancelled() -> bool:
        task = keep_going("Waiting", lambda: asyncio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(cancelled())
