"""What a stream of chunks adds up to: text, usage and times."""

from typing import Any

import pytest

from diptych.endpoint.answer import Answer


def _chunk(text: str | None = None, finish_reason: str | None = None, **rest: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}], **rest}


def test_the_first_token_is_timed_from_sending_and_the_rate_from_first_to_last() -> None:
    answer = Answer("tiny", sent_s=10.0)
    answer.add(_chunk(""), 10.1)
    for text, now_s in (("a", 10.4), ("b", 10.6), ("c", 10.9)):
        assert answer.add(_chunk(text), now_s) == text
    answer.add(
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}}, 11.5
    )
    timing = answer.result().timing
    assert timing.ttft_ms == pytest.approx(400)
    assert timing.tokens_per_s == pytest.approx(2 / 0.5)


@pytest.mark.parametrize("usage", [None, {}, {"completion_tokens": 1}, {"completion_tokens": "many"}])
def test_there_is_no_rate_without_two_counted_tokens(usage: Any) -> None:
    answer = Answer("tiny", sent_s=0.0)
    answer.add(_chunk("a"), 1.0)
    answer.add(_chunk("b", "stop", usage=usage), 2.0)
    assert answer.result().timing.tokens_per_s is None


def test_there_is_no_rate_when_all_tokens_came_at_once() -> None:
    answer = Answer("tiny", sent_s=0.0)
    answer.add(_chunk("all of it", usage={"completion_tokens": 4}), 1.0)
    assert answer.result().timing.tokens_per_s is None


def test_thinking_counts_as_tokens_and_not_as_text() -> None:
    answer = Answer("tiny", sent_s=0.0)
    assert answer.add({"choices": [{"delta": {"reasoning_content": "hm"}}]}, 1.0) == ""
    answer.add(_chunk("yes", usage={"completion_tokens": 5}), 3.0)
    assert answer.result().text == "yes"
    assert answer.result().timing.ttft_ms == 1000
    assert answer.result().timing.tokens_per_s == 2


def test_what_the_server_told_of_the_phases_is_kept_with_what_it_computed() -> None:
    answer = Answer("tiny", sent_s=0.0)
    told = {
        "path": "remote",
        "prefill_ms": 7,
        "kv_transfer_ms": 0.5,
        "kv_transfer_bytes": 4096,
        "prefill_replica": "p0",
        "computed": ["kv_transfer_bytes"],
    }
    answer.add({"choices": [], "diptych": told}, 1.0)
    result = answer.result()
    assert (result.path, result.prefill_replica, result.computed) == ("remote", "p0", ("kv_transfer_bytes",))
    assert (result.timing.prefill_ms, result.timing.kv_transfer_ms, result.timing.kv_transfer_bytes) == (
        7,
        0.5,
        4096,
    )


@pytest.mark.parametrize(
    "chunk",
    [
        {},
        {"choices": None},
        {"choices": ["x"]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": 7}}]},
        {"choices": [], "diptych": "fast"},
        {"choices": [], "usage": None, "model": None},
        {
            "choices": [],
            "usage": {"prompt_tokens": True},
            "diptych": {
                "prefill_ms": "7",
                "kv_transfer_ms": float("nan"),
                "kv_transfer_bytes": 1.5,
                "computed": 3,
            },
        },
    ],
)
def test_fields_of_another_shape_count_as_not_told(chunk: dict[str, Any]) -> None:
    answer = Answer("tiny", sent_s=0.0)
    answer.add(chunk, 1.0)
    untouched = Answer("tiny", sent_s=0.0).result()
    assert answer.result() == untouched


def test_half_characters_become_one_that_can_be_written() -> None:
    answer = Answer("tiny", sent_s=0.0)
    assert answer.add(_chunk("a\ud83db"), 1.0) == "a\N{REPLACEMENT CHARACTER}b"
    assert answer.add(_chunk("🙂"), 1.0) == "🙂"


def test_the_json_shape_always_has_every_key() -> None:
    assert Answer("tiny", sent_s=0.0).result().to_json() == {
        "text": "",
        "usage": {
            "prompt_tokens": None,
            "completion_tokens": None,
            "total_tokens": None,
            "cached_tokens": None,
        },
        "timing": {
            "ttft_ms": None,
            "prefill_ms": None,
            "kv_transfer_ms": None,
            "kv_transfer_bytes": None,
            "tokens_per_s": None,
        },
        "finish_reason": None,
        "model": "tiny",
        "path": None,
        "computed": [],
    }
