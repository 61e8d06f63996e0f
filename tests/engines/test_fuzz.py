"""No request, whatever is in it, gets a server error that the engine alone does not give, or takes an engine down."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from engines.comparison import answer_in, client_of, complaint, engine_alone, send, with_model
from engines.fields_of_others import MODELS
from engines.rows import Body, Model
from engines.service import Service, seconds_until
from engines.strategies import CONTENT_TYPES, bodies, raw_bodies

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.conformance]

EACH_ROUTE = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
# The same examples every time; none is made smaller, since each step of that asks the engines again.
FIXED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
EXAMPLES, RAW_EXAMPLES = 120, 30

Ask = Callable[[httpx.Client, str], httpx.Response]


@dataclass
class Fuzzed:
    """The split under test, and what it could not answer: how each such request is asked again, and what it got."""

    service: Service
    client: httpx.Client
    engines: dict[str, int]
    failed: list[tuple[str, Ask, int]] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)

    def ask(self, what: str, ask: Ask) -> None:
        response = ask(self.client, self.service.model)
        self.statuses[response.status_code] = self.statuses.get(response.status_code, 0) + 1
        if response.status_code >= 500:
            self.failed.append((what, ask, response.status_code))
        elif response.status_code >= 400:
            assert complaint(answer_in(response)) is None, (what, response.text)


def engines_of(service: Service) -> dict[str, int]:
    return {phase: replicas[0]["engine_pid"] for phase, replicas in service.phases().items()}


@pytest.fixture(scope="module")
def fuzzed(machine: Service) -> Iterator[Fuzzed]:
    if not machine.is_up():
        machine.down()
        up = machine.up()
        assert up.returncode == 0, up.stderr
    with client_of(machine) as client:
        yield Fuzzed(machine, client, engines_of(machine))


@EACH_ROUTE
def test_a_request_out_of_good_and_bad_fields_is_answered_or_refused(fuzzed: Fuzzed, model: Model) -> None:
    @settings(FIXED, max_examples=EXAMPLES)
    @given(bodies(model))
    def check(body: Body) -> None:
        fuzzed.ask(
            f"{model.route} {body}", lambda client, name: send(client, model.route, with_model(body, name))
        )

    check()


@EACH_ROUTE
def test_a_request_that_is_none_is_refused(fuzzed: Fuzzed, model: Model) -> None:
    @settings(FIXED, max_examples=RAW_EXAMPLES)
    @given(raw_bodies(model), CONTENT_TYPES)
    def check(content: bytes, kind: str) -> None:
        def post(client: httpx.Client, _: str) -> httpx.Response:
            return client.post(model.route, content=content, headers={"content-type": kind} if kind else {})

        fuzzed.ask(f"{model.route} {kind} {content[:200]!r}", post)

    check()


def test_the_engines_are_those_that_there_were_and_hold_nothing(fuzzed: Fuzzed) -> None:
    print(f"\nanswers by status: {dict(sorted(fuzzed.statuses.items()))}")

    def idle() -> bool:
        held = ("requests_running", "requests_waiting", "kv_cache_usage")
        return all(counters[name] == 0 for counters in fuzzed.service.counters().values() for name in held)

    assert engines_of(fuzzed.service) == fuzzed.engines
    fuzzed.service.complete("The capital of France is")
    seconds_until(idle, within_s=15.0)
    assert all(replica["ready"] for replicas in fuzzed.service.phases().values() for replica in replicas)


def test_a_server_error_is_the_engines_own(fuzzed: Fuzzed, machine: Service) -> None:
    """Last, since the engine alone takes the split's place."""
    if not fuzzed.failed:
        return
    with engine_alone(machine) as one, client_of(one) as client:
        own: list[Any] = [(what, status, ask(client, one.model)) for what, ask, status in fuzzed.failed]
    for what, status, alone in own:
        print(f"\n{status}, alone {alone.status_code}: {what}")
    assert [(what, status) for what, status, alone in own if alone.status_code < 500] == []
    assert [alone.text for _, _, alone in own if complaint(answer_in(alone))] == []
