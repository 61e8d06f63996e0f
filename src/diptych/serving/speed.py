"""How fast a pair's KV transfers are, and how fast its link should carry them.

What a link should need is `OVERHEAD_MS` (posting, notification: what a transfer of no size takes) and its bytes over
the link's bandwidth: the instance type's where it is known, else that of a copy which the probe measured in the same
run on decode's node. Over TCP a replica has at least a flow for each of its workers, and no more than these flows may
take of the instance type's. The fastest of several transfers counts: a busy machine slows single ones.

Standard library only: `diptych verify` imports this module as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diptych.serving.evidence import SIDES
from diptych.serving.outcome import FAILS, HOLDS, SKIPPED, WARNS, State
from diptych.serving.traffic import look, workers

OVERHEAD_MS = 2.0
LEAST_BYTES = 10**6
"""What is smaller tells of the overhead, not of the link."""

TCP_LINK = "TCP link"
WARN_BELOW = {"link": 0.5, TCP_LINK: 0.4, "loopback copy": 0.2, "memory copy": 0.05}
FAIL_BELOW = {"link": 0.2, TCP_LINK: 0.1, "loopback copy": 0.02, "memory copy": 0.005}
"""Shares of the expected speed. TCP beside EFA moves 0.3 GB/s: a tenth of the slowest link with EFA, and half of the
0.6 GB/s that EC2 gives a TCP flow, so that where TCP was asked for this is as it should be. A copy within this machine
says only in which order of magnitude a KV transfer within it should be."""


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
    def bytes_per_s(self) -> float:
        return self.bytes / self.ms * 1e3

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes per second."""
        return self.bytes_per_s / 1e9

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


def speed_of(asked: Mapping[str, Any], pair: Mapping[str, Any]) -> Speed | None:
    """A pair's speed; None where no transfer that is large enough was timed.

    Args:
        asked: `asked` of the probe's answer.
        pair: one of its `pairs`.
    """
    timed = [
        one
        for one in pair.get("transfers") or ()
        if one.get("ok") and one.get("ms") and (one.get("bytes") or 0) >= LEAST_BYTES
    ]
    if not timed:
        return None
    largest = max(one["tokens"] for one in timed)
    best = min((one for one in timed if one["tokens"] == largest), key=lambda one: float(one["ms"]))
    against, bandwidth = _link(asked, pair)
    return Speed(largest, int(best["bytes"]), float(best["ms"]), against, bandwidth)


def _link(asked: Mapping[str, Any], pair: Mapping[str, Any]) -> tuple[str | None, float]:
    """What to hold a transfer against, and its bytes per second."""
    bandwidth, flow = (asked.get(f"{name}_bytes_per_s") for name in ("bandwidth", "flow"))
    if bandwidth and flow:
        return TCP_LINK, min(float(bandwidth), flow * _flows(pair))
    if bandwidth:
        return "link", float(bandwidth)
    hosts = [look(pair, "after", side).get("host") for side in SIDES]
    if hosts[0] != hosts[1]:  # a copy within decode's node says nothing of the way to it
        return None, 0.0
    for against, name in (("loopback copy", "loopback_bytes_per_s"), ("memory copy", "memory_bytes_per_s")):
        if pair.get(name):
            return against, float(pair[name])
    return None, 0.0


def _flows(pair: Mapping[str, Any]) -> int:
    """TCP flows that carry a KV transfer, at least: each worker of the side with fewer has one of its own."""
    return max(1, min(len(workers(pair, "after", side)) for side in SIDES))
