"""A service's first prompts wait for what stands before its replicas to hear of them, and for nothing else."""

import pytest

from diptych.errors import BusyError, DiptychError, EndpointError
from diptych.verify import first


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first, "_PAUSE_S", 0.01)
    monkeypatch.setattr(first, "_BUSY_FOR_S", 0.2)


def test_an_endpoint_that_takes_no_request_yet_is_asked_again() -> None:
    refusals = [BusyError("takes no request now (503)", "Try again in 5 s.")] * 3

    def work() -> str:
        if refusals:
            raise refusals.pop()
        return "answered"

    assert first.asked(work) == "answered"


def test_one_that_never_does_is_told_with_what_it_said() -> None:
    def work() -> str:
        raise BusyError("The endpoint takes no request now (503).", "Try again in 5 s.")

    with pytest.raises(
        DiptychError, match=r"first prompt .* was not answered\. The endpoint takes no"
    ) as told:
        first.asked(work)
    assert told.value.hint == "Try again in 5 s."


def test_other_refusals_are_told_at_once() -> None:
    asked = []

    def work() -> str:
        asked.append(1)
        raise EndpointError("The endpoint refused the request (400).")

    with pytest.raises(DiptychError, match=r"was not answered\. The endpoint refused"):
        first.asked(work)
    assert len(asked) == 1
