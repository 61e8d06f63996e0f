"""Where prefill runs."""

from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving.costs import Costs
from diptych.serving.placement import RATHER_REMOTE, Placement, Share, Situation
from diptych.serving.settings import Settings


def placement(mode: str | int = "auto", share: float = 1.0, *, measured: bool = True) -> Placement:
    """Prefill here takes 10 ms per token, the way 500 ms."""
    costs = Costs()
    if measured:
        for tokens in (100, 200):
            costs.here.add(tokens, tokens * 0.01)
            costs.way.add(tokens, 0.5)
    return Placement(Settings(prefill=mode), costs, Share(share))


def path(placed: Placement, uncached: int, running: int = 0, queue_s: float = 0.0, **more: Any) -> str:
    return placed.decide(Situation(1000, uncached, running, queue_s), **more)[0]


@pytest.mark.parametrize(
    ("uncached", "running", "queue_s", "expected"),
    [
        (40, 0, 0.0, "local-short"),
        (60, 0, 0.0, "remote"),
        (40, 1, 0.0, "remote"),
        (60, 0, 0.2, "local-busy"),
        (60, 4, 2.0, "remote"),
        (60, 4, 3.0, "local-busy"),
    ],
)
def test_prefill_runs_where_it_costs_less(uncached: int, running: int, queue_s: float, expected: str) -> None:
    assert path(placement(), uncached, running, queue_s) == expected


def test_prefill_here_is_tried_again_when_it_was_not_measured_lately_and_disturbs_nobody() -> None:
    placed = placement()
    placed.costs.here.measured_at -= 11
    assert path(placed, 190) == "local-short"
    assert path(placed, 210) == "remote"
    assert path(placed, 190, running=1) == "remote"
    placed.costs.here.add(190, 1.9)
    assert path(placed, 190) == "remote"


def test_before_anything_is_measured_prefill_runs_elsewhere() -> None:
    assert path(placement(measured=False), 1) == "remote"


def test_decode_spends_no_more_of_its_time_on_prefill_than_it_may() -> None:
    placed = placement(share=0.05)
    assert path(placed, 40) == "local-short"
    placed.share.add(0.4)
    assert path(placed, 40) == "remote"


def test_the_share_forgets_what_is_long_past() -> None:
    share = Share(0.1)
    share.add(1.0, now=100.0)
    assert not share.has_room(0.1, now=105.0)
    assert share.has_room(0.1, now=111.0)


@pytest.mark.parametrize(
    ("mode", "uncached", "expected"),
    [("always", 1, "remote"), ("never", 999, "local-whole"), (64, 63, "local-short"), (64, 64, "remote")],
)
def test_the_settings_decide_where_they_say_so(mode: str | int, uncached: int, expected: str) -> None:
    assert path(placement(mode), uncached) == expected


def test_a_wish_goes_before_the_settings() -> None:
    assert path(placement("never"), 1, wish="remote") == "remote"
    assert path(placement("always"), 1, wish="local") == "local-whole"


@pytest.mark.parametrize(
    ("mode", "queue_s", "expected"),
    [
        ("auto", 9.0, "remote"),
        ("auto", 11.0, "local-short"),
        (64, 9.0, "remote"),
        (64, 11.0, "local-short"),
        ("always", 11.0, "remote"),
        ("never", 0.0, "local-whole"),
    ],
)
def test_who_must_not_insist_gets_prefill_elsewhere_while_its_queue_is_short(
    mode: str | int, queue_s: float, expected: str
) -> None:
    placed = placement(mode)
    assert path(placed, 40, queue_s=queue_s) != "remote" or mode == "always"
    assert path(placed, 40, queue_s=queue_s, wish=RATHER_REMOTE) == expected
