"""A replica that refuses prompts has balancers send them to others, while there are some that take them."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from diptych.serving import balancing, facing
from diptych.serving.facing import AggregatedServer, Facing
from diptych.serving.fallback import middlewares
from diptych.serving.readiness import Readiness
from diptych.serving.siblings import SILENT_S
from diptych.serving.siblings import Siblings as KnownSiblings

WHY = "EFA was asked for, and LIBFABRIC over tcp is in use."


@pytest.fixture(autouse=True)
def nobody_here() -> Iterator[None]:
    yield
    balancing.here.avoid = None


def client() -> TestClient:
    """Of a server with all that Serve puts around each."""
    app: Any = PlainTextResponse("answered")
    for middleware in middlewares():
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)
    return TestClient(app)


def test_where_no_replica_is_to_be_avoided_serve_answers_the_balancer() -> None:
    assert client().get("/-/healthz").text == "answered"


def test_a_replica_that_is_to_be_avoided_says_so_to_the_balancer_and_answers_all_else() -> None:
    balancing.here.avoid = WHY
    told = client().get("/-/healthz")
    assert (told.status_code, told.text) == (503, WHY)
    for path in ("/health", "/v1/chat/completions", "/-/routes", "/v1/-/healthz"):
        assert client().get(path).text == "answered"


def test_nothing_else_than_http_is_touched() -> None:
    balancing.here.avoid = WHY
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    asyncio.run(balancing.Healthz(app)({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]


class Unstarted(Facing):
    """A replica that was never started, whose state a test says."""

    replica_name = "own"  # type: ignore[assignment]

    def __init__(self, state: str, replicas: int = 2) -> None:
        self.state = state
        self._llm_config = SimpleNamespace(deployment_config={"num_replicas": replicas}, engine_kwargs={})

    def own_handle(self) -> Any:
        return "own handle"

    def readiness(self) -> Readiness:
        return Readiness(self.state, None if self.state == "ready" else WHY, [])


class Siblings:
    """The deployment's replicas as they answer, the one that asks among them; those that are `late` do not."""

    def __init__(self, *states: str) -> None:
        self.states = {f"sibling-{at}": state for at, state in enumerate(states)}
        self.asked = 0
        self.late: set[str] = set()

    def replica_names(self, handle: Any) -> set[str]:
        return {"own", *self.states}

    async def ask_replicas(self, handle: Any, method: str, *, within_s: float) -> list[dict[str, Any]]:
        assert (handle, method) == ("own handle", "own_readiness")
        self.asked += 1
        await asyncio.sleep(0.01)
        own = [{"replica": "own", "state": "contradicted", "why": WHY, "pairs": []}]
        return own + [
            {"replica": name, "state": state, "why": None if state == "ready" else state, "pairs": []}
            for name, state in self.states.items()
            if name not in self.late
        ]


def avoid(monkeypatch: pytest.MonkeyPatch, state: str, *siblings: str) -> str | None:
    monkeypatch.setattr(facing, "ask_replicas", Siblings(*siblings).ask_replicas)
    return asyncio.run(Unstarted(state)._avoid())


@pytest.mark.parametrize("state", ["contradicted", "down"])
@pytest.mark.parametrize("others", [["ready"], ["down", "degraded"], ["starting"]])
def test_it_is_avoided_while_another_takes_prompts(
    monkeypatch: pytest.MonkeyPatch, state: str, others: list[str]
) -> None:
    assert avoid(monkeypatch, state, *others) == WHY


