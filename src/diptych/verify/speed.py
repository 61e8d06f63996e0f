"""The proof of the speed: a KV transfer takes about as long as its link should need.

What a link should need is `OVERHEAD_MS` (posting, notification: what a transfer of no size takes) and its bytes over
the link's bandwidth: the instance type's where it is known, else that of a copy which the probe measured in the same
run on decode's node. The fastest of several transfers counts: a busy machine slows single ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diptych.serving.transport import Evidence
from diptych.verify.proof import FAILS, HOLDS, SKIPPED, WARNS, Proof, State, worst
from diptych.verify.transport import named

OVERHEAD_MS = 2.0
LEAST_BYTES = 10**6
"""What is smaller tells of the overhead, not of the link."""

WARN_BELOW = {"link": 0.5, "loopback copy": 0.2, "memory copy": 0.05}
FAIL_BELOW = {"link": 0.2, "loopback copy": 0.02, "memory copy": 0.005}
"""Shares of the expected speed. TCP beside EFA moves 0.3 GB/s: a tenth of the slowest link with EFA. A copy within this
machine says only in which order of magnitude a KV transfer within it should be."""

OTHERWISE = "A KV transfer that fell back to TCP moves about 0.3 GB/s, and its time to first token shows it."
_DO = "docs/proof.md#speed says what slows a link; `diptych verify` again on a quiet service tells whether it stays."


@dataclass(frozen=True)
class Speed:
    """One pair's fastest transfer of its largest prompts, and what to hold it against.

    Args:
        tokens, bytes, ms: of that transfer, as NIXL counted and timed it.
        against: a key of `WARN_BELOW`; None: nothing is known of the link.
        bandwidth: bytes per second of that.
    """

    tokens: int
    bytes: int
    ms: float
    against: str | None
    bandwidth: float

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes per second."""
        return self.bytes / self.ms / 1e6

    @property
    def ms_per_1000_tokens(self) -> float:
        """Milliseconds for 1000 tokens at this rate."""
        return self.ms * 1000 / self.tokens

    @property
    def expected_ms(self) -> float:
        """What the link should need."""
        return OVERHEAD_MS + self.bytes / self.bandwidth * 1e3

    @property
    def share(self) -> float:
        """Of the expected speed: 1 is as expected."""
        return self.expected_ms / self.ms

    @property
    def state(self) -> State:
        """Against the floors."""
        if self.against is None:
            return SKIPPED
        if self.share < FAIL_BELOW[self.against]:
            return FAILS
        # Where the overhead is most of what is expected, a few milliseconds more say nothing of the link.
        tells = self.expected_ms >= 2 * OVERHEAD_MS
        return WARNS if tells and self.share < WARN_BELOW[self.against] else HOLDS

    @property
    def words(self) -> str:
        """The speed, and of what share."""
        measured = (
            f"{self.gb_per_s:.2f} GB/s, {self.ms_per_1000_tokens:.1f} ms per 1000 tokens "
            f"({self.bytes / 1e6:.1f} MB in {self.ms:.1f} ms)"
        )
        if self.against is None:
            return measured
        what = f"{self.expected_ms:.1f} ms by the {self.against}'s {self.bandwidth / 1e9:.1f} GB/s"
        return f"{measured}; expected {what}"


def prove(told: Mapping[str, Any]) -> Proof:
    """Hold every pair's fastest transfer against its link.

    Args:
        told: the probe's answer.
    """
    measured = [(named(pair), speed) for pair in told["pairs"] if (speed := speed_of(told, pair))]
    if not measured:
        return Proof("speed", SKIPPED, "No KV transfer of a megabyte or more was timed.", otherwise=OTHERWISE)
    state = worst(speed.state for _, speed in measured)
    evidence = tuple(
        Evidence(
            "fastest KV transfer" + (f" {name}" if len(measured) > 1 else ""), speed.words, _verdict(speed)
        )
        for name, speed in measured
    )
    name, slowest = min(measured, key=lambda item: item[1].share if item[1].against else item[1].gb_per_s)
    of = "" if len(measured) == 1 else f" on the slowest pair, {name}"
    rate = f"{slowest.gb_per_s:.2f} GB/s, {slowest.ms_per_1000_tokens:.1f} ms per 1000 tokens{of}"
    if slowest.against is None:
        says = f"Nothing is known of the link's bandwidth; measured {rate}."
        return Proof("speed", SKIPPED, says, evidence, OTHERWISE)
    says = f"{rate}: {slowest.share:.0%} of what the {slowest.against} allows."
    if state == HOLDS:
        return Proof("speed", HOLDS, says, evidence, OTHERWISE)
    warn, fail = (floor[slowest.against] * 100 for floor in (WARN_BELOW, FAIL_BELOW))
    floors = f"It warns below {warn:g}% and fails below {fail:g}%."
    return Proof("speed", state, says, evidence, OTHERWISE, f"{floors} {_DO}")


def speed_of(told: Mapping[str, Any], pair: Mapping[str, Any]) -> Speed | None:
    """A pair's speed; None where no transfer that is large enough was timed."""
    timed = [
        one
        for one in pair.get("transfers") or ()
        if one.get("ok") and one.get("ms") and (one.get("bytes") or 0) >= LEAST_BYTES
    ]
    if not timed:
        return None
    largest = max(one["tokens"] for one in timed)
    best = min((one for one in timed if one["tokens"] == largest), key=lambda one: float(one["ms"]))
    against, bandwidth = _link(told, pair)
    return Speed(largest, int(best["bytes"]), float(best["ms"]), against, bandwidth)


def _link(told: Mapping[str, Any], pair: Mapping[str, Any]) -> tuple[str | None, float]:
    """What to hold a transfer against, and its bytes per second."""
    asked = (told.get("asked") or {}).get("bandwidth_bytes_per_s")
    if asked:
        return "link", float(asked)
    hosts = [((pair.get("after") or {}).get(side) or {}).get("host") for side in ("prefill", "decode")]
    if hosts[0] != hosts[1]:  # a copy within decode's node says nothing of the way to it
        return None, 0.0
    for against, name in (("loopback copy", "loopback_bytes_per_s"), ("memory copy", "memory_bytes_per_s")):
        if pair.get(name):
            return against, float(pair[name])
    return None, 0.0


def _verdict(speed: Speed) -> Any:
    return {HOLDS: "agrees", SKIPPED: "silent"}.get(speed.state, "contradicts")
