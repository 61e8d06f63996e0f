"""What a client is told of its request: of one prompt its way, of several the most telling and the sums."""

import itertools
import json

import pytest

from diptych.serving.record import PATHS, Leg, Record
from diptych.serving.transfers import Transfer

KEYS = {
    "path",
    "why",
    "prefill_ms",
    "prefill_queue_ms",
    "prefill_replica",
    "decode_replica",
    "kv_transfer_ms",
    "kv_transfer_post_ms",
    "kv_transfer_bytes",
    "kv_transfer_descriptors",
    "uncached_tokens",
    "first_token_from",
    "computed",
}


def remote(**fields: object) -> Leg:
    leg = Leg(
        path="remote",
        prefill_ms=12.5,
        queue_ms=0.5,
        prefill_replica="prefill-1",
        transfer=Transfer(100, 0.0042, 0.001, 3),
        prompt_tokens=10,
        cached_tokens=4,
    )
    for name, value in fields.items():
        setattr(leg, name, value)
    return leg


def test_a_request_of_one_prompt_tells_of_that_prompt() -> None:
    assert Record("decode-1", [remote()]).to_json() == {
        "path": "remote",
        "why": None,
        "prefill_ms": 12.5,
        "prefill_queue_ms": 0.5,
        "prefill_replica": "prefill-1",
        "decode_replica": "decode-1",
        "kv_transfer_ms": 4.2,
        "kv_transfer_post_ms": 1.0,
        "kv_transfer_bytes": 100,
        "kv_transfer_descriptors": 3,
        "uncached_tokens": 6,
        "first_token_from": None,
        "computed": [],
    }


@pytest.mark.parametrize(("answered", "phase"), [(True, "prefill"), (False, "decode")])
def test_whose_first_token_a_client_got_is_told(answered: bool, phase: str) -> None:
    leg = remote(answered=answered, begun=not answered, first_token_at=1.0)
    record = Record("decode-1", [Leg(), leg])
    assert (record.to_json()["first_token_from"], record.begun) == (phase, True)


def test_several_prompts_add_up_in_size_and_take_as_long_as_the_longest() -> None:
    second = remote(prefill_ms=30.0, queue_ms=0.1, transfer=Transfer(50, 0.01, 0.0005, 2), cached_tokens=0)
    told = Record(legs=[remote(), second]).to_json()
    assert (told["prefill_ms"], told["prefill_queue_ms"]) == (30.0, 0.5)
    assert (told["kv_transfer_ms"], told["kv_transfer_post_ms"]) == (10.0, 1.0)
    assert (told["kv_transfer_bytes"], told["kv_transfer_descriptors"]) == (150, 5)
    assert told["uncached_tokens"] == 16


@pytest.mark.parametrize(("less", "more"), list(itertools.pairwise(PATHS)))
def test_a_request_went_the_most_telling_of_its_prompts_ways_for_that_ways_reason(
    less: str, more: str
) -> None:
    legs = [Leg(path=more, why="because"), Leg(path=less, why="another")]
    for order in (legs, legs[::-1]):
        told = Record(legs=order).to_json()
        assert (told["path"], told["why"]) == (more, "because")


def test_what_is_not_known_is_null_and_not_nothing() -> None:
    for record in (Record(), Record(legs=[Leg()])):
        told = record.to_json()
        assert told.keys() == KEYS
        assert {name for name, value in told.items() if value is not None} <= {"path", "computed"}


def test_a_prompt_of_which_nothing_is_known_yet_does_not_hide_the_others() -> None:
    told = Record(legs=[Leg(path="remote"), remote()]).to_json()
    assert (told["prefill_replica"], told["uncached_tokens"], told["kv_transfer_bytes"]) == (
        "prefill-1",
        6,
        100,
    )


def test_a_prompt_that_was_cached_whole_has_no_uncached_tokens() -> None:
    assert Record(legs=[remote(cached_tokens=10)]).to_json()["uncached_tokens"] == 0


def test_the_record_can_be_written_as_json() -> None:
    assert json.loads(json.dumps(Record("decode-1", [remote()]).to_json()))["path"] == "remote"


def test_headers_say_the_same_in_short_and_only_what_there_is() -> None:
    assert Record("decode-1", [remote()]).headers() == {
        "x-diptych-path": "remote",
        "x-diptych-prefill-replica": "prefill-1",
        "x-diptych-prefill-ms": "12.5",
        "x-diptych-prefill-queue-ms": "0.5",
        "x-diptych-kv-transfer-ms": "4.2",
        "x-diptych-kv-transfer-bytes": "100",
        "x-diptych-uncached-tokens": "6",
    }
    assert Record(legs=[Leg(path="local-whole", why="n > 1")]).headers() == {
        "x-diptych-path": "local-whole",
        "x-diptych-why": "n > 1",
    }
    assert Record().headers() == {}


def test_zero_is_a_value() -> None:
    headers = Record(legs=[remote(cached_tokens=10, queue_ms=0.0)]).headers()
    assert headers["x-diptych-uncached-tokens"] == "0"
    assert headers["x-diptych-prefill-queue-ms"] == "0.0"


def test_a_request_has_begun_when_the_engine_wrote_for_any_of_its_prompts() -> None:
    assert not Record().begun
    assert not Record(legs=[Leg(), Leg()]).begun
    assert Record(legs=[Leg(), Leg(begun=True)]).begun


def test_every_leg_has_an_id_of_its_own_as_the_ledger_looks_for_it() -> None:
    ids = {Leg().id for _ in range(100)}
    assert len(ids) == 100
    assert all(len(one) == 32 and set(one) <= set("0123456789abcdef") for one in ids)
