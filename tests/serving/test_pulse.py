"""An engine's steps, and how long one may take, out of the statistics that vLLM itself makes."""

import logging
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.v1.engine import FinishReason
from vllm.v1.metrics.loggers import StatLoggerManager
from vllm.v1.metrics.stats import IterationStats, RequestStateStats, SchedulerStats

from diptych.serving.pulse import _UNMEASURED_S, Pulse, pulse_of, tokens_waiting


def finished(tokens: int, seconds: float, cached: int = 0) -> IterationStats:
    """What vLLM tells of a step that ended a request whose prompt took so long."""
    times = RequestStateStats(
        queued_ts=1.0, scheduled_ts=2.0, first_token_ts=2.0 + seconds, last_token_ts=9.0
    )
    stats = IterationStats()
    stats.update_from_finished_request(FinishReason.LENGTH, "chatcmpl-1", tokens, 1, times, cached)
    return stats


@pytest.fixture
def manager() -> StatLoggerManager:
    """vLLM's, without loggers of its own."""
    made = StatLoggerManager.__new__(StatLoggerManager)
    made.stat_loggers = []
    return made


def client(manager: Any, most_tokens: int = 1000) -> Any:
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=most_tokens))
    return SimpleNamespace(logger_manager=manager, vllm_config=config)


def test_each_turn_of_the_engine_is_a_step_whether_it_put_out_a_token_or_not(
    manager: StatLoggerManager,
) -> None:
    pulse = pulse_of(client(manager))
    for stats in (None, IterationStats(), None):
        manager.record(SchedulerStats(), stats, mm_cache_stats=None, engine_idx=0)
    assert pulse.steps == 3


def test_a_step_is_expected_to_take_what_prompts_took_so_far(manager: StatLoggerManager) -> None:
    pulse = pulse_of(client(manager))
    manager.record(SchedulerStats(), finished(100, 1.0), mm_cache_stats=None, engine_idx=0)
    assert pulse.expected_s(500) == pytest.approx(5.0)


def test_an_engine_that_has_measured_nothing_may_take_minutes_for_a_step(manager: StatLoggerManager) -> None:
    """Its warm-up is too short to tell, and the first long prompt is one step of thousands of tokens."""
    pulse = pulse_of(client(manager))
    manager.record(SchedulerStats(), finished(9, 0.5), mm_cache_stats=None, engine_idx=0)
    assert pulse.expected_s(2048) >= 60


def test_a_step_holds_a_part_of_long_prompts_only(manager: StatLoggerManager) -> None:
    pulse = pulse_of(client(manager, most_tokens=200))
    manager.record(SchedulerStats(), finished(100, 1.0), mm_cache_stats=None, engine_idx=0)
    assert pulse.expected_s(5000) == pytest.approx(2.0)


def test_what_was_cached_or_fetched_tells_nothing_of_computing() -> None:
    pulse = Pulse(1000)
    pulse.record(None, finished(1000, 0.5, cached=999))
    assert pulse.expected_s(500) == _UNMEASURED_S
    pulse.record(None, finished(1000, 0.5, cached=950))
    assert pulse.expected_s(500) == pytest.approx(5.0)


def test_a_prompt_that_was_given_up_before_its_first_token_tells_nothing() -> None:
    pulse, stats = Pulse(1000), IterationStats()
    times = RequestStateStats(queued_ts=1.0, scheduled_ts=2.0)
    stats.update_from_finished_request(FinishReason.ABORT, "chatcmpl-1", 100, 1, times)
    pulse.record(None, stats)
    assert pulse.expected_s(500) == _UNMEASURED_S


def test_an_engine_without_statistics_may_take_for_ever() -> None:
    pulse = pulse_of(client(None))
    assert (pulse.steps, pulse.expected_s(1)) == (0, inf)


def test_what_else_vllm_asks_of_a_logger_does_nothing(
    manager: StatLoggerManager, caplog: pytest.LogCaptureFixture
) -> None:
    pulse_of(client(manager))
    with caplog.at_level(logging.DEBUG):
        manager.log()
        manager.log_engine_initialized()
        manager.record_sleep_state(1, 1)
    assert not caplog.records


def test_prompts_wait_until_their_first_token() -> None:
    states = {
        "1": SimpleNamespace(prompt_len=100, is_prefilling=True),
        "2": SimpleNamespace(prompt_len=900, is_prefilling=False),
        "3": SimpleNamespace(prompt_len=11, is_prefilling=True),
    }
    assert tokens_waiting(SimpleNamespace(output_processor=SimpleNamespace(request_states=states))) == 111
