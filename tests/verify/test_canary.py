"""How answers are compared: the same tokens, or others where both were as probable."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.serving.comparison import TOLERANCE, Token, compare
from diptych.verify.canary import around_a_block, of_lengths


def token(name: str, logprob: float = -0.5, **others: float) -> Token:
    return Token(name, logprob, others)


def test_the_same_tokens_are_right_whatever_their_probabilities_are() -> None:
    difference = compare([token("a"), token("b", -0.1)], [token("a"), token("b", -0.15)])
    assert difference.is_right
    assert difference.apart == pytest.approx(0.05)


def test_another_token_is_right_only_where_both_ways_held_them_as_nearly_equal() -> None:
    near = compare([token("a", -0.70, b=-0.75)], [token("b", -0.71, a=-0.74)])
    assert (near.at, near.is_right) == (1, True)
    far = compare([token("a", -0.1, b=-3.0)], [token("b", -0.2, a=-2.0)])
    assert not far.is_right
    unthought = compare([token("a", -0.7)], [token("b", -0.7, a=-0.71)])
    assert math.isinf(unthought.apart)


def test_a_drift_before_the_first_other_token_counts() -> None:
    one = [token("a", -0.1), token("b", -0.7, c=-0.7)]
    other = [token("a", -0.1 - 2 * TOLERANCE), token("c", -0.7, b=-0.7)]
    assert not compare(one, other).is_right


def test_answers_of_other_lengths_and_without_tokens_differ() -> None:
    assert not compare([token("a")], [token("a"), token("b")]).is_right
    assert not compare([], []).is_right


@settings(deadline=None)  # machines that run tests are busy
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(-5, 0)), min_size=1, max_size=8),
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(-5, 0)), min_size=1, max_size=8),
)
def test_the_comparison_does_not_depend_on_which_way_was_first(one: list, other: list) -> None:  # type: ignore[type-arg]
    first, second = ([Token(n, p, dict.fromkeys("abc", -1.0)) for n, p in each] for each in (one, other))
    there, back = compare(first, second), compare(second, first)
    assert (there.at, there.apart, there.is_right) == (back.at, back.apart, back.is_right)


def test_prompts_have_exactly_their_lengths_and_begin_differently() -> None:
    prompts = of_lengths([5, 6, 7, 8], [1, 3, 9])
    assert [len(one) for one in prompts] == [1, 3, 9]
    assert [one[0] for one in prompts] == [5, 6, 7]


@settings(deadline=None)  # machines that run tests are busy
@given(st.integers(1, 2000), st.integers(1, 5000))
def test_lengths_lie_around_a_block_and_never_beyond_the_context(block: int, most: int) -> None:
    lengths = around_a_block(block, most)
    assert all(1 <= length <= most for length in lengths)
    if most > 4 * block and block > 1:
        assert {block - 1, block, block + 1} <= set(lengths)
