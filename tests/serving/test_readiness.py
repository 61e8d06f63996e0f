"""The readiness of several replicas together."""

from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving.readiness import together


def told(name: str, state: str, why: str | None = None, **more: Any) -> dict[str, Any]:
    return {"replica": name, "state": state, "why": why, "pairs": [], **more}


@pytest.mark.parametrize(
    ("states", "state", "takes"),
    [
        (["ready", "ready"], "ready", True),
        (["ready", "degraded"], "degraded", True),
        (["ready", "contradicted"], "degraded", True),
        (["degraded", "down"], "degraded", True),
        (["ready", "starting"], "degraded", True),
        (["contradicted", "starting", "down"], "contradicted", False),
        (["down", "starting"], "starting", False),
        (["down", "down"], "down", False),
        (["contradicted"], "contradicted", False),
    ],
)
def test_a_service_takes_requests_while_one_of_its_replicas_does(
    states: list[str], state: str, takes: bool
) -> None:
    for order in (states, states[::-1]):
        found = together([told(str(at), each, each) for at, each in enumerate(order)])
        assert (found.state, found.takes_requests) == (state, takes)


def test_it_names_the_replicas_that_keep_it_from_ready() -> None:
    found = together([told("a", "ready"), told("b", "contradicted", "It is TCP."), told("c", "down", "gone")])
    assert found.why == "replica b: It is TCP.; replica c: gone"


def test_what_holds_for_all_is_said_once() -> None:
    why = "no prefill replica is ready"
    assert together([told("a", "degraded", why), told("b", "degraded", why)]).why == why
    assert together([told("a", "degraded", why)]).why == why


def test_pairs_are_those_of_all_replicas_with_both_names() -> None:
    pair = {"prefill_replica": "p", "ready": True}
    found = together([told(name, "ready", pairs=[pair]) for name in ("a", "b")])
    assert found.pairs == [{"decode_replica": name, **pair} for name in ("a", "b")]


def test_the_transport_is_the_worst_of_all_and_a_fallback_anywhere_is_told() -> None:
    proven = {"state": "proven", "says": "as asked", "asked": {}, "fallback": None}
    tcp = {"state": "contradicted", "says": "tcp", "asked": {}, "fallback": None}
    found = together([told("a", "ready", transport=proven), told("b", "contradicted", transport=tcp)])
    assert found.transport == tcp
    found = together(
        [told("a", "ready", transport=tcp), told("b", "ready", transport=proven | {"fallback": "tcp in use"})]
    )
    assert found.transport == tcp | {"fallback": "tcp in use"}
    assert together([told("a", "ready")]).transport is None
