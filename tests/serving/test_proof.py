"""Ready means proven: what the watch makes of a pair's probes, what holds a replica back, and what readiness says."""

import asyncio
import logging
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from prometheus_client import CollectorRegistry

from diptych.serving import gate as gates
from diptych.serving import metrics
from diptych.serving import proof as proofs
from diptych.serving.asked import asked_of, transport_of
from diptych.serving.gate import MOST_UNPROVEN, Gate
from diptych.serving.light import Outcome
from diptych.serving.peers import Peer, Peers
from diptych.serving.probe import Wanted, silent
from diptych.serving.proof import Proof
from diptych.serving.readiness import readiness_of
from diptych.serving.settings import Settings
from fakes.phases import GENERATION, long_silent, prefill_peers

ENGINE = {"backends": ["UCX"], "provider": None, "kv_buffer_device": "cpu"}
GOOD, WRONG, MUTE, LOST = "good", "wrong", "mute", "lost"


def worker(backend: str) -> dict[str, Any]:
    return {
        "rank": 0,
        "pid": 7,
        "backends": [backend],
        "libraries": [f"libplugin_{backend}.so"],
        "devices": [],
        "rails": None,
        "side_channel": "127.0.0.1:20000",
        "warnings": [],
        "device_counters": {},
    }


WORKERS = {GOOD: [worker("UCX")], WRONG: [worker("LIBFABRIC")], MUTE: [], LOST: [worker("UCX")]}


class Probe:
    """Pairs that look, one probe after the other, as they are told to; the last look stays.

    `mute`: workers that tell nothing; `lost`: the KV transfer does not arrive.
    """

    def __init__(self, peers: Peers, *looks: str) -> None:
        self._peers = peers
        self._looks = list(looks or (GOOD,))
        self.probed: list[str] = []

    async def pair(self, name: str, asked: Wanted) -> dict[str, Any]:
        await asyncio.sleep(0)
        look = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        self.probed.append(name)
        ok = look != LOST
        peer = self._peers.get(name)
        if ok and peer:
            self._peers.transferred(peer)
        sides = {side: silent(side, name) | {"workers": WORKERS[look]} for side in ("prefill", "decode")}
        transfer = {"tokens": asked.tokens[0], "ok": ok, "path": "remote" if ok else "local-no-prefill"}
        transfer |= {"bytes": 700 if ok else None, "ms": 1.0 if ok else None, "error": None, "why": None}
        return {"before": sides, "after": sides, "transfers": [transfer], "prefill_replica": name}


class Beside:
    """Light proofs of answers and idleness, as given, one round after the other; the last ones stay."""

    def __init__(self, *rounds: dict[str, Outcome]) -> None:
        self._rounds = list(rounds)
        self.asked: list[tuple[str, dict[str, int], bool]] = []
        self.forgotten: list[str] = []

    def sent(self, _: str) -> dict[str, int]:
        return {"prefill": len(self.asked), "decode": len(self.asked)}

    async def look(
        self, name: str, before: Any, sent_before: dict[str, int], *, carries: bool
    ) -> dict[str, Outcome]:
        await asyncio.sleep(0)
        assert set(before) == {"prefill", "decode"}
        self.asked.append((name, sent_before, carries))
        return self._rounds.pop(0) if len(self._rounds) > 1 else self._rounds[0]

    def forget(self, name: str) -> None:
        self.forgotten.append(name)


def never_due(_: Peer) -> bool:
    return False


def proof(peers: Peers, *looks: str, period_s: float = 60.0, beside: Any = None, **transport: Any) -> Proof:
    asked = asked_of(transport_of({"backend": "UCX"} | transport), ENGINE)
    probe: Any = Probe(peers, *looks)
    return Proof(probe, peers, asked, tokens=17, period_s=period_s, carried_nothing=never_due, beside=beside)


def probed(own: Proof) -> list[str]:
    found: list[str] = own._probe.probed  # type: ignore[attr-defined]
    return found


