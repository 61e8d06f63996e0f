"""Whether a decode replica can answer requests, and how well; and all of them together: what `/ready` says."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diptych.serving.peers import Peer, Peers
from diptych.serving.proof import WORST_FIRST, Proof
from diptych.serving.settings import Settings

READY, DEGRADED, STARTING, DOWN, CONTRADICTED = "ready", "degraded", "starting", "down", "contradicted"
REFUSING = (CONTRADICTED, DOWN)
"""The states in which prompts are refused."""
_NO_GOOD = (CONTRADICTED, STARTING, DOWN)
_MISSED_PERIODS = 3


@dataclass(frozen=True)
class Readiness:
    """The state in a word, why it is no better, and each pair's last KV transfers.

    Args:
        state: `ready`; `degraded` (answers, with prefill on decode); `starting` (no KV transfer has worked yet);
            `contradicted` (the KV cache goes another way than was asked for), `down` (the engine here is dead).
        why: what keeps it from `ready`.
        pairs: per prefill replica: its name, whether it is well, in our generation and trusted, and the seconds
            since a KV transfer from it worked and failed, and the verdict on its transport.
        transport: the worst of these verdicts, what was asked for, and what is in use instead where that is allowed;
            None where one engine does both phases.
    """

    state: str
    why: str | None
    pairs: list[dict[str, Any]]
    transport: dict[str, Any] | None = None

    @property
    def takes_requests(self) -> bool:
        """Whether requests should be sent here."""
        return self.state in (READY, DEGRADED)

    @property
    def refuses(self) -> bool:
        """Whether prompts that come here are refused."""
        return self.state in REFUSING

    def to_json(self) -> dict[str, Any]:
        """As `/diptych/v1/status` shows it."""
        told = {"state": self.state, "why": self.why, "pairs": self.pairs}
        return told if self.transport is None else told | {"transport": self.transport}


def readiness_of(
    engine_problem: str | None, peers: Peers | None, settings: Settings, proof: Proof | None = None
) -> Readiness:
    """The readiness of a replica.

    Args:
        engine_problem: why its engine counts as dead, or None.
        peers: the prefill replicas; None where one engine does both phases.
        settings: the orchestrator's.
        proof: of its pairs; None: there is none.
    """
    pairs = [_pair(peer, peers.generation, proof) for peer in peers] if peers else []
    state, why = _state(engine_problem, peers, settings, proof)
    return Readiness(state, why, pairs, proof.to_json() if proof else None)


def together(told: Sequence[Mapping[str, Any]]) -> Readiness:
    """The readiness of a service: `degraded` where some of its replicas take requests and others don't.

    Args:
        told: by each replica that faces clients: `Readiness.to_json()`, and its name as `replica`. At least one.
    """
    state, why = _state_together(told)
    pairs = [{"decode_replica": one["replica"], **pair} for one in told for pair in one["pairs"]]
    return Readiness(state, why, pairs, _transport_together(told))


def _state_together(told: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    states = {one["state"] for one in told}
    if states == {READY}:
        return READY, None
    some_take = states & {READY, DEGRADED}
    state = DEGRADED if some_take else next(each for each in _NO_GOOD if each in states)
    whys = {one["replica"]: one["why"] for one in told if one["why"]}
    if len(whys) == len(told) and len(set(whys.values())) == 1:
        return state, next(iter(whys.values()))
    return state, "; ".join(f"replica {name}: {why}" for name, why in whys.items())


def _transport_together(told: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    found = [one["transport"] for one in told if one.get("transport")]
    if not found:
        return None
    worst = min(found, key=lambda each: WORST_FIRST.index(each["state"]))
    return {**worst, "fallback": next((each["fallback"] for each in found if each["fallback"]), None)}


def _state(
    engine_problem: str | None, peers: Peers | None, settings: Settings, proof: Proof | None
) -> tuple[str, str | None]:
    if engine_problem:
        return DOWN, engine_problem
    if peers is None or settings.prefill == "never":
        return READY, None
    if proof and proof.contradiction:
        return CONTRADICTED, proof.contradiction
    if any(_works(peer, settings) for peer in peers.ready):
        return READY, None
    if not peers.has_transferred:
        return STARTING, "no KV transfer has worked yet"
    return DEGRADED, "KV transfers fail" if peers.ready else "no prefill replica is ready"


def _works(peer: Peer, settings: Settings) -> bool:
    """Whether a KV transfer from it worked lately, and none failed since."""
    worked, failed = peer.transferred_at, peer.transfer_failed_at or 0.0
    if worked is None or failed > worked or peer.is_aside():
        return False
    period_s = settings.canary_period_s
    return not period_s or time.monotonic() - worked < period_s * _MISSED_PERIODS


def _pair(peer: Peer, generation: str, proof: Proof | None) -> dict[str, Any]:
    judged = proof.of(peer.name) if proof else None
    told = {
        "prefill_replica": peer.name,
        "ready": peer.ready,
        "same_generation": peer.generation == generation,
        "put_aside": peer.is_aside(),
        "worked_s_ago": _ago(peer.transferred_at),
        "failed_s_ago": _ago(peer.transfer_failed_at),
    }
    return told if judged is None else told | {"transport": judged.to_json()}


def _ago(at: float | None) -> float | None:
    return None if at is None else round(time.monotonic() - at, 1)
