"""Larger pieces of an answer that streams faster than anybody reads.

What vLLM's front end makes of each output of an engine, an event in JSON, costs several times what the tokens in it
cost. It joins the outputs that nobody has taken yet. So of an engine that has the next one within `LEAST_GAP_S` outputs
are taken that far apart; nothing waits where an engine takes longer, and the first and the second output never do.
"""

import asyncio

from diptych.serving.writes import LEAST_GAP_S

_AT_ONCE_S = 0.001


class Pace:
    """Of one answer: `took` an output, then `rest` before the next one is asked for."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._taken_at = self._asked_at = self._clock()
        self._has_rested = self._is_fast = False

    def took(self) -> None:
        """Note that an output has come."""
        now = self._clock()
        was_there = self._has_rested and now - self._asked_at < _AT_ONCE_S
        self._is_fast = was_there or now - self._taken_at < LEAST_GAP_S
        self._taken_at = now

    async def rest(self) -> None:
        """Wait where the next output is about to come."""
        left_s = self._taken_at + LEAST_GAP_S - self._clock() if self._is_fast else 0.0
        self._has_rested = left_s > 0
        if self._has_rested:
            await asyncio.sleep(left_s)
        self._asked_at = self._clock()
