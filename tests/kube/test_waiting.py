"""Waits say what they wait for, end in time, and outlast an API server that is away."""

import pytest

from diptych.errors import ClusterError
from diptych.kube.refusals import UnreachableError
from diptych.kube.waiting import Seen, wait_for
from diptych.progress import Event, View


class Told(View):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ticks = 0

    def stage(self, event: Event) -> None:
        self.events.append(event)

    def tick(self) -> None:
        self.ticks += 1


def looks(*found: Seen | Exception) -> object:
    left = list(found)

    def look() -> Seen:
        one = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(one, Exception):
            raise one
        return one

    return look


def wait(view: View, *found: Seen | Exception, deadline_s: float = 5.0) -> Seen:
    look = looks(*found)
    return wait_for(look, stage="service", view=view, deadline_s=deadline_s, every_s=0.01)  # type: ignore[arg-type]


def test_each_new_blocker_is_told_once() -> None:
    view = Told()
    pulling = Seen(False, "Pod a pulls its image.")
    wait(view, pulling, pulling, Seen(False, "Pod a loads the model."), pulling, Seen(True))
    assert [(event.kind, event.stage, event.text) for event in view.events] == [
        ("detail", "service", "Pod a pulls its image."),
        ("detail", "service", "Pod a loads the model."),
        ("detail", "service", "Pod a pulls its image."),
    ]
    assert view.ticks == 4


def test_a_blocker_whose_numbers_grow_is_not_told_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    view = Told()
    growing = [Seen(False, f"Pod a pulls its image, for {seconds} s.") for seconds in range(5)]
    wait(view, *growing, Seen(True))
    assert len(view.events) == 1
    monkeypatch.setattr("diptych.kube.waiting._NUMBERS_EVERY_S", 0.0)
    wait(view, *growing, Seen(True))
    assert len(view.events) == 6


@pytest.mark.report("E7")
def test_the_deadline_ends_it_with_the_last_blocker_and_the_time() -> None:
    with pytest.raises(
        ClusterError, match=r"service: not there after \d+ s\. The RayCluster is not ready\."
    ) as caught:
        wait(Told(), Seen(False, "The RayCluster is not ready.", hint="Look at its events."), deadline_s=0.05)
    assert caught.value.hint == "Look at its events."


def test_what_is_fatal_ends_it_at_once() -> None:
    with pytest.raises(ClusterError, match="There is no such image"):
        wait(Told(), Seen(False, "pulling"), Seen(False, "", fatal="There is no such image."))


def test_an_api_server_that_is_away_is_a_blocker_like_any_other() -> None:
    view = Told()
    wait(view, UnreachableError("The API does not answer."), Seen(True))
    assert [event.text for event in view.events] == ["The API does not answer."]


def test_any_other_failure_ends_it() -> None:
    with pytest.raises(ClusterError, match="may not"):
        wait(Told(), ClusterError("You may not list pods."), Seen(True))
