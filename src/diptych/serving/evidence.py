"""What speaks for and against a transport: one signal after the other, read out of what the probe tells of a pair."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from diptych.serving import traffic
from diptych.serving.asked import Wanted

AGREES: Literal["agrees"] = "agrees"
CONTRADICTS: Literal["contradicts"] = "contradicts"
SILENT: Literal["silent"] = "silent"

SIDES = ("prefill", "decode")
_VERBS_DEVICE = "/dev/infiniband/uverbs"
_FAILURES = ("handshake-failed", "transfer-failed")
_AGAINST_EFA = ("ucx-on-efa", "tcp-fallback")
_MISSING_PLUGIN = "missing-plugin"
_THROUGH_THE_HOST = ("cuda-not-registered", "no-fi-hmem")
"""Always said without GPUDirect RDMA; with it, KV cache then takes a slower way."""

Word = Literal["agrees", "contradicts", "silent"]


@dataclass(frozen=True)
class Evidence:
    """One signal.

    Args:
        what: the signal ("backend made by prefill rank 0").
        value: what it said, in words.
        verdict: `agrees` with what was asked for, `contradicts` it, or is `silent`: nothing was told, or it means
            nothing either way.
    """

    what: str
    value: str
    verdict: Word


@dataclass(frozen=True)
class Signal:
    """A piece of evidence, with the kind that `Wanted.required` asks for.

    Args:
        slows: it says nothing against what was asked for, and why that is slower than it should be.
    """

    kind: str
    evidence: Evidence
    slows: bool = False

    @property
    def verdict(self) -> Word:
        return self.evidence.verdict


def _signal(kind: str, what: str, value: str, verdict: Word, *, slows: bool = False) -> Signal:
    return Signal(kind, Evidence(what, value, verdict), slows)


def signals(wanted: Wanted, pair: Mapping[str, Any]) -> Iterator[Signal]:
    """Every signal of a pair, held against what was asked for; those that name the cause come first."""
    for side in SIDES:
        yield from _settings(wanted, pair, side)
        ranks, own = traffic.workers(pair, "after", side), _own_backends(pair, side)
        yield from _of_ranks("backend", f"backend made by {side}", ranks, partial(_made, wanted, own))
        yield from _of_ranks("plugin", f"plugin mapped into {side}", ranks, partial(_mapped, wanted))
        if wanted.provider:
            yield from _of_ranks("provider", f"rails made by {side}", ranks, partial(_rails, wanted))
            yield from _few_rails(wanted, ranks, side)
        if wanted.is_efa:
            yield from _of_ranks("device", f"device opened by {side}", ranks, _opened)
    yield from _carried(wanted, pair)
    yield _transfers(pair)
    yield from _warnings(wanted, pair)


def _settings(wanted: Wanted, pair: Mapping[str, Any], side: str) -> Iterator[Signal]:
    """The engine's own settings, which may be others than were asked for; that they are the same proves nothing."""
    backends = _own_backends(pair, side)
    provider = (traffic.look(pair, "after", side).get("asked") or {}).get("provider")
    if wanted.backend and backends and wanted.backend not in backends:
        yield _signal("settings", f"backend set for {side}", ", ".join(backends), CONTRADICTS)
    if wanted.provider and provider and not _may_be(wanted.provider, provider):
        yield _signal("settings", f"FI_PROVIDER of {side}", provider, CONTRADICTS)


def _own_backends(pair: Mapping[str, Any], side: str) -> list[str]:
    """The backends that an engine's own settings list."""
    return list((traffic.look(pair, "after", side).get("asked") or {}).get("backends") or ())


def _may_be(provider: str, setting: str) -> bool:
    """Whether libfabric's setting allows a provider: it takes a list ("efa,shm"), or with "^" all but a list."""
    names = {each.partition(";")[0] for each in setting.removeprefix("^").split(",")}
    return (provider in names) != setting.startswith("^")


def _of_ranks(
    kind: str,
    what: str,
    ranks: list[Mapping[str, Any]],
    read: Callable[[Mapping[str, Any]], tuple[str, Word]],
) -> Iterator[Signal]:
    """A signal that each worker gives; workers that say the same are told of together."""
    told: dict[tuple[str, Word], list[str]] = {}
    for one in ranks:
        told.setdefault(read(one), []).append(str(one.get("rank", "?")))
    for (value, verdict), names in told.items():
        of = f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names)}"
        yield _signal(kind, f"{what} {of}", value, verdict)
    if not told:
        yield _signal(kind, what, "not told", SILENT)


