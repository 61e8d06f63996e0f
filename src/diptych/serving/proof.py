"""Proves each pair's transport over and over with light probes, and remembers what came out.

A replica is not ready before the first proof (`gate`), and not while a transport contradicts what was asked for
(`readiness`). One look can be wrong about counters that others move as well: a contradiction is looked at twice.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from diptych.serving.peers import Peer, Peers
from diptych.serving.probe import Probe, Wanted
from diptych.serving.transport import CONTRADICTED, NOT_ASKED, PROVEN, UNPROVEN, Verdict, judge

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 2.0
_WORST_FIRST = (CONTRADICTED, UNPROVEN, PROVEN, NOT_ASKED)


@dataclass(frozen=True)
class Judged:
    """What came of one pair's newest probe.

    Args:
        verdict: on its transport.
        carried: whether its KV transfers arrived.
        at: when, on `time.monotonic`'s clock.
        held_at: when it last held; None: never.
    """

    verdict: Verdict
    carried: bool
    at: float
    held_at: float | None

    @property
    def is_contradicted(self) -> bool:
        return self.verdict.state == CONTRADICTED

    @property
    def holds(self) -> bool:
        """Whether the KV cache crosses on what was asked for."""
        return _holds(self.verdict, self.carried)

    def to_json(self) -> dict[str, Any]:
        """As status shows it, of a pair."""
        return {"state": self.verdict.state, "in_use": self.verdict.in_use, "says": self.verdict.says}


class Proof:
    """Of one decode replica's pairs.

    Args:
        probe: makes the KV transfers.
        peers: the prefill replicas.
        asked: what was asked for (`asked.asked_of`).
        tokens: of a light probe's prompt.
        period_s: seconds between two proofs of a pair; 0: only the first.
        carried_nothing: whether a pair is to be tried anyway, because it carried nothing lately.
    """

    def __init__(
        self,
        probe: Probe,
        peers: Peers,
        asked: Mapping[str, Any],
        *,
        tokens: int,
        period_s: float,
        carried_nothing: Callable[[Peer], bool],
    ) -> None:
        self.asked = asked
        self._probe = probe
        self._peers = peers
        self._light = Wanted((tokens,))
        self._period_s = period_s
        self._carried_nothing = carried_nothing
        self._judged: dict[str, Judged] = {}

    @property
    def allows_fallback(self) -> bool:
        """Whether the service may be ready on another transport than was asked for."""
        return bool(self.asked.get("allow_fallback"))

    async def look(self, name: str) -> Judged:
        """Probe and judge one pair."""
        judged = await self._look_once(name)
        if judged.is_contradicted:
            judged = await self._look_once(name)
        if not judged.holds:
            logger.warning("The pair with %s: %s", name, judged.verdict.says)
        self._judged[name] = judged
        return judged

    async def _look_once(self, name: str) -> Judged:
        pair = await self._probe.pair(name, self._light)
        verdict, now = judge(self.asked, pair), time.monotonic()
        carried = all(transfer["ok"] for transfer in pair["transfers"])
        before = self._judged.get(name)
        held_at = now if _holds(verdict, carried) else before.held_at if before else None
        return Judged(verdict, carried, now, held_at)

    async def watch(self) -> None:
        """Look at each pair for ever, and at what carried nothing lately."""
        while self._period_s:
            for peer in self._peers.ready:
                if self._is_due(peer):
                    try:
                        await self.look(peer.name)
                    except Exception:
                        logger.exception("The pair with %s could not be probed", peer.name)
            await asyncio.sleep(_LOOK_EVERY_S)

    def _is_due(self, peer: Peer) -> bool:
        if peer.is_aside():
            return False
        judged = self._judged.get(peer.name)
        is_old = judged is None or time.monotonic() - judged.at > self._period_s
        return is_old or self._carried_nothing(peer)

    def of(self, name: str) -> Judged | None:
        """What came of a pair's newest probe; None before."""
        return self._judged.get(name)

    @property
    def _current(self) -> list[Judged]:
        """Of the pairs that are there: one that is gone contradicts nothing."""
        found = (self._judged.get(peer.name) for peer in self._peers.ready)
        return [judged for judged in found if judged is not None]

    @property
    def contradiction(self) -> str | None:
        """What a transport in use contradicts, in a sentence; None where none does, or one may."""
        if self.allows_fallback:
            return None
        return next((judged.verdict.says for judged in self._current if judged.is_contradicted), None)

    @property
    def fallback(self) -> str | None:
        """What is in use instead of what was asked for, in a sentence, where that is allowed; None: nothing is."""
        if not self.allows_fallback:
            return None
        failed = (each for each in self._current if each.verdict.state in (CONTRADICTED, UNPROVEN))
        return next((each.verdict.says for each in failed), None)

    def to_json(self) -> dict[str, Any]:
        """As status shows it: the worst of the pairs, what was asked for, and what is in use instead."""
        order = _WORST_FIRST.index
        worst = min(self._current, key=lambda each: order(each.verdict.state), default=None)
        told = (
            worst.to_json()
            if worst
            else {"state": UNPROVEN, "in_use": None, "says": "No pair is proven yet."}
        )
        asked = {name: self.asked.get(name) for name in ("backend", "provider", "allow_fallback")}
        return {**told, "asked": asked, "fallback": self.fallback}

    def gauges(self) -> dict[str, tuple[bool, bool, float | None]]:
        """By prefill replica: whether transport and KV transfer hold, and the seconds since both last did.

        Pairs that are gone are forgotten.
        """
        there, now = {peer.name for peer in self._peers}, time.monotonic()
        for name in [name for name in self._judged if name not in there]:
            del self._judged[name]
        return {
            name: (
                judged.verdict.state in (PROVEN, NOT_ASKED),
                judged.carried,
                None if judged.held_at is None else now - judged.held_at,
            )
            for name, judged in self._judged.items()
        }


def _holds(verdict: Verdict, carried: bool) -> bool:
    return carried and verdict.state in (PROVEN, NOT_ASKED)
