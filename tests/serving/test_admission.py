"""What may wait, what never fits, and what the settings may be."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving.admission import Bound, Room
from diptych.serving.settings import Queue, settings_of


def test_a_full_queue_refuses_with_429_and_a_time_to_come_back() -> None:
    refusal = Bound("prefill", Queue(2)).refusal([10, 10], 1, wait_s=7.2)
    assert refusal is not None
    assert (refusal.status, refusal.retry_after_s) == (429, 8)
    assert "queue of prefill" in refusal.message


def test_tokens_count_as_well_as_prompts() -> None:
    bound = Bound("decode", Queue(100), kv_cache_tokens=100)
    assert bound.refusal([300], 100, None) is None
    assert bound.refusal([300], 101, None) is not None
    assert bound.refusal([], 10**6, None) is None  # nobody waits: it may


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "is_refused", "cut_to"),
    [
        (50, 50, False, None),
        (50, 51, True, None),
        (50, 950, False, 50),
        (50, None, False, None),
        (100, 900, True, None),
    ],
)
def test_what_can_never_fit_is_refused_and_what_named_no_length_is_cut(
    prompt_tokens: int, max_tokens: int | None, is_refused: bool, cut_to: int | None
) -> None:
    room, params = Room(100, 1000), SimpleNamespace(max_tokens=max_tokens)
    refusal = room.refusal(prompt_tokens, params)
    assert (refusal is not None) == is_refused
    if refusal:
        assert refusal.status == 400
        assert refusal.retry_after_s is None
    else:
        assert room.most_tokens(prompt_tokens, params) == cut_to


@pytest.mark.parametrize(
    "given",
    [
        {"prefil": "auto"},
        {"prefill": "sometimes"},
        {"prefill": 0},
        {"prefill": True},
        {"local_prefill_share": 1.5},
        {"prefill_deadline_s": 0},
        {"prefill_deadline_s": "30"},
        {"canary_period_s": "never"},
        {"local_prefill_share": True},
        {"queues": {"prefil": {}}},
        {"queues": {"decode": {"requests": 0}}},
    ],
)
def test_settings_that_there_are_none_of_are_named(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="orchestrator"):
        settings_of(given)


def test_settings_are_as_given_and_else_their_defaults() -> None:
    settings = settings_of({"prefill": 512, "queues": {"prefill": {"tokens": 9}}})
    assert (settings.prefill, settings.queues.prefill, settings.queues.decode.requests) == (
        512,
        Queue(256, 9),
        512,
    )
