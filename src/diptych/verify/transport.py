"""The proof of the transport: what carried the KV cache of each pair is what was asked for."""

from collections.abc import Mapping
from typing import Any

from diptych.serving.traffic import went_away
from diptych.serving.transport import CONTRADICTED, UNPROVEN, Evidence, Verdict, judge
from diptych.verify.proof import FAILS, HOLDS, SKIPPED, WARNS, Proof

OTHERWISE = (
    "NIXL falls back without an error: answers are right, slow, and over TCP. Then another backend is made, its plugin "
    "is not mapped, no device is opened, or another device's counters move."
)
_DO = "docs/proof.md#transport says what each signal means and what sets it."
_ALLOWED = (
    "A fallback is allowed here (kv_transfer.allow_fallback, --allow-fallback): KV cache goes a slower way."
)


def prove(told: Mapping[str, Any], *, allow_fallback: bool = False) -> Proof:
    """Judge every pair that was probed.

    Args:
        told: the probe's answer.
        allow_fallback: whether another transport than the one asked for is to be put up with.
    """
    asked = told.get("asked") or {}
    pairs = [pair for pair in told["pairs"] if not went_away(pair)]
    if not pairs:
        return Proof("transport", SKIPPED, "No pair of replicas carried a KV transfer.", otherwise=OTHERWISE)
    verdicts = [(named(pair), judge(asked, pair)) for pair in pairs]
    evidence = tuple(each for name, verdict in verdicts for each in _evidence(name, verdict, len(pairs)))
    bad = [(name, each) for name, each in verdicts if each.state in (CONTRADICTED, UNPROVEN)]
    if not bad:
        return _proven(verdicts, evidence)
    # A contradiction goes before what is merely not proven.
    name, first = min(bad, key=lambda item: item[1].state != CONTRADICTED)
    says = first.says if len(pairs) == 1 else f"{name}: {first.says}"
    if len(bad) > 1:
        says += f" So it is with {len(bad)} of {len(pairs)} pairs."
    if allow_fallback or asked.get("allow_fallback"):
        return Proof("transport", WARNS, says, evidence, OTHERWISE, _ALLOWED)
    return Proof("transport", FAILS, says, evidence, OTHERWISE, _DO)


def fallback(proof: Proof) -> str | None:
    """What is put up with in place of what was asked for, in a sentence; None: it is what was asked for."""
    return proof.says if proof.do == _ALLOWED else None


def _proven(verdicts: list[tuple[str, Verdict]], evidence: tuple[Evidence, ...]) -> Proof:
    """It is what was asked for; a warning where it is less of it than there should be."""
    says = _together([each for _, each in verdicts])
    slower = [f"{one.what}: {one.value}" for _, each in verdicts for one in each.slower]
    if not slower:
        return Proof("transport", HOLDS, says, evidence, OTHERWISE)
    return Proof(
        "transport", WARNS, f"{says} Slower than it should be: {slower[0]}.", evidence, OTHERWISE, _DO
    )


def named(pair: Mapping[str, Any]) -> str:
    """A pair in words."""
    return f"{pair.get('prefill_replica')} → {pair.get('decode_replica')}"


def _evidence(name: str, verdict: Verdict, pairs: int) -> tuple[Evidence, ...]:
    if pairs == 1:
        return verdict.evidence
    return tuple(Evidence(f"{name}: {one.what}", one.value, one.verdict) for one in verdict.evidence)


def _together(verdicts: list[Verdict]) -> str:
    if len(verdicts) == 1:
        return verdicts[0].says
    in_use = ", ".join(sorted({verdict.in_use for verdict in verdicts}))
    return f"{verdicts[0].says} So it is with all {len(verdicts)} pairs ({in_use})."
