"""What the engine alone answers, the split answers the same, whatever the shape; what it refuses, likewise."""

import itertools
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.service import Service
from engines.shapes import SHAPES

pytestmark = [pytest.mark.engines, pytest.mark.long]

# What differs between any two answers: names and times.
_OWN = {"id", "created", "created_at", "completed_at", "system_fingerprint", "item_id", "call_id"}
_TOLERANCE = 2e-3
"""Of log-probabilities: the first token is computed with the prompt on one path and after it on the other."""

Answer = tuple[int, Any]


def ask(service: Service, route: str, body: dict[str, Any]) -> Answer:
    """Status and what was said, as JSON; a stream is put together first."""
    with service.client(timeout_s=240.0) as client:
        client.headers.pop("x-diptych-timing")
        response = client.post(route, json={"model": service.model} | body)
    if "event-stream" not in response.headers.get("content-type", ""):
        return response.status_code, response.json()
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return response.status_code, together([json.loads(each) for each in data if each != "[DONE]"])


def together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a stream says in all: engines may hand out several tokens at once, so pieces are not compared."""
    text: dict[int, str] = {}
    logprobs: dict[int, list[Any]] = {}
    finished: dict[int, Any] = {}
    for event in events:
        for choice in event.get("choices") or [{"index": 0} | event]:
            index, delta = choice["index"], choice.get("delta") or {}
            piece = delta if isinstance(delta, str) else delta.get("content") or delta.get("text")
            text[index] = text.get(index, "") + (piece or choice.get("text") or "")
            inner = choice.get("logprobs") or {}
            logprobs.setdefault(index, []).extend(inner.get("content") or inner.get("token_logprobs") or [])
            reason = choice.get("finish_reason") or (
                delta.get("stop_reason") if isinstance(delta, dict) else None
            )
            finished[index] = reason or finished.get(index)
    kinds = [kind for kind, _ in itertools.groupby(event.get("type", "chunk") for event in events)]
    usage = next((event["usage"] for event in reversed(events) if event.get("usage")), None)
    return {"kinds": kinds, "text": text, "logprobs": logprobs, "finished": finished, "usage": usage}


def alike(one: Any, other: Any) -> bool:
    """Whether two answers say the same."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = (one.keys() | other.keys()) - _OWN
        return all(name in one and name in other and alike(one[name], other[name]) for name in names)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, abs_tol=_TOLERANCE, rel_tol=_TOLERANCE)
    return bool(one == other)


@pytest.fixture(scope="module")
def alone(reference: object, machine: Service) -> Iterator[dict[str, Answer]]:
    """What one engine that does both phases answers; it is up before the split, never beside it."""
    machine.down()
    with tempfile.TemporaryDirectory(prefix="dt-") as directory:
        one = Service(Path(directory))
        up = one.run(
            "up", "--name", "proof", "--port", "18439", "--set", "topology=aggregated", timeout_s=240.0
        )
        assert up.returncode == 0, up.stderr
        try:
            answers = {name: ask(one, route, body) for name, route, body in SHAPES}
        finally:
            one.down()
    yield answers


@pytest.mark.parametrize(("name", "route", "body"), SHAPES, ids=[shape[0] for shape in SHAPES])
def test_the_split_answers_what_the_engine_alone_answers(
    alone: dict[str, Answer], service: Service, name: str, route: str, body: dict[str, Any]
) -> None:
    status, said = ask(service, route, body)
    expected_status, expected = alone[name]
    assert status == expected_status, said
    assert status < 500
    assert alike(expected, said), (expected, said)
    if status >= 400:
        assert {"message", "type", "code"} <= said["error"].keys()


def test_the_engine_is_well_after_all_of_it(service: Service) -> None:
    assert service.complete("The capital of France is")["diptych"]["path"] == "remote"
    assert all(replica["ready"] for replicas in service.phases().values() for replica in replicas)
