"""Over which transport the KV cache of a pair of replicas went, against what was asked for.

One signal alone has fooled people: the backend's name says nothing of its provider, a plugin may be mapped and unused,
NIXL counts bytes on any transport, a device may carry somebody else's. So a transport is proven only when independent
signals agree: the backend that NIXL's agent made, its plugin mapped into the engine's process, the provider it took or
the device it opened, and the device's own counters moving by about the KV cache's bytes. One that says otherwise is a
contradiction, whatever the others say.

Standard library only: `diptych verify` imports this module as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from diptych.serving import traffic
from diptych.serving.asked import Wanted
from diptych.serving.evidence import AGREES, CONTRADICTS, SIDES, Evidence, Signal, said_bytes, signals

__all__ = ["CONTRADICTED", "NOT_ASKED", "PROVEN", "UNPROVEN", "Evidence", "State", "Verdict", "judge"]

State = Literal["proven", "unproven", "contradicted", "not-asked"]
PROVEN: Literal["proven"] = "proven"
UNPROVEN: Literal["unproven"] = "unproven"
CONTRADICTED: Literal["contradicted"] = "contradicted"
NOT_ASKED: Literal["not-asked"] = "not-asked"


@dataclass(frozen=True)
class Verdict:
    """What is in use, and whether it is what was asked for.

    Args:
        state: `proven`, `unproven` (nothing contradicts, and not enough agrees), `contradicted`, or `not-asked`.
        says: one sentence that names what was asked for and what is in use.
        in_use: "LIBFABRIC over efa", "UCX over tcp", …
        evidence: every signal.
        slower: those that say why what is in use is slower than it should be, and say nothing against it.
    """

    state: State
    says: str
    in_use: str
    evidence: tuple[Evidence, ...]
    slower: tuple[Evidence, ...] = ()


def judge(asked: Mapping[str, Any], pair: Mapping[str, Any]) -> Verdict:
    """The verdict on one pair of replicas.

    Args:
        asked: `asked` of the probe's answer: `backend`, `provider`, `rails`, `rdma_counters`, each null where nothing
            was asked or is known.
        pair: one of the probe's `pairs`: signals of both sides before and after, and the transfers between.
    """
    wanted = Wanted.of(asked)
    told = tuple(signals(wanted, pair))
    in_use = _in_use(pair)
    state = _state(wanted, told)
    says = _says(wanted, state, in_use, told, pair)
    slower = tuple(signal.evidence for signal in told if signal.slows)
    return Verdict(state, says, in_use, tuple(signal.evidence for signal in told), slower)


def _state(wanted: Wanted, signals: tuple[Signal, ...]) -> State:
    if any(signal.verdict == CONTRADICTS for signal in signals):
        return CONTRADICTED
    if not all(any(_agree(signals, kind) for kind in kinds) for kinds in wanted.required):
        return UNPROVEN
    return PROVEN if wanted.backend or wanted.provider else NOT_ASKED


def _agree(signals: tuple[Signal, ...], kind: str) -> bool:
    own = [signal.verdict for signal in signals if signal.kind == kind]
    return bool(own) and all(verdict == AGREES for verdict in own)


def _in_use(pair: Mapping[str, Any]) -> str:
    """The backend, and over what, as far as it can be told; what was counted goes before what was logged."""
    ranks = [one for side in SIDES for one in traffic.workers(pair, "after", side)]
    made = sorted({name for one in ranks for name in one.get("backends") or ()})
    providers = {str(one["rails"].get("provider")) for one in ranks if one.get("rails")}
    backend = " and ".join(made) or "an unknown backend"
    size, into, out = (
        traffic.kv_bytes(pair),
        traffic.moved(pair, "decode"),
        traffic.moved(pair, "prefill"),
    )
    if size and min(into.efa_bytes, out.efa_bytes) >= traffic.ABOUT * size:
        return f"{backend} over efa"
    if size and min(into.busiest_net[1], out.busiest_net[1]) >= traffic.ABOUT * size:
        return f"{backend} over tcp"
    if len(providers) == 1:
        return f"{backend} over {providers.pop()}"
    if size and made == ["UCX"] and into.net is not None and traffic.is_on_one_host(pair):
        return "UCX over shared memory"
    return backend


def _says(
    wanted: Wanted, state: str, in_use: str, signals: tuple[Signal, ...], pair: Mapping[str, Any]
) -> str:
    if state == CONTRADICTED:
        against = [signal.evidence for signal in signals if signal.verdict == CONTRADICTS]
        more = f", and {len(against) - 1} more of the signals contradict it" if len(against) > 1 else ""
        first = f"{against[0].what}: {against[0].value}"
        return f"{wanted.words} was asked for, and {in_use} is in use ({first}{more})."
    carried = f"{said_bytes(traffic.kv_bytes(pair))} in {len(pair.get('transfers') or ())} KV transfers"
    if state == PROVEN:
        return f"{wanted.words} was asked for, and carried the KV cache: {in_use}, {carried}."
    if state == NOT_ASKED:
        return f"No transport was asked for; {in_use} carried the KV cache, {carried}."
    lacking = [kinds for kinds in wanted.required if not any(_agree(signals, kind) for kind in kinds)]
    silent = next(s.evidence for s in signals if s.kind in lacking[0] and s.verdict != AGREES)
    asked = (
        f"{wanted.words} was asked for" if wanted.backend or wanted.provider else "No transport was asked for"
    )
    return f"{asked}, and {in_use} is not proven to carry the KV cache ({silent.what}: {silent.value})."
