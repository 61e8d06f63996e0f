"""What one probe of a pair says of the split and the speed, in a word that a metric can show."""

from typing import Any

import pytest

from diptych.serving.light import speed_as, split_of
from diptych.serving.speed import speed_of
from fakes import probed


def pair() -> Any:
    return probed.pair(probed.ucx(), probed.ucx(), {}, tokens=(257,))


def test_the_split_holds_when_decode_received_what_prefill_computed() -> None:
    assert split_of(pair(), recurrent=False).holds is True


@pytest.mark.parametrize(
    ("side", "counter", "change"),
    [
        ("decode", "external_kv_tokens", -257),
        ("decode", "external_kv_tokens", -1),
        ("prefill", "prompt_tokens", -16),
        ("prefill", "generation_tokens", +1),
    ],
)
def test_it_does_not_when_a_token_is_missing_or_too_many(side: str, counter: str, change: int) -> None:
    own = pair()
    own["after"][side]["counters"][counter] += change
    assert split_of(own, recurrent=False).holds is False


def test_of_a_recurrent_model_decode_computes_the_last_token() -> None:
    own = pair()
    assert split_of(own, recurrent=True).holds is False
    own["after"]["decode"]["counters"]["external_kv_tokens"] -= 1
    assert split_of(own, recurrent=True).holds is True


def test_beside_other_requests_counts_are_lower_bounds_and_fewer_say_nothing() -> None:
    own = pair()
    own["after"]["decode"]["counters"] |= {"requests_running": 2.0}
    assert split_of(own, recurrent=False).holds is True
    own["after"]["decode"]["counters"]["external_kv_tokens"] -= 1
    outcome = split_of(own, recurrent=False)
    assert outcome.holds is None
    assert "2 running on decode" in outcome.says


def test_a_prompt_that_decode_computed_itself_was_not_split() -> None:
    own = pair()
    own["transfers"][0] |= {"ok": False, "path": "recovered", "why": "the KV transfer failed", "bytes": None}
    outcome = split_of(own, recurrent=False)
    assert (outcome.holds, outcome.says) == (
        False,
        "a prompt of 257 tokens: path recovered: the KV transfer failed",
    )


def test_both_phases_in_one_process_are_no_split() -> None:
    own = pair()
    for moment in ("before", "after"):
        own[moment]["decode"] |= {key: own[moment]["prefill"][key] for key in ("pid", "engine_pid", "host")}
    assert split_of(own, recurrent=False).holds is False


def test_an_engine_that_went_away_or_told_nothing_is_not_judged() -> None:
    gone, silent = pair(), pair()
    gone["after"]["prefill"]["engine_pid"] += 1
    silent["after"]["decode"]["counters"] = {}
    assert split_of(gone, recurrent=False).holds is None
    assert split_of(silent, recurrent=False).holds is None


def carried(told: tuple[Any, Any], ms: float) -> tuple[Any, Any]:
    """What was asked for, and a pair through which one prompt went, alone and within that time."""
    asked, own = told
    own["transfers"] = probed.transfers((1000,), ms)
    for side in ("prefill", "decode"):
        before, after = (own[when][side]["counters"] for when in ("before", "after"))
        after["requests_finished"] = before["requests_finished"] + 1
    return asked, own


@pytest.mark.parametrize(("ms", "holds"), [(7.1, True), (15.0, False), (45.0, False)])
def test_the_speed_is_held_against_what_verify_warns_at(ms: float, holds: bool) -> None:
    asked, own = carried(probed.proven_on_g6(), ms)
    assert speed_as(speed_of(asked, own), own).holds is holds


@pytest.mark.parametrize(("ms", "holds"), [(7.1, True), (45.0, None)])
def test_a_slow_kv_transfer_beside_other_requests_says_nothing_of_the_link(
    ms: float, holds: bool | None
) -> None:
    asked, own = carried(probed.proven_on_g6(), ms)
    own["after"]["decode"]["counters"] |= {"requests_running": 2.0}
    outcome = speed_as(speed_of(asked, own), own)
    assert (outcome.holds, "other requests were running: 2 running on decode" in outcome.says) == (
        holds,
        holds is None,
    )


@pytest.mark.parametrize(("ms", "holds"), [(41.0, True), (60.0, False)])
def test_over_tcp_it_is_held_against_a_flow(ms: float, holds: bool) -> None:
    asked, own = carried(probed.ucx_over_tcp(), ms)
    assert speed_as(speed_of(asked, own), own).holds is holds


def test_the_speed_of_a_link_that_nobody_knows_is_not_judged() -> None:
    own = pair()
    speed = speed_of(probed.UCX_HERE, own)
    assert speed is not None and speed.bytes_per_s == pytest.approx(probed.KV_BYTES / 3.2e-3)
    assert speed_as(speed, own).holds is None
    own["transfers"][0]["bytes"] = 10_000
    assert speed_as(speed_of(probed.UCX_HERE, own), own).holds is None
