"""The proof of the split: for prompts of every length, decode received what prefill, another process, computed.

The rule: of a prompt with N tokens that no cache knows, decode counts N as received from outside; N - 1 where the model
keeps recurrent state, since its last token is computed again. Prefill produced one token for each.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from diptych.serving.transport import Evidence
from diptych.verify.proof import FAILS, HOLDS, WARNS, Proof, State, worst
from diptych.verify.transport import named

OTHERWISE = (
    "Decode computes a prompt whose KV cache never came, and answers right: then it counts fewer tokens from outside "
    "than the prompt has, and prefill counts no token of its own."
)
_DO = "`diptych logs decode` and `diptych logs prefill` show why; docs/proof.md#split has the usual causes."
SIDES = ("prefill", "decode")
_Found = tuple[State, Evidence]


def prove(told: Mapping[str, Any]) -> Proof:
    """Compare what the engines counted with what was sent through each pair.

    Args:
        told: the probe's answer.
    """
    pairs = told["pairs"]
    problems = [str(each) for each in told.get("problems") or ()]
    if not pairs:
        says = "; ".join(problems) or "no prefill replica is there for decode to take KV cache from"
        evidence = tuple(Evidence("probe", each, "contradicts") for each in problems)
        return Proof("split", FAILS, f"Nothing was split: {says}.", evidence, OTHERWISE, _DO)
    found: list[tuple[State, Evidence]] = [
        (FAILS, Evidence("probe", each, "contradicts")) for each in problems
    ]
    nodes = {_node(_look(pair, "after", side)) for pair in pairs for side in SIDES}
    for pair in pairs:
        prefix = f"{named(pair)}: " if len(pairs) > 1 else ""
        for state, one in _of_pair(pair, bool(told.get("recurrent")), nodes):
            found.append((state, Evidence(f"{prefix}{one.what}", one.value, one.verdict)))
    state = worst(each for each, _ in found)
    evidence = tuple(one for _, one in found)
    if state == HOLDS:
        return Proof("split", HOLDS, _sum(pairs), evidence, OTHERWISE)
    first = next(one for each, one in found if each == state)
    return Proof("split", state, f"{_capital(first.what)}: {first.value}.", evidence, OTHERWISE, _DO)


def _of_pair(pair: Mapping[str, Any], recurrent: bool, nodes: set[Any]) -> Iterator[_Found]:
    transfers = list(pair.get("transfers") or ())
    yield from _arrived(transfers)
    others = _others(pair, len(transfers))
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


def _arrived(transfers: list[Mapping[str, Any]]) -> Iterator[_Found]:
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


def _counted(what: str, seen: float | None, expected: int, others: str) -> _Found:
    if seen is None:
        return FAILS, Evidence(what, "the engine did not tell, or was replaced meanwhile", "contradicts")
    right = seen >= expected if others else seen == expected
    return (HOLDS if right else FAILS), Evidence(what, f"{seen:.0f}", "agrees" if right else "contradicts")


def _others(pair: Mapping[str, Any], own: int) -> str:
    """Requests that are not ours and may have been counted with ours, in words; "" for none."""
    told = []
    for side in SIDES:
        finished = _grown(pair, side, "requests_finished") or 0
        running = max(_counter(pair, when, side, "requests_running") or 0 for when in ("before", "after"))
        if finished > own:
            told.append(f"{finished - own:.0f} more requests finished on {side}")
        if running:
            told.append(f"{running:.0f} running on {side}")
    return ", ".join(told)


def _processes(pair: Mapping[str, Any]) -> _Found:
    sides = [_look(pair, "after", side) for side in SIDES]
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


def _nodes(pair: Mapping[str, Any], known: set[Any]) -> Iterator[_Found]:
    """Where the phases are; of the nodes that are `known`, they should have one each."""
    sides = [_look(pair, "after", side) for side in SIDES]
    own, zones = [_node(one) for one in sides], [one.get("zone") for one in sides]
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


def _node(signals: Mapping[str, Any]) -> Any:
    """By its name in the cluster, else by Ray's id: pods of one node are several nodes to Ray."""
    return signals.get("node_name") or signals.get("node_id") or signals.get("host")


def _grown(pair: Mapping[str, Any], side: str, counter: str) -> float | None:
    """How much a counter of an engine grew; None where it is not told, or another engine counts now."""
    first, last = (_counter(pair, when, side, counter) for when in ("before", "after"))
    if first is None or last is None or last < first:
        return None
    same = _look(pair, "before", side).get("engine_pid") == _look(pair, "after", side).get("engine_pid")
    return last - first if same else None


def _counter(pair: Mapping[str, Any], when: str, side: str, name: str) -> float | None:
    value = (_look(pair, when, side).get("counters") or {}).get(name)
    return float(value) if isinstance(value, int | float) else None


def _look(pair: Mapping[str, Any], when: str, side: str) -> Mapping[str, Any]:
    signals = (pair.get(when) or {}).get(side)
    return signals if isinstance(signals, Mapping) else {}


def _sum(pairs: list[Mapping[str, Any]]) -> str:
    transfers = [one for pair in pairs for one in pair["transfers"]]
    tokens = sum(one["tokens"] for one in transfers)
    through = "one pair" if len(pairs) == 1 else f"{len(pairs)} pairs"
    return f"All {tokens} tokens of {len(transfers)} prompts came to decode from another process, through {through}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