def _made(wanted: Wanted, own: list[str], worker: Mapping[str, Any]) -> tuple[str, Word]:
    made = worker.get("backends") or []
    if not made:
        return "not told", SILENT
    value = ", ".join(made)
    if wanted.backend is None:
        return value, SILENT
    if wanted.backend not in made:
        return value, CONTRADICTS
    if len(made) == 1 or (wanted.provider is None and set(made) <= set(own)):
        return value, AGREES
    return f"{value}: which one carries is not told", SILENT


def _mapped(wanted: Wanted, worker: Mapping[str, Any]) -> tuple[str, Word]:
    libraries = worker.get("libraries") or []
    plugins = [name for name in libraries if name.startswith("libplugin_")]
    if not libraries:
        return "not told", SILENT
    value = ", ".join(plugins) or "none of NIXL's"
    if wanted.backend is None:
        return value, SILENT
    is_there = any(name.startswith(f"libplugin_{wanted.backend}.") for name in plugins)
    return (f"libplugin_{wanted.backend}.so", AGREES) if is_there else (value, CONTRADICTS)


def _rails(wanted: Wanted, worker: Mapping[str, Any]) -> tuple[str, Word]:
    rails = worker.get("rails")
    if not rails or not rails.get("provider"):
        return "not told", SILENT
    provider, count = str(rails["provider"]), rails.get("count")
    value = f"{count or '?'} over {provider}"
    # libfabric names a provider with its layers: "tcp;ofi_rxm"
    if provider.partition(";")[0] != wanted.provider:
        return value, CONTRADICTS
    return value, AGREES


def _few_rails(wanted: Wanted, ranks: list[Mapping[str, Any]], side: str) -> Iterator[Signal]:
    """Fewer rails than the node has interfaces carry the KV cache as well, and slower."""
    told = [one["rails"] for one in ranks if one.get("rails")]
    counts = [each["count"] for each in told if each.get("provider") == wanted.provider and each.get("count")]
    if wanted.rails and counts and min(counts) < wanted.rails:
        value = f"{min(counts)} of {wanted.rails} interfaces"
        yield _signal("rails", f"rails in use by {side}", value, SILENT, slows=True)


def _opened(worker: Mapping[str, Any]) -> tuple[str, Word]:
    devices = worker.get("devices")
    if devices is None:
        return "not told", SILENT
    verbs = [name for name in devices if name.startswith(_VERBS_DEVICE)]
    if verbs:
        return (verbs[0] if len(verbs) == 1 else f"{verbs[0]} and {len(verbs) - 1} more"), AGREES
    return "no /dev/infiniband/uverbs", CONTRADICTS


def _carried(wanted: Wanted, pair: Mapping[str, Any]) -> Iterator[Signal]:
    """What the devices counted."""
    size = traffic.kv_bytes(pair)
    for side in SIDES:
        way = f"out of {side}" if side == "prefill" else f"into {side}"
        moved = traffic.moved(pair, side)
        name, over_net = moved.busiest_net
        if wanted.is_efa:
            yield _over_efa(moved, over_net, size, pair, f"EFA's counters, {way}")
            if wanted.rdma and side == "decode":
                yield _by_rdma(moved, size, f"RDMA counters, {way}")
        if moved.net is not None:
            what = f"counters of {name or 'network interfaces'}, {way}"
            yield _signal("net", what, _of(over_net, size), _net_verdict(wanted, moved, size, pair))


def _over_efa(moved: traffic.Moved, over_net: int, size: int, pair: Mapping[str, Any], what: str) -> Signal:
    if moved.efa is None or not size:
        return _signal("counters", what, "not told" if size else "nothing to count", SILENT)
    if not moved.efa:
        return _signal("counters", what, "there is no EFA device", CONTRADICTS)
    names = ", ".join(list(moved.efa)[:2]) + (f" and {len(moved.efa) - 2} more" if len(moved.efa) > 2 else "")
    value = f"{_of(moved.efa_bytes, size)} over {names}"
    if moved.efa_bytes >= traffic.ABOUT * size:
        return _signal("counters", what, value, AGREES)
    # libfabric's EFA provider takes shared memory within a host, where others move the network's counters, too.
    if traffic.is_on_one_host(pair):
        return _signal("counters", what, f"{value}; both replicas are on one host", SILENT)
    if over_net >= traffic.ABOUT * size:
        return _signal("counters", what, value, CONTRADICTS)
    return _signal("counters", what, value, CONTRADICTS if moved.efa_bytes < traffic.STILL * size else SILENT)


