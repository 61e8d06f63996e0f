"""What prefill costs, here and elsewhere, as measured: by requests themselves, from the start-up's own on.

Each cost is a straight line over tokens, a fixed part and a part per token, fitted to the newest measurements by
least squares in which older ones count less and less.
"""

import time
from dataclasses import dataclass, field
from math import inf

_FADES = 0.95
"""How much a measurement still counts when the next one has come."""
_MOST_TIMES = 4.0
"""How many times what was expected a measurement may count for: one stall is no new price."""
_TRUSTED_FROM = 3
_STALE_AFTER_S = 10.0
_LONGEST_BREAK_EVEN = 1 << 20


@dataclass
class Line:
    """Seconds over tokens; unknown before the first measurement."""

    measured_at: float = -inf
    _count: int = 0
    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Take one measurement in."""
        if tokens <= 0 or seconds < 0:
            return
        expected = self.at(tokens)
        if expected and self._count >= _TRUSTED_FROM:
            seconds = min(seconds, _MOST_TIMES * expected)
        self.measured_at = time.monotonic()
        self._count += 1
        for name, value in (
            ("_weight", 1.0),
            ("_x", tokens),
            ("_y", seconds),
            ("_xx", tokens * tokens),
            ("_xy", tokens * seconds),
        ):
            setattr(self, name, getattr(self, name) * _FADES + value)

    def at(self, tokens: int) -> float | None:
        """The seconds that so many tokens take; None before the first measurement."""
        if not self._weight:
            return None
        fixed, each = self._parts()
        return fixed + each * tokens

    def is_stale(self, now: float | None = None) -> bool:
        """Whether it was not measured lately."""
        return (time.monotonic() if now is None else now) - self.measured_at > _STALE_AFTER_S

    def _parts(self) -> tuple[float, float]:
        """Seconds in any case, and per token; neither is below zero. Sizes that hardly differ tell no fixed part."""
        spread = self._weight * self._xx - self._x * self._x
        proportional = self._y / self._x
        if spread <= 1e-3 * self._x * self._x:
            return 0.0, proportional
        each = (self._weight * self._xy - self._x * self._y) / spread
        fixed = (self._y - each * self._x) / self._weight
        if each < 0:
            return self._y / self._weight, 0.0
        return (fixed, each) if fixed >= 0 else (0.0, proportional)


@dataclass
class Costs:
    """What a decode replica knows.

    Args:
        here: prefill on this replica, over uncached tokens.
        prefill: prefill on a prefill replica, over the tokens it computes.
        way: what going to a prefill replica adds to that, over the prompt's tokens: the call, the KV transfer, and
            the step of decode that fetches it.
    """

    here: Line = field(default_factory=Line)
    prefill: Line = field(default_factory=Line)
    way: Line = field(default_factory=Line)

    def break_even_tokens(self) -> int | None:
        """From how many uncached tokens on prefill elsewhere costs less, when nothing runs here; None: unknown."""
        low, high = 1, _LONGEST_BREAK_EVEN
        if self.here.at(low) is None or self.way.at(low) is None:
            return None
        while low < high:
            middle = (low + high) // 2
            if (self.here.at(middle) or 0.0) < (self.way.at(middle) or 0.0):
                low = middle + 1
            else:
                high = middle
        return low
