"""The proof of the speed: a KV transfer takes about as long as its link should need (`diptych.serving.speed`)."""

from collections.abc import Mapping
from typing import Any

from diptych.serving.speed import FAIL_BELOW, TCP_LINK, WARN_BELOW, Speed, speed_of
from diptych.serving.transport import Evidence
from diptych.verify.proof import FAILS, HOLDS, SKIPPED, WARNS, Proof, worst
from diptych.verify.transport import named

OTHERWISE = "A KV transfer that fell back to TCP moves about 0.3 GB/s, and its time to first token shows it."
_OTHERWISE_OVER_TCP = (
    "EC2 gives a TCP flow 5 Gbps (0.6 GB/s), of which KV transfers are known to reach half. Far less comes of a path "
    "that others fill, or of nodes whose processors have other work."
)
_DO = "docs/proof.md#speed says what slows a link; `diptych verify` again on a quiet service tells whether it stays."


def prove(told: Mapping[str, Any]) -> Proof:
    """Hold every pair's fastest transfer against its link.

    Args:
        told: the probe's answer.
    """
    asked = told.get("asked") or {}
    measured = [(named(pair), speed) for pair in told["pairs"] if (speed := speed_of(asked, pair))]
    if not measured:
        return Proof("speed", SKIPPED, "No KV transfer of a megabyte or more was timed.", otherwise=OTHERWISE)
    state = worst(speed.state for _, speed in measured)
    if state == FAILS and asked.get("rdma_counters") is False:
        state = WARNS  # bytes are copied through the host there, by how much is no fault of the link's
    evidence = tuple(
        Evidence(
            "fastest KV transfer" + (f" {name}" if len(measured) > 1 else ""), speed.words, _verdict(speed)
        )
        for name, speed in measured
    )
    over_tcp = any(speed.against == TCP_LINK for _, speed in measured)
    otherwise = _OTHERWISE_OVER_TCP if over_tcp else OTHERWISE
    name, slowest = min(measured, key=lambda item: item[1].share if item[1].against else item[1].gb_per_s)
    of = "" if len(measured) == 1 else f" on the slowest pair, {name}"
    rate = f"{slowest.gb_per_s:.2f} GB/s, {slowest.ms_per_1000_tokens:.1f} ms per 1000 tokens{of}"
    if slowest.against is None:
        says = f"Nothing is known of the link's bandwidth; measured {rate}."
        return Proof("speed", SKIPPED, says, evidence, otherwise)
    says = f"{rate}: {slowest.share:.0%} of what the {slowest.against} allows."
    if state == HOLDS:
        return Proof("speed", HOLDS, says, evidence, otherwise)
    warn, fail = (floor[slowest.against] * 100 for floor in (WARN_BELOW, FAIL_BELOW))
    floors = f"It warns below {warn:g}% and fails below {fail:g}%."
    return Proof("speed", state, says, evidence, otherwise, f"{floors} {_DO}")


def _verdict(speed: Speed) -> Any:
    return {HOLDS: "agrees", SKIPPED: "silent"}.get(speed.state, "contradicts")
