"""Asking one service and another the same, and whether they said the same."""

import itertools
import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from engines.rows import ABSENT, Body, Shape
from engines.service import NAME, PORT, START_TIMEOUT_S, Service

# What differs between any two answers: names and times.
_OWN = {
    "id",
    "created",
    "created_at",
    "completed_at",
    "system_fingerprint",
    "item_id",
    "call_id",
    "sequence_number",
}
# What an engine's earlier requests decide, too, and there are two engines on one path: only its kind is compared.
_OF_THE_CACHE = {"cached_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"}
_TOLERANCE = 2e-3
"""Of log-probabilities: the first token is computed with the prompt on one path and after it on the other."""
_SINGLE = {"role", "type", "id", "name", "object", "model", "finish_reason", "stop_reason", "stop_sequence"}
_INTERNAL = re.compile(
    r"Traceback|File \"|site-packages|\bdiptych\.|\bray\.|vllm\.[a-z_]+\.|object at 0x|_transfer_params\b.*remote"
)


class Answer(NamedTuple):
    status: int
    said: Any
    """JSON; of a stream, what all its events say together."""


@contextmanager
def engine_alone(machine: Service, *settings: str) -> Iterator[Service]:
    """One engine that does both phases, at the split's place: two cores hold one set of engines.

    `settings` are more words for `up`.
    """
    machine.down()
    with tempfile.TemporaryDirectory(prefix="dt-") as directory:
        one = Service(Path(directory))
        options = ("--name", "proof", "--port", str(PORT), "--set", "topology=aggregated", *settings)
        up = one.run("up", *options, timeout_s=240.0)
        assert up.returncode == 0, up.stderr
        try:
            yield one
        finally:
            one.down()


@contextmanager
def split_with(machine: Service, *settings: str) -> Iterator[Service]:
    """The split, up with these words more for `up`; whatever comes next starts its own."""
    machine.down()
    up = machine.run("up", "--name", NAME, "--port", str(PORT), *settings, timeout_s=START_TIMEOUT_S)
    assert up.returncode == 0, up.stderr
    yield machine
    machine.down()


def answers(service: Service, shapes: Mapping[str, Shape]) -> dict[str, Answer]:
    """What a service answers to each, asked one after the other."""
    with client_of(service) as client:
        return {name: ask(client, service.model, shape) for name, shape in shapes.items()}


@contextmanager
def client_of(service: Service) -> Iterator[httpx.Client]:
    with service.client(timeout_s=240.0) as client:
        client.headers.pop("x-diptych-timing")
        yield client


def ask(client: httpx.Client, model: str, shape: Shape) -> Answer:
    if shape.body is None:
        return answer_in(client.get(shape.route))
    return answer_in(send(client, shape.route, with_model(shape.body, model)))


def with_model(body: Body, model: str) -> Body:
    return {name: value for name, value in ({"model": model} | body).items() if value != ABSENT}


def send(client: httpx.Client, route: str, body: Any) -> httpx.Response:
    """Post JSON as it comes, NaN and all."""
    return client.post(route, content=json.dumps(body), headers={"content-type": "application/json"})


def answer_in(response: httpx.Response) -> Answer:
    if "event-stream" not in response.headers.get("content-type", ""):
        return Answer(response.status_code, response.json() if response.content else None)
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return Answer(response.status_code, together([json.loads(each) for each in data if each != "[DONE]"]))


def together(events: list[Body]) -> Body:
    """What a stream says in all: engines may hand out several tokens at once, so pieces are not compared."""
    kinds = [kind for kind, _ in itertools.groupby(event.get("type", "chunk") for event in events)]
    said: Body = {
        "kinds": kinds,
        "choices": {},
        "deltas": {},
        "last": events[-1] if "type" in events[-1] else None,
    }
    for event in events:
        if "type" in event:
            delta = event.get("delta")
            place = f"{event['type']} {event.get('index', event.get('output_index'))}"
            _add(said["deltas"].setdefault(place, {}), {"delta": delta})
            continue
        for choice in event.get("choices", ()):
            _add(said["choices"].setdefault(choice["index"], {}), choice)
        said |= {name: value for name, value in event.items() if name != "choices" and value is not None}
    return said


def _add(said: Body, piece: Body) -> None:
    """Continue text and lists, replace everything else."""
    for name, value in piece.items():
        if name == "tool_calls":
            for call in value:
                _add(said.setdefault(name, {}).setdefault(call["index"], {}), call)
        elif isinstance(value, dict):
            _add(said.setdefault(name, {}), value)
        elif isinstance(value, list):
            said[name] = said.get(name, []) + value
        elif isinstance(value, str) and name not in _SINGLE:
            said[name] = said.get(name, "") + value
        elif value is not None:
            said[name] = value


def difference(one: Any, other: Any, at: str = "") -> str | None:
    """Where two answers first say something else; None where they say the same."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted((one.keys() | other.keys()) - _OWN, key=str):
            if (name in one) != (name in other):
                return f"{at}.{name} is in one alone"
            if name in _OF_THE_CACHE and (one[name] is None) == (other[name] is None):
                continue
            if found := difference(one[name], other[name], f"{at}.{name}"):
                return found
        return None
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return f"{at} has {len(one)} and {len(other)} parts: {one} and {other}"
        pairs = enumerate(zip(one, other, strict=True))
        return next((found for i, pair in pairs if (found := difference(*pair, f"{at}[{i}]"))), None)
    if isinstance(one, float) and isinstance(other, float):
        same = math.isclose(one, other, abs_tol=_TOLERANCE, rel_tol=_TOLERANCE)
    else:
        same = bool(one == other)
    return None if same else f"{at}: {one!r} and {other!r}"


def complaint(answer: Answer) -> str | None:
    """What is wrong with a refusal: an error as OpenAI's API words it, or Anthropic's, that tells nothing internal."""
    error = answer.said.get("error") if isinstance(answer.said, dict) else None
    if not isinstance(error, dict) or not {"message", "type"} <= error.keys():
        return "it is no error body"
    if answer.said.get("type") != "error" and "code" not in error:
        return "it has no code"
    if not (isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str)):
        return "its message or type is no text"
    found = _INTERNAL.search(json.dumps(answer.said))
    return f"it tells of {found.group()!r}" if found else None
