"""Every side of the mix gets the same requests."""

import random

from mix import LONG_TOKENS, SHORT_TOKENS, arrivals


def test_half_of_the_requests_are_short_and_half_long() -> None:
    tokens = [one.tokens for one in arrivals(0.2, 120.0)]
    assert len(tokens) == 24
    assert tokens.count(SHORT_TOKENS) == tokens.count(LONG_TOKENS) == 12


def test_requests_come_at_the_rate_that_is_asked_for() -> None:
    times = [one.at for one in arrivals(0.5, 200.0)]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert 190.0 < times[-1] < 200.0


def test_all_sides_get_the_same_requests_whatever_chance_has_done_before() -> None:
    first = arrivals(0.1, 60.0)
    random.random()
    assert arrivals(0.1, 60.0) == first