@pytest.mark.parametrize("others", [[], ["contradicted"], ["down", "contradicted"]])
def test_where_every_other_one_refuses_too_clients_come_and_are_told_why(
    monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    assert avoid(monkeypatch, "contradicted", *others) is None


@pytest.mark.parametrize(("gone", "avoided"), [(False, WHY), (True, None)], ids=["late", "gone"])
def test_a_sibling_that_answers_late_counts_as_it_last_was_while_serve_lists_it(
    monkeypatch: pytest.MonkeyPatch, gone: bool, avoided: str | None
) -> None:
    siblings = Siblings("ready", "ready")
    monkeypatch.setattr(facing, "ask_replicas", siblings.ask_replicas)
    monkeypatch.setattr(facing, "replica_names", siblings.replica_names)
    monkeypatch.setattr(facing, "_SIBLINGS_EVERY_S", 0.0)

    async def go() -> None:
        replica = Unstarted("contradicted")
        assert await replica._avoid() == WHY
        siblings.late = set(siblings.states)
        if gone:
            siblings.states = {}
        assert await replica._avoid() == avoided
        assert (await replica.service_readiness()).takes_requests is not gone

    asyncio.run(go())


def test_a_sibling_that_stays_silent_counts_no_longer_in_the_end() -> None:
    known, word = KnownSiblings(), {"replica": "sibling", "state": "ready"}
    assert known.told([word], (), 100.0) == [word]
    assert known.told([], {"sibling"}, 100.0 + SILENT_S - 1.0) == [word]
    assert known.told([], {"sibling"}, 100.0 + SILENT_S) == []
    assert known.names == set()


@pytest.mark.parametrize("state", ["ready", "degraded", "starting"])
def test_one_that_takes_prompts_asks_nobody(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    siblings = Siblings("ready")
    monkeypatch.setattr(facing, "ask_replicas", siblings.ask_replicas)
    assert asyncio.run(Unstarted(state)._avoid()) is None
    assert siblings.asked == 0


def test_the_balancer_is_told_when_it_begins_and_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facing, "_BALANCE_EVERY_S", 0.0)
    monkeypatch.setattr(facing, "ask_replicas", Siblings("ready").ask_replicas)

    async def told(wanted: str | None) -> None:
        while balancing.here.avoid != wanted:
            await asyncio.sleep(0.01)

    async def go() -> None:
        replica = Unstarted("ready")
        telling = replica._balanced()
        replica.state = "down"
        await asyncio.wait_for(told(WHY), 5)
        replica.state = "ready"
        await asyncio.wait_for(told(None), 5)
        telling.cancel()

    asyncio.run(go())


def test_a_single_replica_is_never_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        await asyncio.wait_for(Unstarted("down", replicas=1)._tell_balancer(), 5)

    asyncio.run(go())
    assert balancing.here.avoid is None


# What the service says of itself


def service_readiness(monkeypatch: pytest.MonkeyPatch, state: str, siblings: Siblings, times: int = 1) -> Any:
    monkeypatch.setattr(facing, "ask_replicas", siblings.ask_replicas)

    async def go() -> Any:
        replica = Unstarted(state)
        return await asyncio.gather(*(replica.service_readiness() for _ in range(times)))

    return asyncio.run(go())[0]


@pytest.mark.parametrize(("own", "sibling"), [("contradicted", "ready"), ("ready", "contradicted")])
def test_whichever_replica_is_asked_says_the_same_of_the_service(
    monkeypatch: pytest.MonkeyPatch, own: str, sibling: str
) -> None:
    told = service_readiness(monkeypatch, own, Siblings(sibling))
    assert (told.state, told.takes_requests) == ("degraded", True)


def test_many_who_ask_at_once_cost_one_question_to_the_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    siblings = Siblings("ready")
    assert service_readiness(monkeypatch, "ready", siblings, times=50).state == "ready"
    assert siblings.asked == 1


# What Serve's own proxy hears


class Engine:
    """Ray's, as far as routing statistics go."""

    def routing_stats(self) -> dict[str, Any]:
        return {"of Ray's": 1}


class Whole(AggregatedServer):
    """One that was never started, and so has not to be stopped."""

    state = "ready"
    engine = Engine()

    def __del__(self) -> None:
        pass

    def readiness(self) -> Readiness:
        return Readiness(self.state, None, [])


@pytest.mark.parametrize(("state", "refuses"), [("down", True), ("contradicted", True), ("degraded", False)])
def test_serve_s_proxy_is_told_whether_prompts_are_refused(state: str, refuses: bool) -> None:
    replica: Any = object.__new__(Whole)
    replica.state = state
    assert asyncio.run(replica.record_routing_stats()) == {"of Ray's": 1, "refuses": refuses}


def test_behind_haproxy_routers_are_told_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They choose for nobody there, and each change is carried to all of Serve's processes."""
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    assert asyncio.run(object.__new__(Whole).record_routing_stats()) == {"of Ray's": 1}
