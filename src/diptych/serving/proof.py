"""Proves each pair over and over with light probes, and remembers what came out.

Its transport decides: a replica is not ready before the first proof (`gate`). A pair whose transport contradicts what
was asked for gets no more prompts while another pair holds; with none left the replica is not ready (`readiness`), and
takes none (`withholding`). One look can be wrong about counters that others move as well: a contradiction is looked at
twice.

The split, the speed, the answers and what is left behind are looked at as well (`light`, `beside`), and told.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from diptych.serving.beside import Beside
from diptych.serving.light import UNMADE, Outcome, speed_as, split_of
from diptych.serving.metrics import PairProofs
from diptych.serving.peers import Peer, Peers
from diptych.serving.probe import Probe, Wanted
from diptych.serving.speed import Speed, speed_of
from diptych.serving.transport import CONTRADICTED, NOT_ASKED, PROVEN, UNPROVEN, Verdict, judge

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 2.0
_ASIDE_S = 600.0
"""So long a contradicted pair gets no prompts; a look at it that holds ends that, one that does not begins it anew."""
WORST_FIRST = (CONTRADICTED, UNPROVEN, PROVEN, NOT_ASKED)


@dataclass(frozen=True)
class Judged:
    """What came of one pair's newest probe.

    Args:
        verdict: on its transport.
        carried: whether its KV transfers arrived.
        at: when, on `time.monotonic`'s clock.
        held_at: when it last held; None: never.
        before: both sides' signals from before its prompts.
        speed: of its KV transfer; None: that was not timed.
        light: what its other proofs came to: of the split, and of the speed.
    """

    verdict: Verdict
    carried: bool
    at: float
    held_at: float | None
    before: Mapping[str, Any]
    speed: Speed | None
    light: Mapping[str, Outcome]

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
        beside: makes the proofs for which a probe is not enough; None: nobody does.
        recurrent: whether the model keeps recurrent state.
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
        beside: Beside | None = None,
        recurrent: bool = False,
    ) -> None:
        self.asked = asked
        self._probe = probe
        self._peers = peers
        self._light = Wanted((tokens,), priority=0)  # a start must not wait until no client asks
        self._period_s = period_s
        self._carried_nothing = carried_nothing
        self._beside = beside
        self._recurrent = recurrent
        self._judged: dict[str, Judged] = {}
        self._outcomes: dict[str, dict[str, Outcome]] = {}

    @property
    def allows_fallback(self) -> bool:
        """Whether the service may be ready on another transport than was asked for."""
        return bool(self.asked.get("allow_fallback"))

    async def look(self, name: str) -> Judged:
        """Probe and judge one pair."""
        began, before = time.monotonic(), self._judged.get(name)
        judged = await self._look_once(name)
        if judged.is_contradicted:
            judged = await self._look_once(name)
        if before and before.holds and not judged.carried and self._carries(name, began):
            # our own prompt came behind those of clients
            judged = replace(before, at=judged.at, before=judged.before)
        if not judged.holds:
            logger.warning("The pair with %s: %s", name, judged.verdict.says)
        self._judged[name] = judged
        self._note(name, judged.light)
        self._set_aside()
        return judged

    def _note(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        """Remember what light proofs came to; one that held no more before is said once."""
        known = self._outcomes.setdefault(name, {})
        for proof, outcome in outcomes.items():
            if outcome.holds is False and known.get(proof, UNMADE).holds is not False:
                logger.warning("The pair with %s: %s does not hold: %s", name, proof, outcome.says)
            known[proof] = outcome

    def _carries(self, name: str, since: float) -> bool:
        """Whether a KV transfer of that pair worked since, and none failed."""
        peer = self._peers.get(name)
        worked, failed = (peer.transferred_at, peer.transfer_failed_at) if peer else (None, None)
        return worked is not None and worked > since and (failed or 0.0) < since

    def _set_aside(self) -> None:
        """Give no more prompts to pairs that are contradicted, while another one holds."""
        if self.allows_fallback or not any(judged.holds for judged in self._current):
            return
        for peer in self._peers.ready:
            judged = self._judged.get(peer.name)
            if judged and judged.is_contradicted and not peer.is_aside():
                peer.failed(time.monotonic() + _ASIDE_S)

    async def _look_once(self, name: str) -> Judged:
        pair = await self._probe.pair(name, self._light)
        verdict, now = judge(self.asked, pair), time.monotonic()
        carried = all(transfer["ok"] for transfer in pair["transfers"])
        before = self._judged.get(name)
        held_at = now if _holds(verdict, carried) else before.held_at if before else None
        speed = speed_of(self.asked, pair)
        light = {"split": split_of(pair, recurrent=self._recurrent), "speed": speed_as(speed, pair)}
        return Judged(verdict, carried, now, held_at, pair["before"], speed, light)

    async def watch(self) -> None:
        """Look at each pair for ever, and at what carried nothing lately."""
        while self._period_s:
            for peer in self._peers.ready:
                if self._is_due(peer):
                    try:
                        await self._round(peer.name)
                    except Exception:
                        logger.exception("The pair with %s could not be probed", peer.name)
            self._set_aside()  # a prompt that was on its way may have ended it
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _round(self, name: str) -> None:
        """Look at one pair, and at what its probe does not tell."""
        if self._beside is None:
            await self.look(name)
            return
        sent = self._beside.sent(name)
        judged = await self.look(name)
        self._note(name, await self._beside.look(name, judged.before, sent, carries=judged.carried))

    def _is_due(self, peer: Peer) -> bool:
        judged = self._judged.get(peer.name)
        if peer.is_aside() and not (judged and judged.is_contradicted):
            return False
        is_old = judged is None or time.monotonic() - judged.at > self._period_s
        return is_old or (not peer.is_aside() and self._carried_nothing(peer))

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
        """What the transport in use contradicts, in a sentence; None where it does not, may, or another pair holds."""
        if self.allows_fallback or any(judged.holds for judged in self._current):
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
        order = WORST_FIRST.index
        worst = min(self._current, key=lambda each: order(each.verdict.state), default=None)
        told = (
            worst.to_json()
            if worst
            else {"state": UNPROVEN, "in_use": None, "says": "No pair is proven yet."}
        )
        asked = {name: self.asked.get(name) for name in ("backend", "provider", "allow_fallback")}
        return {**told, "asked": asked, "fallback": self.fallback}

    def gauges(self) -> dict[str, PairProofs]:
        """What metrics show, by prefill replica. Pairs that are gone are forgotten."""
        there = {peer.name for peer in self._peers}
        for name in {*self._judged, *self._outcomes} - there:  # one that goes in its round has outcomes alone
            self._judged.pop(name, None)
            self._outcomes.pop(name, None)
            if self._beside:
                self._beside.forget(name)
        return {name: self._gauges(name, judged) for name, judged in self._judged.items()}

    def _gauges(self, name: str, judged: Judged) -> PairProofs:
        outcomes = {proof: outcome.holds for proof, outcome in self._outcomes.get(name, {}).items()}
        transport = judged.verdict.state in (PROVEN, NOT_ASKED)
        speed = judged.speed
        return PairProofs(
            holds={"transport": transport, "kv_transfer": judged.carried, **outcomes},
            age_s=None if judged.held_at is None else time.monotonic() - judged.held_at,
            bytes_per_s=speed.bytes_per_s if speed else None,
            seconds_per_1000_tokens=speed.ms_per_1000_tokens / 1e3 if speed else None,
            speed_ratio=speed.share if speed and speed.against else None,
        )


def _holds(verdict: Verdict, carried: bool) -> bool:
    return carried and verdict.state in (PROVEN, NOT_ASKED)
