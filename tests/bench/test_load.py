"""What is sent: arrivals, lengths, shared beginnings and conversations, the same for the same load."""

import itertools
from statistics import mean

import pytest

from diptych.bench.load import BLOCK, PRESETS, Load, trace
from diptych.errors import DocumentError


def test_the_same_load_gives_the_same_trace_and_another_seed_another() -> None:
    load = Load(requests=20)
    assert trace(load) == trace(load)
    assert trace(load) != trace(Load(requests=20, seed=1))


def test_poisson_arrivals_come_at_the_rate_on_average() -> None:
    requests = trace(Load(rate=4.0, requests=2000))
    gaps = [after.at_s - before.at_s for before, after in itertools.pairwise(requests)]
    assert mean(gaps) == pytest.approx(0.25, rel=0.1)
    assert max(gaps) > 4 * mean(gaps)


def test_fixed_arrivals_are_equally_far_apart() -> None:
    requests = trace(Load(rate=4.0, arrivals="fixed", requests=5))
    assert [request.at_s for request in requests] == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_without_a_rate_all_are_there_at_once_and_concurrency_bounds_them() -> None:
    assert {request.at_s for request in trace(Load(rate=None, concurrency=4, requests=9))} == {0.0}


def test_prompts_have_their_length_in_blocks_of_their_own() -> None:
    one, other = trace(Load(input_tokens=50, requests=2))
    assert one.input_tokens == 50
    assert len(one.blocks) == 4  # 3 whole ones, and 2 tokens
    assert not set(one.blocks) & set(other.blocks)


def test_prompts_of_a_group_share_their_beginning_and_nothing_else() -> None:
    requests = trace(Load(input_tokens=100, shared_tokens=64, groups=2, requests=4))
    shared = 64 // BLOCK
    beginnings = [request.blocks[:shared] for request in requests]
    assert beginnings[0] == beginnings[2] != beginnings[1] == beginnings[3]
    rest = [block for request in requests for block in request.blocks[shared:]]
    assert len(rest) == len(set(rest))


def test_each_turn_of_a_conversation_begins_with_the_one_before() -> None:
    load = Load(input_tokens=64, output_tokens=20, turns=3, turn_tokens=12, pause_s=5.0, requests=3)
    first, second, third = trace(load)
    assert [each.input_tokens for each in (first, second, third)] == [64, 96, 128]
    assert second.blocks[: len(first.blocks)] == first.blocks
    assert third.blocks[: 96 // BLOCK] == second.blocks[: 96 // BLOCK]
    assert second.at_s - first.at_s == 5.0
    assert load.longest == 128 + 20


@pytest.mark.parametrize("name", PRESETS)
def test_presets_make_traces(name: str) -> None:
    requests = trace(PRESETS[name])
    assert len(requests) == PRESETS[name].requests
    assert max(each.input_tokens + each.output_tokens for each in requests) <= PRESETS[name].longest


@pytest.mark.parametrize(
    "fields",
    [
        {"rate": None},
        {"rate": 0.0},
        {"requests": 0},
        {"input_tokens": 10, "shared_tokens": 11},
        {"arrivals": "sometimes"},
    ],
)
def test_a_load_that_sends_nothing_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(DocumentError):
        Load(**fields)  # type: ignore[arg-type]