@pytest.fixture
def peers() -> Peers:
    return prefill_peers("prefill-1")


# A look


def test_a_pair_that_carries_on_what_was_asked_for_is_proven(peers: Peers) -> None:
    own = proof(peers)
    judged = asyncio.run(own.look("prefill-1"))
    assert (judged.verdict.state, judged.holds, own.contradiction) == ("proven", True, None)
    assert own.to_json()["state"] == "proven"


def test_a_contradiction_counts_only_when_a_second_look_says_the_same(peers: Peers) -> None:
    once = proof(peers, WRONG, GOOD)
    assert asyncio.run(once.look("prefill-1")).holds
    twice = proof(peers, WRONG, WRONG)
    judged = asyncio.run(twice.look("prefill-1"))
    assert judged.is_contradicted
    assert twice.contradiction == judged.verdict.says
    assert "UCX was asked for, and LIBFABRIC" in judged.verdict.says


def test_of_several_pairs_a_contradicted_one_gets_no_prompts_and_the_replica_stays_ready() -> None:
    peers = prefill_peers("bad", "good")
    own = proof(peers, WRONG, WRONG, GOOD)
    bad, good = peers
    asyncio.run(own.look("bad"))
    assert own.contradiction is not None  # no pair holds yet
    asyncio.run(own.look("good"))
    assert (bad.is_aside(), good.is_aside()) == (True, False)
    assert own.contradiction is None
    assert readiness_of(None, peers, Settings(), own).state == "ready"
    assert own.to_json()["state"] == "contradicted"
    assert own.gauges()["bad"].holds["transport"] is False


def test_a_contradicted_pair_is_looked_at_though_it_is_set_aside_and_gets_prompts_again(fast: None) -> None:
    peers = prefill_peers("bad", "good")
    own = proof(peers, GOOD, WRONG, WRONG, GOOD, period_s=0.05)
    bad, _ = peers
    asyncio.run(own.look("good"))
    asyncio.run(own.look("bad"))
    assert bad.is_aside()
    bad.worked()  # a prompt that was on its way came through
    watched(own, 0.03)
    assert bad.is_aside()
    watched(own)
    assert not bad.is_aside()
    assert own.to_json()["state"] == "proven"


def test_where_a_fallback_is_allowed_no_pair_is_set_aside() -> None:
    peers = prefill_peers("bad", "good")
    own = proof(peers, WRONG, WRONG, GOOD, allow_fallback=True)
    asyncio.run(own.look("bad"))
    asyncio.run(own.look("good"))
    assert not any(peer.is_aside() for peer in peers)


def test_with_no_pair_left_that_holds_it_is_not_ready() -> None:
    peers = prefill_peers("bad", "worse")
    own = proof(peers, WRONG)
    asyncio.run(own.look("bad"))
    asyncio.run(own.look("worse"))
    assert readiness_of(None, peers, Settings(), own).state == "contradicted"


def test_a_prompt_of_ours_that_came_behind_those_of_clients_changes_no_verdict(peers: Peers) -> None:
    own = proof(peers, GOOD, LOST)
    (peer,) = peers
    asyncio.run(own.look("prefill-1"))
    pair = own._probe.pair

    async def beside_clients(name: str, asked: Wanted) -> dict[str, Any]:
        peers.transferred(peer)
        return await pair(name, asked)

    own._probe.pair = beside_clients  # type: ignore[method-assign]
    assert asyncio.run(own.look("prefill-1")).holds
    own._probe.pair = pair  # type: ignore[method-assign]
    assert not asyncio.run(own.look("prefill-1")).holds


def test_a_pair_that_is_gone_contradicts_nothing(peers: Peers) -> None:
    own = proof(peers, WRONG)
    asyncio.run(own.look("prefill-1"))
    long_silent(peers)
    peers.update([])
    assert own.contradiction is None
    assert own.gauges() == {}


# Readiness


