"""The verdict on two set-ups: what counts as a difference, and how it is said."""

from dataclasses import replace

import pytest

from diptych.bench.load import Load
from diptych.bench.results import Result, Sample
from diptych.bench.slo import Slo
from diptych.bench.verdict import Comparison, Ratio, verdict

LOAD = Load(input_tokens=8000, output_tokens=256, rate=4.0)
SLO = Slo.parse("ttft=1s,tpot=15ms")


def result(ttft_ms: float, gap_ms: float, good: float = 1.0, load: Load = LOAD) -> Result:
    """A run of 100 requests, of which a share is within the SLO and the rest far beyond it."""
    samples = [
        Sample(float(n), 8, 3, ttft_ms if n < 100 * good else 9000.0, (gap_ms, gap_ms)) for n in range(100)
    ]
    return Result(load, "split", "m", 0.0, 100.0, tuple(samples), slo=SLO)


def compared(
    split: list[tuple[float, float, float]], aggregated: list[tuple[float, float, float]], load: Load = LOAD
) -> Comparison:
    sides = [tuple(result(*each, load=load) for each in side) for side in (split, aggregated)]
    return Comparison(load, sides[0], sides[1])


def test_a_difference_counts_only_beyond_what_repeats_differ_by() -> None:
    assert Ratio("TPOT p50", (7.0, 7.2), (11.0, 11.4)).sure
    assert not Ratio("TPOT p50", (7.0, 11.2), (11.0, 11.4)).sure
    assert not Ratio("TPOT p50", (7.0, 9.0), (9.5, 9.6)).sure


def test_more_requests_within_the_slo_pay() -> None:
    found = compared([(300, 7, 0.8), (310, 7, 0.82)], [(250, 11, 0.72), (255, 11, 0.70)])
    assert found.pays is True
    assert verdict([found]).startswith(
        "At 4 requests/s of 8000/256 the split keeps 81 % (80 to 82) of requests within TTFT ≤ 1000 ms and "
        "TPOT ≤ 15 ms, aggregated 71 % (70 to 72)."
    )


def test_fewer_do_not_pay() -> None:
    assert "it does not pay" in verdict([compared([(300, 7, 0.6)], [(250, 11, 0.9)])])


def test_shares_that_overlap_are_no_difference() -> None:
    found = compared([(300, 7, 0.8), (300, 7, 0.6)], [(250, 11, 0.7), (250, 11, 0.7)])
    assert found.pays is None
    assert "beyond the noise" in verdict([found])


def test_without_an_slo_time_per_token_and_its_tail_decide() -> None:
    found = compared([(300, 7, 1.0)], [(250, 11, 1.0)])
    plain = replace(
        found,
        split=tuple(replace(each, slo=None) for each in found.split),
        aggregated=tuple(replace(each, slo=None) for each in found.aggregated),
    )
    assert plain.pays is True
    assert "the split pays. TTFT p50 1.20 ×, TPOT p50 0.64 ×, ITL p99 0.64 × aggregated." in verdict([plain])


def test_a_sweep_says_from_which_rate_on_it_pays() -> None:
    slow, fast = replace(LOAD, rate=1.0), LOAD
    losing = compared([(300, 7, 0.6)], [(250, 11, 0.9)], slow)
    paying = compared([(300, 7, 0.9)], [(250, 11, 0.6)], fast)
    assert "It pays from 4 requests/s on; at 1/s and below it does not." in verdict([losing, paying])
    assert "It pays at none of these rates." in verdict([losing, replace(losing, load=fast)])


def test_doubts_of_a_run_stand_below_the_verdict() -> None:
    found = compared([(300, 7, 0.9)], [(250, 11, 0.6)])
    doubted = replace(found, split=tuple(replace(each, doubts=("it lasted 3 s",)) for each in found.split))
    assert "To be read with care: split: it lasted 3 s;" in verdict([doubted])


def test_single_runs_say_nothing_of_the_noise() -> None:
    assert "a single run of each side" in verdict([compared([(300, 7, 0.9)], [(250, 11, 0.6)])])
    twice = compared([(300, 7, 0.9), (300, 7, 0.9)], [(250, 11, 0.6), (250, 11, 0.6)])
    assert "a single run" not in verdict([twice])


def test_several_ratios_are_told_apart_and_the_best_is_named() -> None:
    one = replace(compared([(300, 7, 0.7)], [(250, 11, 0.6)]), name="split 1:1")
    other = replace(compared([(300, 7, 0.9)], [(250, 11, 0.6)]), name="split 1:2")
    said = verdict([one, other])
    assert "the split 1:1 keeps 70 %" in said
    assert "At 4 requests/s of 8000/256 the split 1:2 keeps most requests within the SLO." in said


def test_a_sweep_that_pays_here_and_there_says_where() -> None:
    paying, losing = [(300, 7, 0.9)], [(300, 7, 0.3)]
    aggregated = [(250, 11, 0.6)]
    found = [
        compared(split, aggregated, replace(LOAD, rate=rate))
        for rate, split in ((1.0, paying), (2.0, losing), (3.0, paying))
    ]
    assert "It pays at 1, 3 requests/s." in verdict(found)


def test_the_price_of_a_million_tokens_is_told_where_it_is_known() -> None:
    found = compared([(300, 7, 0.9)], [(250, 11, 0.6)])
    priced = replace(
        found,
        split=(replace(found.split[0], usd_per_hour=10.0),),
        aggregated=(replace(found.aggregated[0], usd_per_hour=10.0),),
    )
    assert "USD" not in verdict([found])
    assert "A million output tokens cost 925.93 USD, aggregated 925.93, by list prices." in verdict([priced])


@pytest.mark.parametrize("side", ["split", "aggregated"])
def test_all_runs_are_in_the_json(side: str) -> None:
    found = compared([(300, 7, 0.9), (310, 7, 0.9)], [(250, 11, 0.6)])
    assert len(found.to_json()[side]) == len(getattr(found, side))
