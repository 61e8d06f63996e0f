"""The light proofs of answers and idleness, for which more is asked of a pair than its probe tells."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from diptych.serving.canary import Canary
from diptych.serving.comparison import Difference
from diptych.serving.idle import Idle
from diptych.serving.light import Outcome
from diptych.serving.probe import Probe

SETTLED_WITHIN_S = 5.0
ANSWERS_EVERY_S = 600.0
"""From answers that held to the next: decode computes a prompt for them, for which its streams wait."""
_POLL_S = 0.25
_NOT_BOTH_WAYS = "a prompt was not answered both ways"


class Beside:
    """Of one decode replica's pairs.

    Args:
        probe: of its pairs.
        canary: sends its prompts.
    """

    def __init__(self, probe: Probe, canary: Canary) -> None:
        self._probe = probe
        self._canary = canary
        self._idle: dict[str, Idle] = {}
        self._answers_held_at: dict[str, float] = {}

    def sent(self, name: str) -> dict[str, int]:
        """By side, the prompts of our own that the engines of a pair got so far."""
        return {"prefill": self._canary.sent[name], "decode": self._canary.sent.total()}

    async def look(
        self, name: str, before: Mapping[str, Any], sent_before: Mapping[str, int], *, carries: bool
    ) -> dict[str, Outcome]:
        """What `idle` comes to, and `answers` where they are due.

        Args:
            name: of the pair's prefill replica.
            before: both sides' signals from before the prompts that were sent last.
            sent_before: `sent` from then.
            carries: whether a KV transfer arrived. Where none did there are no two ways, and nobody to wait for.
        """
        if not carries:
            self._answers_held_at.pop(name, None)
            return dict.fromkeys(("answers", "idle"), Outcome(None, "no KV transfer arrived"))
        idle = self._idle.setdefault(name, Idle())
        found = {"answers": await self._answers(name)} if self._are_answers_due(name) else {}
        deadline = time.monotonic() + SETTLED_WITHIN_S
        while True:
            now = await self._probe.look(name)
            if idle.is_settled(before, now) or time.monotonic() > deadline:
                break
            await asyncio.sleep(_POLL_S)
        sent = self.sent(name)
        own = {side: count - sent_before[side] for side, count in sent.items()}
        return {**found, "idle": idle.judge(before, now, own, sent)}

    def forget(self, name: str) -> None:
        """Forget a pair that is gone."""
        self._idle.pop(name, None)
        self._answers_held_at.pop(name, None)

    def _are_answers_due(self, name: str) -> bool:
        held_at = self._answers_held_at.get(name)
        return held_at is None or time.monotonic() - held_at >= ANSWERS_EVERY_S

    async def _answers(self, name: str) -> Outcome:
        """Two prompts have to be answered differently for that to count."""
        difference = await self._both_ways(name)
        if difference is not None and not difference.is_right:
            difference = await self._both_ways(name)
        self._answers_held_at.pop(name, None)
        if difference is None:
            return Outcome(None, _NOT_BOTH_WAYS)
        if difference.is_right:
            self._answers_held_at[name] = time.monotonic()
        return Outcome(difference.is_right, difference.text)

    async def _both_ways(self, name: str) -> Difference | None:
        async with self._probe.turn:
            return await self._canary.both_ways(name)
