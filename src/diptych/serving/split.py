"""Whether the phases of a pair are apart: what its engines counted, against what was sent through it.

The rule: of a prompt with N tokens that no cache knows, decode counts N as received from outside; N - 1 where the model
keeps recurrent state, since its last token is computed again. Prefill produced one token for each.

Standard library only: `diptych verify` imports this module as well.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from diptych.serving.evidence import SIDES, Evidence
from diptych.serving.outcome import FAILS, HOLDS, WARNS, State
from diptych.serving.traffic import look

__all__ = ["SIDES", "Found", "node_of", "of_pair", "others_of"]

Found = tuple[State, Evidence]


def of_pair(pair: Mapping[str, Any], nodes: set[Any], *, recurrent: bool) -> Iterator[Found]:
    """Everything that speaks for or against the split of one pair.

    Args:
        pair: one of the probe's `pairs`.
        nodes: those that are known (`node_of`); of several the two phases should have one each.
        recurrent: whether the model keeps recurrent state.
    """
    transfers = list(pair.get("transfers") or ())
    yield from _arrived(transfers)
    others = others_of(pair)
    expected = sum(one["tokens"] - recurrent for one in transfers)
    rule = "tokens less one each, the model being recurrent" if recurrent else "tokens"
    what = f"decode received, of {expected} {rule}"
    yield _counted(what, _grown(pair, "decode", "external_kv_tokens"), expected, others)
    tokens = sum(one["tokens"] for one in transfers)
    yield _counted(
        f"prefill computed, of {tokens} tokens", _grown(pair, "prefill", "prompt_tokens"), tokens, others
    )
    yield _counted(
        f"tokens that prefill produced, for {len(transfers)} prompts",
        _grown(pair, "prefill", "generation_tokens"),
        len(transfers),
        others,
    )
    if others:
        yield HOLDS, Evidence("other traffic meanwhile", f"{others}; counts are lower bounds", "silent")
    yield _processes(pair)
    yield from _nodes(pair, nodes)


def _arrived(transfers: list[Mapping[str, Any]]) -> Iterator[Found]:
    lost = [one for one in transfers if not (one.get("ok") and one.get("bytes"))]
    for one in lost:
        why = one.get("error") or one.get("why") or "nothing crossed"
        told = f"path {one.get('path') or 'unknown'}: {why}"
        yield FAILS, Evidence(f"a prompt of {one['tokens']} tokens", told, "contradicts")
    sizes = ", ".join(str(size) for size in sorted({one["tokens"] for one in transfers}))
    if transfers and not lost:
        told = f"{len(transfers)} of {len(transfers)} on path remote"
        yield HOLDS, Evidence(f"prompts of {sizes} tokens", told, "agrees")
    elif not transfers:
        yield FAILS, Evidence("prompts", "none was sent", "contradicts")


def _counted(what: str, seen: float | None, expected: int, others: str) -> Found:
    if seen is None:
        return FAILS, Evidence(what, "the engine did not tell", "contradicts")
    if seen >= expected if others else seen == expected:
        return HOLDS, Evidence(what, f"{seen:.0f}", "agrees")
    if others:  # an engine under load may count a prompt late, or compute it again for want of room
        return WARNS, Evidence(what, f"{seen:.0f}; other requests were running: {others}", "silent")
    return FAILS, Evidence(what, f"{seen:.0f}", "contradicts")


def others_of(pair: Mapping[str, Any]) -> str:
    """Requests that are not ours and may have been counted with ours, in words; "" for none."""
    told, own = [], len(pair.get("transfers") or ())
    for side in SIDES:
        finished = _grown(pair, side, "requests_finished") or 0
        running = max(_unfinished(pair, when, side) for when in ("before", "after"))
        if finished > own:
            told.append(f"{finished - own:.0f} more requests finished on {side}")
        if running:
            told.append(f"{running:.0f} running on {side}")
    return ", ".join(told)


def _unfinished(pair: Mapping[str, Any], when: str, side: str) -> float:
    """Requests inside an engine; those that wait for a KV transfer are not among its running ones."""
    return sum(_counter(pair, when, side, f"requests_{what}") or 0 for what in ("running", "waiting"))


def _processes(pair: Mapping[str, Any]) -> Found:
    sides = [look(pair, "after", side) for side in SIDES]
    processes = [{(one.get("host"), pid) for pid in _pids(one)} for one in sides]
    value = " and ".join(
        f"{one.get('phase')} {one.get('engine_pid') or one.get('pid')} on {one.get('host')}" for one in sides
    )
    apart = all(processes) and not processes[0] & processes[1]
    state, verdict = (HOLDS, "agrees") if apart else (FAILS, "contradicts")
    return state, Evidence("engine processes", value, verdict)  # type: ignore[arg-type]


def _pids(signals: Mapping[str, Any]) -> list[int]:
    told = [signals.get("pid"), signals.get("engine_pid")]
    told += [worker.get("pid") for worker in signals.get("workers") or ()]
    return [pid for pid in told if pid is not None]


def _nodes(pair: Mapping[str, Any], known: set[Any]) -> Iterator[Found]:
    """Where the phases are; of the nodes that are `known`, they should have one each."""
    sides = [look(pair, "after", side) for side in SIDES]
    own, zones = [node_of(one) for one in sides], [one.get("zone") for one in sides]
    names = [one.get("node_name") or one.get("host") for one in sides]
    if own[0] == own[1] and len(known) > 1:
        value = f"both on {names[0]}, though replicas are on {len(known)} nodes"
        yield WARNS, Evidence("nodes", value, "contradicts")
        return
    if own[0] == own[1]:
        yield HOLDS, Evidence("nodes", f"both on {names[0]}, which has all replicas", "silent")
        return
    yield HOLDS, Evidence("nodes", f"prefill on {names[0]}, decode on {names[1]}", "agrees")
    if None in zones:
        yield HOLDS, Evidence("zone", "not told", "silent")
    elif zones[0] == zones[1]:
        yield HOLDS, Evidence("zone", f"both in {zones[0]}", "agrees")
    else:
        value = (
            f"prefill in {zones[0]}, decode in {zones[1]}: EFA does not cross zones, and TCP there is charged"
        )
        yield FAILS, Evidence("zone", value, "contradicts")


def node_of(signals: Mapping[str, Any]) -> Any:
    """By its name in the cluster, else by Ray's id: pods of one node are several nodes to Ray."""
    return signals.get("node_name") or signals.get("node_id") or signals.get("host")


def _grown(pair: Mapping[str, Any], side: str, counter: str) -> float | None:
    """How much a counter of an engine grew; None where it is not told."""
    first, last = (_counter(pair, when, side, counter) for when in ("before", "after"))
    return None if first is None or last is None or last < first else last - first


def _counter(pair: Mapping[str, Any], when: str, side: str, name: str) -> float | None:
    value = (look(pair, when, side).get("counters") or {}).get(name)
    return float(value) if isinstance(value, int | float) else None
