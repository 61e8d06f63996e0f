"""What prompts leave behind in a pair's engines: KV cache that stays, expired leases, failed KV transfers.

The lowest use of a KV cache that was ever seen of an engine holds for good, so that a slow leak shows. What is found
beside other requests may be theirs, and is not judged.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from diptych.serving.evidence import SIDES
from diptych.serving.light import Outcome, unless_others

_ROUNDING = 1e-6
_COUNTED = (
    ("kv_transfers_failed", "KV transfers failed"),
    ("kv_leases_expired", "leases expired"),
)
Sides = Mapping[str, Mapping[str, Any]]
"""Signals by side, as a pair of the probe has them in `before` and `after`."""
Sent = Mapping[str, int]
"""By side, the prompts of our own that its engine got so far."""


@dataclass(frozen=True)
class _Seen:
    """An engine as it was seen last.

    Args:
        pid: of its process; another one is another engine.
        least: the lowest use of its KV cache, from 0 to 1.
        counters: as its signals told them.
        sent: prompts of our own that it had got.
    """

    pid: int
    least: float
    counters: Mapping[str, float]
    sent: int


class Idle:
    """Remembers the engines of one pair, by side, and holds them against what they were."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def is_settled(self, before: Sides, now: Sides) -> bool:
        """Whether there is nothing to wait for: a KV cache is as empty as it was a moment after a prompt's end, or
        others' requests use it."""
        return not any(
            _is_same(before, now, side)
            and _used(now[side]) > self._least(side, before[side]) + _ROUNDING
            and not _inside(now, side)
            for side in SIDES
        )

    def judge(self, before: Sides, now: Sides, own: Sent, sent: Sent) -> Outcome:
        """What is left behind.

        Args:
            before: from before prompts of our own were sent, through this pair.
            now: from some time after.
            own: how many that were.
            sent: how many there ever were.
        """
        found: list[Outcome] = []
        for side in SIDES:
            if not _is_same(before, now, side):
                found.append(Outcome(None, f"the engine of {side} is another one, or did not tell"))
                continue
            found += self._left(side, before, now, own[side], sent[side])
            least = min(self._least(side, before[side]), _used(now[side]))
            self._seen[side] = _Seen(now[side]["engine_pid"], least, now[side]["counters"], sent[side])
        bad = next((each for each in found if each.holds is False), None)
        return bad or next((each for each in found if each.holds is None), Outcome(True, "nothing is left"))

    def _left(self, side: str, before: Sides, now: Sides, own: int, sent: int) -> Iterator[Outcome]:
        name, counters, inside = f"{side} {now[side]['replica']}", now[side]["counters"], _inside(now, side)
        least, used = self._least(side, before[side]), _used(now[side])
        if used > least + _ROUNDING:
            others = inside + _finished(before[side]["counters"], counters, own)
            yield unless_others(
                others, f"KV cache in use on {name}: {used:.2%}, {least:.2%} when nothing ran"
            )
        seen = self._of(side, now[side])
        if seen is None:
            return
        others = inside + _finished(seen.counters, counters, sent - seen.sent)
        for counter, words in _COUNTED:
            grown = _grown(seen.counters, counters, counter)
            if grown > 0:
                yield unless_others(others, f"{words} on {name} since the last look: {grown:.0f}")

    def _of(self, side: str, signals: Mapping[str, Any]) -> _Seen | None:
        """The same engine, as it was seen last."""
        seen = self._seen.get(side)
        return seen if seen and seen.pid == signals["engine_pid"] else None

    def _least(self, side: str, before: Mapping[str, Any]) -> float:
        seen = self._of(side, before)
        return min(_used(before), seen.least) if seen else _used(before)


def _is_same(before: Sides, now: Sides, side: str) -> bool:
    """Whether both looks are at one engine, and told of it."""
    first, last = before[side], now[side]
    same = first.get("engine_pid") is not None and first.get("engine_pid") == last.get("engine_pid")
    return same and bool(first.get("counters")) and bool(last.get("counters"))


def _finished(first: Mapping[str, float], last: Mapping[str, float], own: int) -> int:
    """Requests that finished between two looks, and were not ours."""
    return int(max(0.0, _grown(first, last, "requests_finished") - own))


def _inside(now: Sides, side: str) -> int:
    """Requests that may use a side's KV cache: those in its engine; for prefill those in decode's, too, for which it
    keeps KV cache until they have room there."""
    return max(
        int(sum(now[each]["counters"].get(f"requests_{what}") or 0.0 for what in ("running", "waiting")))
        for each in {side, "decode"}
    )


def _grown(first: Mapping[str, float], last: Mapping[str, float], counter: str) -> float:
    return (last.get(counter) or 0.0) - (first.get(counter) or 0.0)


def _used(signals: Mapping[str, Any]) -> float:
    return float(signals["counters"].get("kv_cache_usage") or 0.0)
