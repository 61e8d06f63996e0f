"""Whether a decode replica can answer requests, and how well: what `/ready` says."""

import time
from dataclasses import dataclass
from typing import Any

from diptych.serving.peers import Peer, Peers
from diptych.serving.settings import Settings

READY, DEGRADED, STARTING, DOWN = "ready", "degraded", "starting", "down"
_MISSED_PERIODS = 3


@dataclass(frozen=True)
class Readiness:
    """The state in a word, why it is no better, and each pair's last KV transfers.

    Args:
        state: `ready`; `degraded` (answers, with prefill on decode); `starting` (no KV transfer has worked yet);
            `down` (the engine here is dead).
        why: what keeps it from `ready`.
        pairs: per prefill replica: its name, whether it is well, in our generation and trusted, and the seconds
            since a KV transfer from it worked and failed.
    """

    state: str
    why: str | None
    pairs: list[dict[str, Any]]

    @property
    def takes_requests(self) -> bool:
        """Whether requests should be sent here."""
        return self.state in (READY, DEGRADED)

    def to_json(self) -> dict[str, Any]:
        """As `/diptych/v1/status` shows it."""
        return {"state": self.state, "why": self.why, "pairs": self.pairs}


def readiness_of(engine_problem: str | None, peers: Peers | None, settings: Settings) -> Readiness:
    """The readiness of a replica.

    Args:
        engine_problem: why its engine counts as dead, or None.
        peers: the prefill replicas; None where one engine does both phases.
        settings: the orchestrator's.
    """
    pairs = [_pair(peer, peers.generation) for peer in peers] if peers else []
    if engine_problem:
        return Readiness(DOWN, engine_problem, pairs)
    if peers is None or settings.prefill == "never":
        return Readiness(READY, None, pairs)
    if any(_works(peer, settings) for peer in peers.ready):
        return Readiness(READY, None, pairs)
    if not peers.has_transferred:
        return Readiness(STARTING, "no KV transfer has worked yet", pairs)
    why = "KV transfers fail" if peers.ready else "no prefill replica is ready"
    return Readiness(DEGRADED, why, pairs)


def _works(peer: Peer, settings: Settings) -> bool:
    """Whether a KV transfer from it worked lately, and none failed since."""
    worked, failed = peer.transferred_at, peer.transfer_failed_at or 0.0
    if worked is None or failed > worked or peer.is_aside():
        return False
    period_s = settings.canary_period_s
    return not period_s or time.monotonic() - worked < period_s * _MISSED_PERIODS


def _pair(peer: Peer, generation: str) -> dict[str, Any]:
    return {
        "prefill_replica": peer.name,
        "ready": peer.ready,
        "same_generation": peer.generation == generation,
        "put_aside": peer.is_aside(),
        "worked_s_ago": _ago(peer.transferred_at),
        "failed_s_ago": _ago(peer.transfer_failed_at),
    }


def _ago(at: float | None) -> float | None:
    return None if at is None else round(time.monotonic() - at, 1)
