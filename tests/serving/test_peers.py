"""The prefill replicas as a decode replica knows them."""

import asyncio
import time
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving.costs import Line
from diptych.serving.peers import Peer, Peers
from diptych.serving.prefix import GUESS_BLOCK, chain
from diptych.serving.readiness import readiness_of
from diptych.serving.router import ChosenReplicaRouter
from diptych.serving.settings import Settings
from fakes.phases import GENERATION, long_silent, prefill_peers

TOKENS = list(range(4 * GUESS_BLOCK))
HASHES = list(chain(TOKENS, GUESS_BLOCK))


def cost() -> Line:
    line = Line()
    line.add(100, 1.0)
    return line


def best(peers: Peers, **more: Any) -> str | None:
    peer = peers.best(len(TOKENS), HASHES, cost(), **more)
    return peer.name if peer else None


def test_the_one_with_the_shortest_queue_is_the_best() -> None:
    peers = prefill_peers("one", "two")
    peers.get("one").sent("leg", 500)  # type: ignore[union-attr]
    assert best(peers) == "two"


def test_one_that_has_the_prompts_beginning_is_better_than_an_idle_one() -> None:
    peers = prefill_peers("one", "two")
    peers.get("two").beginnings.add(HASHES[:3])  # type: ignore[union-attr]
    assert best(peers) == "two"
    peers.get("two").sent("leg", 10 * len(TOKENS))  # type: ignore[union-attr]
    assert best(peers) == "one"


def test_what_others_have_waiting_there_counts_too() -> None:
    peers = prefill_peers("one", waiting_tokens=1000)
    peers.update(
        [
            {"replica": "one", "generation": GENERATION, "ready": True, "waiting_tokens": 1000},
            {"replica": "two", "generation": GENERATION, "ready": True},
        ]
    )
    assert best(peers) == "two"


def test_one_that_failed_is_put_aside_longer_each_time_and_tried_again() -> None:
    peers = prefill_peers("one")
    peer = peers.get("one")
    assert peer is not None
    for now in (100.0, 100.1, 100.2):  # three prompts, one trouble
        peer.failed(now=now)
    assert (peer.is_aside(now=100.5), peer.is_aside(now=101.5)) == (True, False)
    peer.failed(now=102.0)
    assert (peer.is_aside(now=103.5), peer.is_aside(now=104.5)) == (True, False)
    peer.worked()
    assert not peer.is_aside(now=102.0)


def test_only_replicas_of_our_generation_that_are_well_and_can_hold_the_prompt_are_asked() -> None:
    assert best(prefill_peers("one", generation="another")) is None
    assert best(prefill_peers("one", ready=False)) is None
    assert best(prefill_peers("one", draining=True)) is None
    assert best(prefill_peers("one", kv_cache_tokens=len(TOKENS))) is None
    assert best(prefill_peers("one", kv_cache_tokens=len(TOKENS) + 1)) == "one"
    assert best(prefill_peers("one"), without=["one"]) is None


def test_nobody_goes_on_waiting_for_a_replica_that_is_gone() -> None:
    async def wait() -> None:
        peers = prefill_peers("one")
        one = peers.get("one")
        assert one
        one.heard_at -= 11
        async with asyncio.timeout(60) as timeout:
            one.sent("leg", 10, timeout)
            asyncio.get_running_loop().call_soon(peers.update, [])
            await asyncio.sleep(60)

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(wait())
    assert time.monotonic() - began < 30


def test_what_a_replica_that_is_taken_away_still_computes_is_waited_for() -> None:
    async def wait() -> None:
        peers = prefill_peers("one")
        async with asyncio.timeout(60) as timeout:
            peers.get("one").sent("leg", 10, timeout)  # type: ignore[union-attr]
            peers.update([{"replica": "one", "generation": GENERATION, "ready": True, "draining": True}])
            await asyncio.sleep(0.05)
        assert best(peers) is None

    asyncio.run(wait())


def test_ready_is_said_only_after_a_kv_transfer_and_degraded_when_prefill_is_lost() -> None:
    peers, settings = prefill_peers("one"), Settings()
    assert readiness_of(None, peers, settings).state == "starting"
    peers.transferred(peers.get("one"))  # type: ignore[arg-type]
    assert readiness_of(None, peers, settings).state == "ready"
    long_silent(peers)
    peers.update([])
    assert readiness_of(None, peers, settings).state == "degraded"
    assert readiness_of("engine process 7 is gone", peers, settings).state == "down"
    assert readiness_of(None, None, settings).state == "ready"


def test_a_call_goes_to_the_replica_it_names_while_serve_knows_it() -> None:
    class Replica:
        def __init__(self, name: str) -> None:
            self.replica_id = type("Id", (), {"unique_id": name})

    replicas = [Replica("one"), Replica("two")]

    def groups(asked: Any) -> list[list[str]]:
        pending = type("Pending", (), {"args": (asked,)})
        router = ChosenReplicaRouter.__new__(ChosenReplicaRouter)
        chosen = asyncio.run(router.choose_replicas(replicas, pending))
        return [[each.replica_id.unique_id for each in group] for group in chosen]

    assert groups({"replica": "two"}) == [["two"], ["one"]]
    assert groups({"replica": "gone"}) == [["one", "two"]]


def test_a_replica_that_is_silent_gets_no_more_prompts_and_then_loses_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: list[str] = []
    monkeypatch.setattr(Peer, "lost", lambda peer: lost.append(peer.name))
    peers = prefill_peers("one")
    peer = peers.get("one")
    assert peer
    peer.sent("leg", 100)
    told = []
    for silent_s in (1.0, 7.0, 11.0):
        peer.heard_at = time.monotonic() - silent_s
        peers.update([])
        told.append((bool(peers.ready), list(lost)))
    assert told == [(True, []), (False, []), (False, ["one"])]
    peer.ended("leg")
    peers.update([])
    assert list(peers) == []
