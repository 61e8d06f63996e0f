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


def prove(asking: Asking, before: Phases, deadline_s: float = DEADLINE_S) -> Proof:
    """Wait until the KV caches are as they were before the run; look what was counted since.

    Args:
        before: `Asking.phases` from before the run.
        deadline_s: seconds to wait.
    """
    began = time.monotonic()
    while True:
        now = asking.phases()
        waited_s = time.monotonic() - began
        if waited_s > deadline_s or not any(_excess(one, before) for one in _replicas(now)):
            break
        time.sleep(_POLL_S)
    found = [each for one in _replicas(now) for each in _of_replica(one, before, waited_s)]
    lost = sorted(set(_by_name(before)) - set(_by_name(now)))
    found += [(FAILS, Evidence(f"replica {name}", "gone", "contradicts")) for name in lost]
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


def _of_replica(replica: Mapping[str, Any], before: Phases, waited_s: float) -> list[_Found]:
    name = f"{replica.get('phase')} {replica.get('replica')}"
    earlier = _by_name(before).get(str(replica.get("replica")))
    if earlier is None or earlier.get("engine_pid") != replica.get("engine_pid"):
        return [(WARNS, Evidence(name, "its engine was not there before the run", "silent"))]
    found: list[_Found] = []
    first, now = _usage(earlier), _usage(replica)
    told = f"{now:.2%}, {first:.2%} before"
    running = float((replica.get("counters") or {}).get("requests_running") or 0)
    if now <= first + _ROUNDING:
        found.append((HOLDS, Evidence(f"KV cache in use on {name}", told, "agrees")))
    elif running:
        told += f"; {running:.0f} requests of others run"
        found.append((WARNS, Evidence(f"KV cache in use on {name}", told, "silent")))
    else:
        told += f", after {waited_s:.0f} s"
        found.append((FAILS, Evidence(f"KV cache in use on {name}", told, "contradicts")))
    for counter, words in _COUNTED:
        grown = (replica.get("counters") or {}).get(counter, 0) - (earlier.get("counters") or {}).get(
            counter, 0
        )
        ok = grown <= 0
        one = Evidence(f"{words} on {name}", f"{grown:.0f}", "agrees" if ok else "contradicts")
        found.append((HOLDS if ok else FAILS, one))
    return found


def _excess(replica: Mapping[str, Any], before: Phases) -> bool:
    """Whether it holds more KV cache than before the run."""
    earlier = _by_name(before).get(str(replica.get("replica")))
    return earlier is not None and _usage(replica) > _usage(earlier) + _ROUNDING


def _usage(replica: Mapping[str, Any]) -> float:
    return float((replica.get("counters") or {}).get("kv_cache_usage") or 0.0)


def _replicas(phases: Phases) -> list[dict[str, Any]]:
    return [one for replicas in phases.values() for one in replicas]


def _by_name(phases: Phases) -> dict[str, dict[str, Any]]:
    return {str(one.get("replica")): one for one in _replicas(phases)}
