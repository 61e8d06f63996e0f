"""What a decode replica does beside its requests, without an engine."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving import background, decode_server, phase, vitals
from diptych.serving.decode_server import DecodeServer
from diptych.serving.peers import Peers
from diptych.serving.pulse import Pulse
from fakes.phases import GENERATION, prefill_peers


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_AGAIN_AFTER_S", 0.0)
    monkeypatch.setattr(decode_server, "_GAUGES_EVERY_S", 0.0)
    monkeypatch.setattr(decode_server, "_ASK_PREFILL_EVERY_S", 0.0)


class Unstarted(DecodeServer):
    """A decode replica whose engine was never started, and so has not to be stopped."""

    def __del__(self) -> None:
        pass


def server(peers: Peers) -> Any:
    made: Any = object.__new__(Unstarted)
    made.runner = SimpleNamespace(peers=peers)
    made._prefill_handle = object()
    return made


class Serve:
    """Serve as it knows the prefill replicas: those it sends calls to, and those that answer at once."""

    def __init__(self, *, staying: set[str], prompt: set[str]) -> None:
        self.staying, self.prompt = staying, prompt

    def replica_names(self, handle: Any) -> set[str]:
        return self.staying

    async def ask_replicas(
        self, handle: Any, method: str, *, within_s: float, only: str | None = None
    ) -> list[dict[str, Any]]:
        answering = self.prompt & self.staying if only is None else {only}
        return [{"replica": name, "generation": GENERATION, "ready": True} for name in sorted(answering)]


@pytest.mark.parametrize(
    ("staying", "ready"), [({"one", "two"}, ["one", "two"]), ({"two"}, ["two"])], ids=["late", "taken away"]
)
def test_a_prefill_replica_that_answers_only_by_name_is_ready_unless_serve_takes_it_away(
    monkeypatch: pytest.MonkeyPatch, staying: set[str], ready: list[str]
) -> None:
    serve = Serve(staying=staying, prompt={"two"})
    monkeypatch.setattr(decode_server, "ask_replicas", serve.ask_replicas)
    monkeypatch.setattr(decode_server, "replica_names", serve.replica_names)
    peers = prefill_peers("one", "two")
    peers.get("one").sent("leg", 100)  # type: ignore[union-attr]
    asyncio.run(server(peers)._prefill_now())
    assert sorted(peer.name for peer in peers.ready) == ready


class Flaky:
    """Something that fails twice, and then works."""

    def __init__(self, works: asyncio.Event) -> None:
        self._failures = 2
        self._works = works

    def __call__(self, *_: Any, **__: Any) -> None:
        self._failures -= 1
        if self._failures >= 0:
            raise RuntimeError("not now")
        self._works.set()

    async def later(self) -> None:
        self()


def test_a_failure_ends_neither_asking_nor_proving_nor_the_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecodeServer, "readiness", lambda self: SimpleNamespace(state="ready"))
    monkeypatch.setattr(decode_server.metrics, "set_gauges", lambda gauges: None)
    monkeypatch.setattr(decode_server.metrics, "set_proofs", lambda *_, **__: None)

    async def play() -> None:
        works = [asyncio.Event() for _ in range(3)]
        asking, proving, showing = map(Flaky, works)
        made = server(prefill_peers())
        made._prefill_now = asking.later
        made.prover = SimpleNamespace(proof=SimpleNamespace(watch=proving.later, fallback=None, gauges=dict))
        made.runner.gauges = showing
        made._balanced = lambda: asyncio.create_task(asyncio.sleep(0))
        tasks = made._beside_requests()
        await asyncio.wait_for(asyncio.gather(*(each.wait() for each in works)), 5)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(play())


def test_an_engine_that_stands_still_is_noticed_within_ten_seconds() -> None:
    assert vitals.STUCK_AFTER_S + phase._LOOK_EVERY_S < 10.0


def test_a_look_that_fails_does_not_end_the_watch_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Vitals:
        pid, problem, looks = 7, None, 0

        def look(self, waiting: int, steps: int, expected_s: float) -> None:
            self.looks += 1
            if self.looks == 1:
                raise OSError("the process table can't be read")
            self.problem = "engine process 7 is gone"

        def end(self) -> None:
            pass

    async def play() -> bool:
        made = server(prefill_peers())
        processor = SimpleNamespace(get_num_unfinished_requests=lambda: 0, request_states={})
        made._pulse = Pulse(most_tokens=2048)
        made.engine = SimpleNamespace(client=SimpleNamespace(output_processor=processor))
        made._engine_vitals = Vitals()
        await asyncio.wait_for(made._watched(), 5)
        return bool(made._engine_dead.is_set())

    monkeypatch.setattr(phase, "_LOOK_EVERY_S", 0.0)
    assert asyncio.run(play())
