"""Sums of a run, by hand-made samples and records."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.bench.load import Load
from diptych.bench.results import Parts, Result, Sample, percentile, spread, ttft_parts
from diptych.bench.slo import Slo
from diptych.errors import DocumentError


def sample(sent_s: float = 0.0, ttft_ms: float = 100.0, itl_ms: tuple[float, ...] = (10.0, 20.0)) -> Sample:
    return Sample(sent_s, 8, len(itl_ms) + 1, ttft_ms, itl_ms)


FAILED = Sample(0.0, 8, 0, None, (), "HTTP 503")


def test_percentiles_are_of_the_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, each) for each in (50, 90, 99, 100)] == [50.0, 90.0, 99.0, 100.0]
    assert spread([]) is None


def test_a_sample_has_its_time_per_output_token() -> None:
    assert sample().tpot_ms == 15.0
    assert sample().total_ms == 130.0
    assert sample(itl_ms=()).tpot_ms is None


def test_the_clients_row_is_read_and_a_failure_kept_short() -> None:
    good = Sample.of(5.0, 0.1, [0.01], 8, 2, "")
    assert (good.ttft_ms, good.itl_ms, good.error) == (100.0, (10.0,), "")
    bad = Sample.of(5.0, 0.0, [], 8, 0, "Traceback\n  somewhere\nConnectionError: gone")
    assert (bad.error, bad.ttft_ms) == ("ConnectionError: gone", None)


def test_goodput_counts_failures_as_missed() -> None:
    slo = Slo.parse("ttft=150ms,tpot=0.02s")
    assert slo.share([sample(), sample(ttft_ms=200.0), sample(itl_ms=(50.0,)), FAILED]) == 0.25
    assert Slo.parse("itl=15ms").share([sample()]) == 0.0


@pytest.mark.parametrize("text", ["", "ttft", "ttft=fast", "ttft=0s", "p99=1s", "ttft=1.2.3s"])
def test_an_slo_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DocumentError):
        Slo.parse(text)


def test_an_answer_shorter_than_asked_for_is_a_failure() -> None:
    cut = Sample.of(5.0, 0.1, [0.01], 8, 2, "", 3)
    assert (cut.error, cut.ttft_ms) == ("the answer ended before its 3 tokens were there", None)
    assert Sample.of(5.0, 0.1, [0.01], 8, 3, "", 3).error == ""


REMOTE = {
    "path": "remote",
    "prefill_ms": 60.0,
    "queue_ms": 10.0,
    "kv_transfer_ms": 2.0,
    "kv_transfer_bytes": 2_000_000,
    "decode_queue_ms": 5.0,
    "decode_compute_ms": 7.0,
    "ttft_ms": 75.0,
    "cached_tokens": 0,
    "prompt_tokens": 8,
}
LOCAL = {"path": "local-short", "decode_queue_ms": 1.0, "decode_compute_ms": 16.0, "ttft_ms": 20.0}
UNTOLD = {name: value for name, value in REMOTE.items() if not name.startswith("decode_")}


def parts_of(record: dict[str, Any]) -> dict[str, float]:
    """Its parts that are not 0."""
    found = ttft_parts(record)
    assert found is not None
    return {name: ms for name, ms in found.items() if ms}


def test_parts_of_ttft_add_up() -> None:
    of_prefill = {"prefill_queue_ms": 10.0, "prefill_ms": 50.0, "kv_transfer_ms": 2.0}
    # Of the 5 ms in decode's queue 2 were the KV transfer.
    assert parts_of(REMOTE) == of_prefill | {"decode_queue_ms": 3.0, "first_step_ms": 7.0, "other_ms": 3.0}
    assert parts_of(UNTOLD) == of_prefill | {"other_ms": 13.0}
    assert ttft_parts({"path": "remote", "ttft_ms": None}) is None
    told = Parts((REMOTE, LOCAL)).summary()
    assert sum(told["ttft_parts_mean_ms"].values()) == told["service_ttft_ms"]["mean"] == 47.5


def test_where_prefill_gave_the_first_token_nothing_of_decode_is_in_its_time() -> None:
    told = REMOTE | {"first_token_from": "prefill", "ttft_ms": 66.0}
    assert parts_of(told) == {"prefill_queue_ms": 10.0, "prefill_ms": 50.0, "other_ms": 6.0}
    summary = Parts((told,)).summary()
    assert (summary["first_step_ms"], summary["decode_queue_ms"]) == (None, None)
    assert summary["kv_transfer_ms"]["mean"] == 2.0


@pytest.mark.parametrize("path", ["aggregated", "local-short", "local-busy", "recovered"])
def test_where_one_engine_did_both_its_queue_and_prefill_are_told(path: str) -> None:
    assert parts_of(LOCAL | {"path": path}) == {
        "local_queue_ms": 1.0,
        "local_prefill_ms": 16.0,
        "other_ms": 3.0,
    }


TIMES = st.none() | st.floats(0, 1e5)


@given(
    times=st.fixed_dictionaries(
        dict.fromkeys(
            ("prefill_ms", "queue_ms", "kv_transfer_ms", "decode_queue_ms", "decode_compute_ms"), TIMES
        )
    ),
    ttft=st.floats(0, 1e5),
    path=st.sampled_from(["remote", "recovered", "aggregated"]),
)
def test_whatever_the_record_says_no_part_is_negative_and_all_come_to_ttft(
    times: dict[str, float | None], ttft: float, path: str
) -> None:
    found = ttft_parts({"path": path, "ttft_ms": ttft, **times})
    assert found is not None
    assert min(found.values()) >= 0
    assert sum(found.values()) == pytest.approx(ttft, abs=1e-6)


def test_several_prompts_longest_parts_do_not_exceed_the_first_token() -> None:
    # The first token came from the quicker prompt, the times are those of the slower one.
    assert parts_of(REMOTE | {"ttft_ms": 30.0}) == {"prefill_queue_ms": 10.0, "prefill_ms": 20.0}


def test_what_prefill_did_is_summed_over_the_prompts_that_it_did() -> None:
    told = Parts((REMOTE, LOCAL, UNTOLD), {"decode": 0.5}).summary()
    assert told["prefill_ms"]["count"] == told["prefill_queue_ms"]["count"] == 2
    assert told["first_step_ms"]["count"] == told["decode_queue_ms"]["count"] == 1
    assert told["local_prefill_ms"]["count"] == told["local_queue_ms"]["count"] == 1
    assert told["other_ms"]["count"] == 3
    assert told["paths"] == {"remote": 2, "local-short": 1}
    assert told["kv_cache_use"] == {"decode": 0.5}


def test_kv_transfers_have_their_number_bytes_speed_and_failures() -> None:
    failed = {**LOCAL, "path": "recovered", "kv_transfer_failed": True}
    told = Parts((REMOTE, REMOTE, failed)).summary()
    assert (told["kv_transfers"], told["kv_transfers_failed"]) == (2, 1)
    assert told["kv_transfer_bytes"] == 4_000_000
    assert told["kv_transfer_gb_per_s"]["p50"] == 1.0


def test_a_million_tokens_cost_what_the_hours_do_that_they_take() -> None:
    result = Result(Load(), "split", "m", 0.0, 10.0, (sample(),), usd_per_hour=1.08)
    assert result.usd_per_million_tokens == pytest.approx(1000.0)  # 0.3 tokens/s: 926 hours
    assert Result(Load(), "split", "m", 0.0, 10.0, (sample(),)).usd_per_million_tokens is None


def test_a_result_says_what_was_answered_and_what_failed() -> None:
    result = Result(Load(), "split", "m", 0.0, 10.0, (sample(), FAILED), slo=Slo.parse("ttft=1s"))
    told = result.to_json()
    assert told["requests"] == {"sent": 2, "answered": 1, "errors": {"HTTP 503": 1}}
    assert told["throughput"]["output_tokens_per_s"] == 0.3
    assert told["goodput"] == 0.5