def test_a_contradicted_transport_is_not_ready_and_says_both_sides(peers: Peers) -> None:
    own = proof(peers, WRONG)
    asyncio.run(own.look("prefill-1"))
    readiness = readiness_of(None, peers, Settings(), own)
    assert (readiness.state, readiness.takes_requests) == ("contradicted", False)
    assert readiness.why is not None and "UCX was asked for, and LIBFABRIC" in readiness.why
    told = readiness.to_json()
    assert told["transport"]["state"] == told["pairs"][0]["transport"]["state"] == "contradicted"


def test_it_is_ready_again_when_the_transport_is_right_again(peers: Peers) -> None:
    own = proof(peers, WRONG, WRONG, GOOD)
    asyncio.run(own.look("prefill-1"))
    asyncio.run(own.look("prefill-1"))
    assert readiness_of(None, peers, Settings(), own).state == "ready"


def test_where_a_fallback_is_allowed_it_stays_ready_and_every_status_says_so(peers: Peers) -> None:
    own = proof(peers, WRONG, allow_fallback=True)
    asyncio.run(own.look("prefill-1"))
    readiness = readiness_of(None, peers, Settings(), own)
    assert readiness.state == "ready"
    told = readiness.to_json()["transport"]
    assert told["state"] == "contradicted"
    assert "UCX was asked for, and LIBFABRIC" in told["fallback"]
    assert told["asked"] == {"backend": "UCX", "provider": None, "allow_fallback": True}


def test_a_dead_engine_goes_before_a_contradiction(peers: Peers) -> None:
    own = proof(peers, WRONG)
    asyncio.run(own.look("prefill-1"))
    assert readiness_of("the engine is dead", peers, Settings(), own).state == "down"


def test_who_never_asks_prefill_needs_no_proof(peers: Peers) -> None:
    own = proof(peers, WRONG)
    asyncio.run(own.look("prefill-1"))
    assert readiness_of(None, peers, Settings(prefill="never"), own).state == "ready"


# The watch


