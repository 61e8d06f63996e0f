"""The proof of idleness: after the run each KV cache is as full as before, and nothing went wrong meanwhile."""

import time
from collections.abc import Mapping
from typing import Any

from diptych.serving.transport import Evidence
from diptych.verify.asking import Asking
from diptych.verify.proof import FAILS, HOLDS, WARNS, Proof, State, worst

DEADLINE_S = 15.0
_POLL_S = 0.25
_ROUNDING = 1e-6

OTHERWISE = (
    "Prefill keeps the KV cache of a prompt that nobody fetches until its lease ends: its use stays high, then an "
    "expired lease is counted."
)
_DO = "docs/proof.md#idle; `diptych logs prefill` names requests whose KV cache was not fetched."
_COUNTED = (
    ("kv_transfers_failed", "failed KV transfers"),
    ("kv_leases_expired", "leases that expired"),
)
_Found = tuple[State, Evidence]
Phases = Mapping[str, list[dict[str, Any]]]


def prove(asking: Asking, before: Phases, own: int = 0, deadline_s: float = DEADLINE_S) -> Proof:
    """Wait until the KV caches are as they were before the run; look what was counted since.

    What is found beside other requests may be theirs: then it is a warning.

    Args:
        before: `Asking.phases` from before the run.
        own: prompts that were sent since, by us.
        deadline_s: seconds to wait.
    """
    began = time.monotonic()
    while True:
        now = asking.phases()
        waited_s = time.monotonic() - began
        if waited_s > deadline_s or not any(_excess(one, before) for one in _replicas(now)):
            break
        time.sleep(_POLL_S)
    others = _others(before, now, own)
    found = [each for one in _replicas(now) for each in _of_replica(one, before, waited_s, others)]
    lost = sorted(set(_by_name(before)) - set(_by_name(now)))
    found += [(WARNS, Evidence(f"replica {name}", "went away: not compared", "silent")) for name in lost]
    if not found:
        found = [(FAILS, Evidence("replicas", "none tells of itself", "contradicts"))]
    state = worst(each for each, _ in found)
    evidence = tuple(one for _, one in found)
    if state == HOLDS:
        says = f"KV caches are as empty as before after {waited_s:.1f} s; no lease expired, no KV transfer failed."
        return Proof("idle", HOLDS, says, evidence, OTHERWISE)
    first = next(one for each, one in found if each == state)
    return Proof(
        "idle", state, f"{first.what[:1].upper()}{first.what[1:]}: {first.value}.", evidence, OTHERWISE, _DO
    )


def _others(before: Phases, now: Phases, own: int) -> int:
    """Requests that were not ours: those that finished meanwhile, and those that are inside an engine.

    Every request finishes once on what faces clients, wherever its prefill was.
    """
    facing = [one for phase, replicas in now.items() if phase != "prefill" for one in replicas]
    finished = sum(_grown(one, before, "requests_finished") for one in facing)
    inside = [_counter(one, f"requests_{what}") for one in facing for what in ("running", "waiting")]
    return int(max(0.0, finished - own) + sum(inside))


def _of_replica(replica: Mapping[str, Any], before: Phases, waited_s: float, others: int) -> list[_Found]:
    name = f"{replica.get('phase')} {replica.get('replica')}"
    earlier = _same(replica, before)
    if earlier is None:
        return [(WARNS, Evidence(name, "its engine was not there before the run", "silent"))]
    if replica.get("draining"):
        return [(WARNS, Evidence(name, "it is going away: not compared", "silent"))]
    first, now = (_counter(one, "kv_cache_usage") for one in (earlier, replica))
    held = f"{now:.2%}, {first:.2%} before"
    told = held if now <= first + _ROUNDING else f"{held}, after {waited_s:.0f} s"
    found = [_judged(f"KV cache in use on {name}", told, others, ok=told == held)]
    for counter, words in _COUNTED:
        grown = _grown(replica, before, counter)
        found.append(_judged(f"{words} on {name}", f"{grown:.0f}", others, ok=grown <= 0))
    return found


def _judged(what: str, value: str, others: int, *, ok: bool) -> _Found:
    if ok:
        return HOLDS, Evidence(what, value, "agrees")
    if others:
        return WARNS, Evidence(what, f"{value}; other requests were running: {others}", "silent")
    return FAILS, Evidence(what, value, "contradicts")


def _excess(replica: Mapping[str, Any], before: Phases) -> bool:
    """Whether it holds more KV cache than before the run."""
    return _grown(replica, before, "kv_cache_usage") > _ROUNDING


def _grown(replica: Mapping[str, Any], before: Phases, counter: str) -> float:
    """How much a counter grew since; 0 for an engine that was not there."""
    earlier = _same(replica, before)
    return _counter(replica, counter) - _counter(earlier, counter) if earlier else 0.0


def _same(replica: Mapping[str, Any], before: Phases) -> Mapping[str, Any] | None:
    """The same engine, as it was before."""
    earlier = _by_name(before).get(str(replica.get("replica")))
    return earlier if earlier and earlier.get("engine_pid") == replica.get("engine_pid") else None


def _counter(replica: Mapping[str, Any], name: str) -> float:
    return float((replica.get("counters") or {}).get(name) or 0.0)


def _replicas(phases: Phases) -> list[dict[str, Any]]:
    return [one for replicas in phases.values() for one in replicas]


def _by_name(phases: Phases) -> dict[str, dict[str, Any]]:
    return {str(one.get("replica")): one for one in _replicas(phases)}
