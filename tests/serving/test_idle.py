"""What prompts leave behind in a pair's engines: found where it can only be ours, and not judged beside others."""

from typing import Any

import pytest

from diptych.serving.idle import Idle

NONE = {"prefill": 0, "decode": 0}
SIDES = ("prefill", "decode")


def looked(pid: int = 7, **changed: Any) -> dict[str, Any]:
    """Both sides' signals; `prefill_kv_cache_usage=0.1` changes one counter of one of them."""
    counters = {"kv_cache_usage": 0.0, "requests_finished": 3.0, "requests_running": 0.0}
    counters |= {"requests_waiting": 0.0, "kv_transfers_failed": 0.0, "kv_leases_expired": 0.0}
    sides = {side: {"replica": f"{side}-1", "engine_pid": pid, "counters": dict(counters)} for side in SIDES}
    for name, value in changed.items():
        side, _, counter = name.partition("_")
        sides[side]["counters"][counter] = value
    return sides


def test_engines_that_are_as_they_were_hold_nothing() -> None:
    assert Idle().judge(looked(), looked(), NONE, NONE).holds is True


@pytest.mark.parametrize("side", SIDES)
def test_kv_cache_that_stays_is_left_behind(side: str) -> None:
    outcome = Idle().judge(looked(), looked(**{f"{side}_kv_cache_usage": 0.12}), NONE, NONE)
    assert outcome.holds is False
    assert outcome.says == f"KV cache in use on {side} {side}-1: 12.00%, 0.00% when nothing ran"


def test_a_leak_shows_though_it_was_there_before_the_newest_prompts() -> None:
    idle = Idle()
    idle.judge(looked(), looked(), NONE, NONE)
    leaked = looked(prefill_kv_cache_usage=0.01)
    assert not idle.is_settled(leaked, leaked)
    assert idle.judge(leaked, leaked, NONE, NONE).holds is False


@pytest.mark.parametrize("others", [{"prefill_requests_running": 1.0}, {"prefill_requests_finished": 5.0}])
def test_kv_cache_that_others_may_use_is_not_judged(others: dict[str, float]) -> None:
    now = looked(prefill_kv_cache_usage=0.12, **others)
    outcome = Idle().judge(looked(), now, {"prefill": 1, "decode": 1}, NONE)
    assert outcome.holds is None
    assert "other requests were running: 1" in outcome.says


def test_prefill_keeps_kv_cache_for_what_waits_on_decode() -> None:
    now = looked(prefill_kv_cache_usage=0.12, decode_requests_waiting=1.0)
    assert Idle().is_settled(looked(), now)
    assert Idle().judge(looked(), now, NONE, NONE).holds is None
    prompting = looked(decode_kv_cache_usage=0.12, prefill_requests_running=1.0)
    assert Idle().judge(looked(), prompting, NONE, NONE).holds is False


def test_prompts_of_our_own_are_nobody_elses() -> None:
    now = looked(prefill_kv_cache_usage=0.12, prefill_requests_finished=5.0)
    assert Idle().judge(looked(), now, {"prefill": 2, "decode": 2}, NONE).holds is False


@pytest.mark.parametrize("counter", ["kv_leases_expired", "kv_transfers_failed"])
def test_what_was_counted_since_the_last_look_is_told_once(counter: str) -> None:
    idle = Idle()
    idle.judge(looked(), looked(), NONE, NONE)
    now = looked(**{f"prefill_{counter}": 1.0})
    assert idle.judge(looked(), now, NONE, NONE).holds is False
    assert idle.judge(now, now, NONE, NONE).holds is True


def test_what_was_counted_beside_other_requests_is_not_judged() -> None:
    idle = Idle()
    idle.judge(looked(), looked(), NONE, {"prefill": 10, "decode": 10})
    now = looked(decode_kv_transfers_failed=1.0, decode_requests_finished=8.0)
    assert idle.judge(now, now, NONE, {"prefill": 10, "decode": 14}).holds is None


def test_another_engine_in_its_place_is_not_compared() -> None:
    outcome = Idle().judge(looked(), looked(8, prefill_kv_cache_usage=0.5), NONE, NONE)
    assert outcome.holds is None
    idle = Idle()
    idle.judge(looked(), looked(), NONE, NONE)
    fuller = looked(8, prefill_kv_cache_usage=0.5, prefill_kv_leases_expired=4.0)
    assert idle.judge(fuller, fuller, NONE, NONE).holds is True


def test_an_engine_that_does_not_tell_is_not_judged() -> None:
    silent = looked()
    silent["prefill"] = {"replica": "prefill-1", "engine_pid": None, "counters": {}}
    idle = Idle()
    assert idle.is_settled(silent, silent)
    assert idle.judge(silent, silent, NONE, NONE).holds is None


def test_only_what_nobody_uses_is_waited_for() -> None:
    idle, fuller = Idle(), looked(prefill_kv_cache_usage=0.12)
    assert not idle.is_settled(looked(), fuller)
    assert idle.is_settled(looked(), looked())
    assert idle.is_settled(looked(), looked(prefill_kv_cache_usage=0.12, prefill_requests_running=1.0))
