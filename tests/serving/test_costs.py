"""What prefill costs, fitted to what was measured."""

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving.costs import Costs, Line


def line(*points: tuple[int, float]) -> Line:
    fitted = Line()
    for tokens, seconds in points:
        fitted.add(tokens, seconds)
    return fitted


def test_nothing_is_known_before_the_first_measurement() -> None:
    assert Line().at(100) is None
    assert Costs().break_even_tokens() is None


def test_two_sizes_tell_the_fixed_part_and_the_part_per_token() -> None:
    fitted = line((100, 1.2), (500, 5.2))
    assert fitted.at(0) == pytest.approx(0.2)
    assert fitted.at(1000) == pytest.approx(10.2)


def test_one_size_is_taken_as_proportional() -> None:
    assert line((100, 1.0)).at(50) == pytest.approx(0.5)


def test_no_part_is_ever_below_zero() -> None:
    assert line((100, 2.0), (500, 1.0)).at(10**6) == pytest.approx(1.5, rel=0.1)
    assert (line((100, 0.1), (500, 5.0)).at(1) or 0.0) > 0


def test_newer_measurements_count_more() -> None:
    fitted = line(*[(100, 1.0)] * 50, *[(100, 2.0)] * 50)
    assert (fitted.at(100) or 0.0) > 1.9


def test_one_stall_is_no_new_price() -> None:
    assert (line(*[(100, 1.0)] * 20, (100, 1000.0)).at(100) or 0.0) < 1.5


def test_the_break_even_is_where_the_way_costs_as_much_as_prefill_here() -> None:
    costs = Costs(here=line((100, 1.0), (200, 2.0)), way=line((100, 0.5), (200, 0.5)))
    assert costs.break_even_tokens() == pytest.approx(50, abs=1)
