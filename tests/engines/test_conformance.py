"""What the engine alone answers, the split answers the same, whatever the request; what it refuses, likewise."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from engines.comparison import Answer, ask, client_of, complaint, difference, engine_alone
from engines.fields_of_others import MODELS
from engines.rows import Shape
from engines.service import Service
from engines.shapes import SHAPES

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.conformance]

ALL = {shape.name: shape for shape in [*SHAPES, *(row for model in MODELS for row in model.shapes())]}
AT_ONCE = 4
"""Requests under way; engines batch them, as they would anybody's."""
# What vLLM itself mixes up between the requests of a batch: with these, the engine alone answers one way alone and
# another in company.
NEVER_BATCHED = ("allowed_token_ids", "logprob_token_ids")

Answers = dict[str, Answer | Exception]


def answers(service: Service, names: list[str]) -> Answers:
    """What a service answers to each of the requests: first those that can be batched, several at once."""
    together = [name for name in names if can_be_batched(ALL[name])]
    alone = [name for name in names if not can_be_batched(ALL[name])]
    with client_of(service) as client, ThreadPoolExecutor(AT_ONCE) as pool:
        said = pool.map(lambda name: _asked(client, service.model, ALL[name]), together)
        answers = dict(zip(together, said, strict=True))
        return answers | {name: _asked(client, service.model, ALL[name]) for name in alone}


def can_be_batched(shape: Shape) -> bool:
    """vLLM 0.26 on a CPU forgets the seeds of a batch in which one request has none: who samples comes alone."""
    body = shape.body or {}
    return not body.get("temperature", 0) and not any(name in body for name in NEVER_BATCHED)


def _asked(client: httpx.Client, model: str, shape: Shape) -> Answer | Exception:
    try:
        return ask(client, model, shape)
    except (httpx.HTTPError, ValueError) as error:
        return error


@pytest.fixture(scope="module")
def names(request: pytest.FixtureRequest) -> list[str]:
    """Of the requests that this run was asked to compare."""
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    chosen = {spec.params["name"] for spec in specs if spec and "name" in spec.params}
    return [name for name in ALL if name in chosen]


@pytest.fixture(scope="module")
def alone(reference: object, machine: Service, names: list[str]) -> Answers:
    """What one engine that does both phases answers; it is up before the split, never beside it."""
    with engine_alone(machine) as one:
        return answers(one, names)


@pytest.fixture(scope="module")
def split(alone: object, machine: Service, names: list[str]) -> Answers:
    machine.down()
    up = machine.up()
    assert up.returncode == 0, up.stderr
    return answers(machine, names)


@pytest.mark.parametrize("name", ALL, ids=list(ALL))
def test_the_split_answers_what_the_engine_alone_answers(alone: Answers, split: Answers, name: str) -> None:
    expected, answer = alone[name], split[name]
    assert isinstance(expected, Answer), expected
    assert isinstance(answer, Answer), answer
    assert answer.status == expected.status, (expected, answer)
    assert difference(expected.said, answer.said) is None, (expected, answer)
    if answer.status >= 400:
        assert complaint(answer) is None, answer


def test_both_engines_are_well_after_all_of_it(split: Answers, machine: Service) -> None:
    failed = [name for name, answer in split.items() if isinstance(answer, Answer) and answer.status >= 500]
    print(f"\nserver errors, the engine alone gives them too: {failed}")
    assert machine.complete("The capital of France is")["diptych"]["path"]
    assert all(replica["ready"] for replicas in machine.phases().values() for replica in replicas)