def _by_rdma(moved: traffic.Moved, size: int, what: str) -> Signal:
    if not moved.efa or not size:
        return _signal("rdma", what, "not told", SILENT)
    if moved.rdma >= traffic.ABOUT * size:
        return _signal("rdma", what, _of(moved.rdma, size), AGREES)
    emulated = moved.efa_bytes >= traffic.ABOUT * size  # EFA all the same, and these counters stay
    value = f"{_of(moved.rdma, size)}" + ("; the rest was sent and received instead" if emulated else "")
    return _signal("rdma", what, value, SILENT)


def _net_verdict(wanted: Wanted, moved: traffic.Moved, size: int, pair: Mapping[str, Any]) -> Word:
    carried = bool(size) and moved.busiest_net[1] >= traffic.ABOUT * size
    if wanted.is_efa:
        if not size:
            return SILENT
        if not carried:
            return AGREES
        if traffic.is_on_one_host(pair):
            return SILENT
        # Beside EFA that carried it as well this is somebody else's traffic; and it is no proof against EFA's own.
        return SILENT if moved.efa_bytes >= traffic.ABOUT * size else CONTRADICTS
    return AGREES if wanted.provider == "tcp" and carried else SILENT


def _transfers(pair: Mapping[str, Any]) -> Signal:
    all_of_them = list(pair.get("transfers") or ())
    arrived = [one for one in all_of_them if one.get("ok") and one.get("bytes")]
    if not all_of_them:
        return _signal("transfers", "KV transfers", "none was made", SILENT)
    size = said_bytes(traffic.kv_bytes(pair))
    if len(arrived) == len(all_of_them):
        return _signal("transfers", "KV transfers", f"{len(arrived)} arrived, {size} by NIXL's count", AGREES)
    lost = next(one for one in all_of_them if one not in arrived)
    why = lost.get("error") or lost.get("why") or f"path {lost.get('path')}"
    value = f"{len(arrived)} of {len(all_of_them)} arrived: {why}"
    return _signal("transfers", "KV transfers", value, SILENT)


def _warnings(wanted: Wanted, pair: Mapping[str, Any]) -> Iterator[Signal]:
    """Lines of the logs. Failures count when they came between the two looks, settings whenever they were said."""
    fresh: set[str] = set()
    for side in SIDES:
        earlier = {(one.get("kind"), one.get("line")) for one in _lines(pair, "before", side)}
        for kind, line in dict.fromkeys(
            (one.get("kind"), one.get("line")) for one in _lines(pair, "after", side)
        ):
            is_new = (kind, line) not in earlier
            if kind in _FAILURES and is_new:
                fresh.add(str(kind))
            verdict = _warning_verdict(wanted, str(kind), str(line))
            slows = kind in _THROUGH_THE_HOST and wanted.is_efa and bool(wanted.rdma)
            yield _signal("warning", f"log of {side}, {kind}", str(line), verdict, slows=slows)
    value = ", ".join(sorted(fresh)) or "none"
    yield _signal("failures", "failures in the logs meanwhile", value, SILENT if fresh else AGREES)


def _lines(pair: Mapping[str, Any], when: str, side: str) -> Iterable[Mapping[str, Any]]:
    return (line for worker in traffic.workers(pair, when, side) for line in worker.get("warnings") or ())


def _warning_verdict(wanted: Wanted, kind: str, line: str) -> Word:
    if kind in _AGAINST_EFA and wanted.is_efa:
        return CONTRADICTS
    if kind == _MISSING_PLUGIN and wanted.backend and wanted.backend in line:
        return CONTRADICTS
    return SILENT


def _of(part: int, whole: int) -> str:
    return f"{said_bytes(part)} of {said_bytes(whole)}"


def said_bytes(count: float) -> str:
    """Bytes in powers of 1000, as links are counted: `512 B`, `1.5 kB`, `12.6 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