def watched(own: Proof, seconds: float = 0.2, until: Callable[[], bool] = lambda: True) -> None:
    """Watch for so long, and until that is so."""

    async def watch() -> None:
        task = asyncio.create_task(own.watch())
        await asyncio.sleep(seconds)
        async with asyncio.timeout(20):
            while not until():
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(watch())


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(gates, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(gates, "_LONGEST_PAUSE_S", 0.02)


def test_each_pair_is_looked_at_once_a_period(fast: None) -> None:
    peers = prefill_peers("prefill-1", "prefill-2")
    own = proof(peers, period_s=3600.0)
    watched(own)
    assert probed(own) == ["prefill-1", "prefill-2"]
    often = proof(peers, period_s=0.05)
    watched(often)
    assert len(probed(often)) > 4


def test_a_period_of_zero_watches_nothing(peers: Peers, fast: None) -> None:
    own = proof(peers, period_s=0.0)
    watched(own)
    assert probed(own) == []


def test_a_pair_that_was_put_aside_is_left_alone(peers: Peers, fast: None) -> None:
    (peer,) = peers
    peer.failed()
    own = proof(peers)
    watched(own)
    assert probed(own) == []


def test_a_probe_that_breaks_does_not_end_the_watch(peers: Peers, fast: None) -> None:
    own = proof(peers, period_s=0.02)

    async def broken(*_: Any) -> Any:
        probed(own).append("broken")
        raise RuntimeError("no such thing")

    own._probe.pair = broken  # type: ignore[method-assign]
    watched(own)
    assert len(probed(own)) > 1


HOLD = {"answers": Outcome(True, "the same"), "idle": Outcome(True, "nothing is left")}
DIFFER = {"answers": Outcome(False, "token 2 is 5 and 6"), "idle": Outcome(None, "others were running")}


def test_in_each_round_answers_and_idleness_are_looked_at_after_the_pairs_probe(fast: None) -> None:
    beside = Beside(HOLD)
    peers = prefill_peers("prefill-1", "prefill-2")
    own = proof(peers, GOOD, LOST, period_s=3600.0, beside=beside)
    watched(own)
    assert beside.asked == [
        ("prefill-1", {"prefill": 0, "decode": 0}, True),
        ("prefill-2", {"prefill": 1, "decode": 1}, False),
    ]
    assert own.gauges()["prefill-1"].holds == {
        "transport": True,
        "kv_transfer": True,
        "split": None,  # these engines count nothing
        "speed": None,
        "answers": True,
        "idle": True,
    }


def test_a_start_waits_for_neither(peers: Peers, fast: None) -> None:
    beside = Beside(DIFFER)
    assert passed(proof(peers, beside=beside), peers)
    assert beside.asked == []


def test_what_holds_no_more_is_said_once_and_keeps_nobody_from_being_ready(
    peers: Peers, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    # Not by caplog: where libraries have set up logging in this process, nothing may reach it.
    monkeypatch.setattr(proofs.logger, "warning", lambda words, *of: said.append(words % of))
    own = proof(peers, period_s=0.02, beside=(beside := Beside(HOLD, DIFFER)))
    watched(own, until=lambda: len(beside.asked) > 4)
    assert said == ["The pair with prefill-1: answers does not hold: token 2 is 5 and 6"]
    assert readiness_of(None, peers, Settings(), own).state == "ready"


def test_a_pair_that_is_gone_is_forgotten_everywhere(peers: Peers, fast: None) -> None:
    beside = Beside(HOLD)
    own = proof(peers, period_s=3600.0, beside=beside)
    watched(own, 0.05)
    long_silent(peers)
    peers.update([])
    assert own.gauges() == {}
    assert beside.forgotten == ["prefill-1"]


def test_a_pair_that_goes_in_the_middle_of_its_round_leaves_nothing(peers: Peers, fast: None) -> None:
    class Last(Beside):
        async def look(self, name: str, *_: Any, **__: Any) -> dict[str, Outcome]:
            long_silent(peers)
            peers.update([])
            assert own.gauges() == {}
            return HOLD

    beside = Last()
    own = proof(peers, period_s=3600.0, beside=beside)
    watched(own)
    assert beside.forgotten == ["prefill-1"]
    assert own.gauges() == {}
    assert beside.forgotten == ["prefill-1"] * 2


# The gate


async def nobody() -> None:
    """Ask nobody."""


def passed(
    own: Proof, peers: Peers, *, was_proven: bool = False, appear: Any = None, within_s: float = 5.0
) -> bool:
    async def ask() -> None:
        if appear:
            appear()

    async def wait() -> bool:
        async with asyncio.timeout(within_s):
            return await Gate(own, peers, ask).passed(was_proven=was_proven)

    return asyncio.run(wait())


def test_a_replica_is_up_when_a_kv_transfer_is_proven(peers: Peers, fast: None) -> None:
    assert passed(proof(peers), peers)


def test_it_waits_for_prefill_as_long_as_it_takes(fast: None, caplog: pytest.LogCaptureFixture) -> None:
    peers, asked = Peers(GENERATION), 0

    def appear() -> None:
        nonlocal asked
        asked += 1
        if asked == 20:
            peers.update([{"replica": "prefill-1", "generation": GENERATION, "ready": True}])

    assert passed(proof(peers), peers, appear=appear)
    assert asked >= 20


def test_what_it_waits_for_is_said(
    fast: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "SAY_EVERY_S", 0.05)
    caplog.set_level(logging.INFO)
    peers = Peers(GENERATION)
    with pytest.raises(TimeoutError):
        passed(proof(peers), peers, within_s=0.2)
    assert f"waiting for a prefill replica of generation {GENERATION}" in caplog.text


def test_prefill_of_another_generation_does_not_count(fast: None) -> None:
    peers = Peers(GENERATION)
    peers.update([{"replica": "prefill-1", "generation": "another", "ready": True}])
    own = Gate(proof(peers), peers, nobody)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(own.passed(was_proven=False), 0.2))
    assert own.stage == (
        f"waiting for a prefill replica of generation {GENERATION}; "
        f"prefill replica prefill-1 is of generation another, not {GENERATION}"
    )


def test_a_contradicted_transport_ends_the_start_with_the_verdict(peers: Peers, fast: None) -> None:
    with pytest.raises(RuntimeError, match="UCX was asked for, and LIBFABRIC") as ended:
        passed(proof(peers, WRONG), peers)
    assert "docs/proof.md#transport" in str(ended.value)
    assert "kv_transfer.allow_fallback: true" in str(ended.value)
    assert "`diptych verify --allow-fallback`" in str(ended.value)


def test_one_good_pair_is_enough_whichever_is_asked_first(fast: None) -> None:
    peers = prefill_peers("bad", "good")
    assert passed(proof(peers, WRONG, WRONG, GOOD), peers)


def test_a_bad_pair_ends_no_start_while_another_may_still_hold(fast: None) -> None:
    peers = prefill_peers("bad", "slow")
    # bad, slow, and both once more
    assert passed(proof(peers, WRONG, WRONG, LOST, WRONG, WRONG, GOOD), peers)


def test_kv_transfers_that_prove_nothing_are_counted_for_each_pair(fast: None) -> None:
    peers = prefill_peers("one", "two", "three")
    own = proof(peers, *[MUTE] * (2 * MOST_UNPROVEN), GOOD)
    assert passed(own, peers)


def test_pauses_grow_and_prefill_that_becomes_ready_anew_is_tried_at_once(
    fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "_LONGEST_PAUSE_S", 60.0)
    peers = prefill_peers("prefill-1")
    (peer,) = peers
    own = proof(peers, LOST)
    with pytest.raises(TimeoutError):
        passed(own, peers, within_s=0.4)
    assert 3 <= len(probed(own)) <= 7

    rounds = 0

    def come_back() -> None:
        nonlocal rounds
        rounds += 1
        peer.ready = not 10 <= rounds < 15

    monkeypatch.setattr(gates, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(gates._Tries, "take", lambda tries, _: setattr(tries, "next_at", float("inf")))
    own = proof(peers, LOST, GOOD)
    assert passed(own, peers, appear=come_back)
    assert len(probed(own)) == 2


def test_prefill_is_asked_for_while_a_pair_is_probed(peers: Peers, fast: None) -> None:
    own, asked, enough = proof(peers), 0, asyncio.Event()
    pair = own._probe.pair

    def ask() -> None:
        nonlocal asked
        asked += 1
        if asked == 5:
            enough.set()

    async def slow(name: str, wanted: Wanted) -> dict[str, Any]:
        await enough.wait()
        return await pair(name, wanted)

    own._probe.pair = slow  # type: ignore[method-assign]
    assert passed(own, peers, appear=ask)


def test_a_replica_that_comes_back_waits_longer_where_prefill_is_there(
    peers: Peers, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "PREFILL_WAIT_S", 0.02)
    assert passed(proof(peers, *[LOST] * 5, GOOD), peers, was_proven=True)
    monkeypatch.setattr(gates, "PROOF_WAIT_S", 0.1)
    assert not passed(proof(peers, LOST), peers, was_proven=True)


def test_kv_transfers_that_prove_nothing_end_it_after_some(peers: Peers, fast: None) -> None:
    own = proof(peers, MUTE)
    with pytest.raises(RuntimeError, match="is not proven"):
        passed(own, peers)
    assert len(probed(own)) == MOST_UNPROVEN


def test_a_kv_transfer_that_fails_is_tried_again(peers: Peers, fast: None) -> None:
    own = proof(peers, *[LOST] * (2 * MOST_UNPROVEN), GOOD)
    assert passed(own, peers)
    assert len(probed(own)) == 2 * MOST_UNPROVEN + 1


@pytest.mark.parametrize("look", [WRONG, MUTE])
def test_where_a_fallback_is_allowed_the_start_goes_on(peers: Peers, fast: None, look: str) -> None:
    assert passed(proof(peers, look, allow_fallback=True), peers)


def test_a_fallback_that_carries_nothing_is_none(peers: Peers, fast: None) -> None:
    with pytest.raises(TimeoutError):
        passed(proof(peers, LOST, allow_fallback=True), peers, within_s=0.2)


def test_a_replica_that_comes_back_without_prefill_serves_alone_soon(
    fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "PREFILL_WAIT_S", 0.1)
    peers = Peers(GENERATION)
    own = proof(peers)
    assert not passed(own, peers, was_proven=True)
    assert readiness_of(None, peers, Settings(), own).state == "degraded"


def test_a_replica_that_comes_back_with_prefill_is_proven_again(peers: Peers, fast: None) -> None:
    assert passed(proof(peers), peers, was_proven=True)


def test_one_that_comes_back_to_a_contradicted_transport_does_not_start(peers: Peers, fast: None) -> None:
    with pytest.raises(RuntimeError, match="was asked for"):
        passed(proof(peers, WRONG), peers, was_proven=True)


def test_an_engine_that_dies_meanwhile_ends_the_wait(peers: Peers, fast: None) -> None:
    def die() -> None:
        raise RuntimeError("engine process 7 is gone")

    with pytest.raises(RuntimeError, match="is gone"):
        passed(proof(peers, LOST), peers, appear=die)


# What is exported


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    own = CollectorRegistry()
    monkeypatch.setattr(metrics, "REGISTRY", own)
    monkeypatch.setattr(metrics, "_instruments", cache(metrics._instruments.__wrapped__))
    return own


def test_metrics_show_what_is_proven_of_the_pairs_that_are_there(registry: CollectorRegistry) -> None:
    peers = prefill_peers("prefill-1", "prefill-2")
    own = proof(peers, GOOD, LOST)
    asyncio.run(own.look("prefill-1"))
    asyncio.run(own.look("prefill-2"))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"diptych_{name}", labels)

    metrics.set_proofs(own.gauges(), contradicted=False, fallback=True)
    assert value("proof_ok", proof="transport", prefill_replica="prefill-1") == 1
    assert value("proof_ok", proof="kv_transfer", prefill_replica="prefill-2") == 0
    assert 0 <= (value("proof_age_seconds", prefill_replica="prefill-1") or 0) < 60
    assert (value("transport_contradicted"), value("transport_fallback")) == (0, 1)

    long_silent(peers)
    peers.update([{"replica": "prefill-1", "generation": GENERATION, "ready": True}])
    metrics.set_proofs(own.gauges(), contradicted=False, fallback=False)
    assert value("proof_ok", proof="transport", prefill_replica="prefill-1") == 1
    assert value("proof_ok", proof="transport", prefill_replica="prefill-2") is None


def test_metrics_show_every_proof_and_what_was_measured(registry: CollectorRegistry) -> None:
    holds = {"split": True, "answers": False, "idle": None}
    told = {
        "prefill-1": metrics.PairProofs(holds, 2.0, 3e9, 0.004, 0.8),
        "prefill-2": metrics.PairProofs({}, None),
    }
    metrics.set_proofs(told, contradicted=False, fallback=False)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"diptych_{name}", {"prefill_replica": "prefill-1", **labels})

    assert [value("proof_ok", proof=proof) for proof in ("split", "answers")] == [1, 0]
    assert math.isnan(value("proof_ok", proof="idle") or 0.0)
    assert value("proof_bytes_per_second") == 3e9
    assert value("proof_seconds_per_1000_tokens") == 0.004
    assert value("proof_speed_ratio") == 0.8
    assert math.isnan(value("proof_speed_ratio", prefill_replica="prefill-2") or 0.0)

    metrics.set_proofs({}, contradicted=False, fallback=False)
    assert value("proof_ok", proof="split") is value("proof_speed_ratio") is None
