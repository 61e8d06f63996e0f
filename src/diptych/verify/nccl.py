"""What NCCL's all-reduce over the nodes says of their network: the output of nccl-tests, read and judged.

It is another library on another path than the KV cache's: it tells what the network can do, and proves nothing of NIXL.
So it stands with the proof of speed as further evidence, may make it worse, and never lifts another proof.

Bus bandwidth is nccl-tests' own figure: bytes over time, times 2 (n - 1) / n for n GPUs. No all-reduce over several
nodes can pass more through a node's network than that has, so it is held against the smallest node's. What can't be
read is no success: then the judgement is a failure that says so.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from diptych.serving.speed import FAIL_BELOW, WARN_BELOW
from diptych.serving.transport import Evidence
from diptych.verify.proof import FAILS, HOLDS, SKIPPED, WARNS, Proof, State, worst

WHAT = "NCCL, not NIXL"
LARGEST = 128 * 2**20
"""Bytes of the last row that has to be there."""

_NUMBER = r"[0-9.]+(?:e[+-]?[0-9]+)?"
_TIMED = rf"\s+({_NUMBER})\s+({_NUMBER})\s+({_NUMBER})\s+(\S+)"
_ROW = re.compile(rf"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+){_TIMED}{_TIMED}\s*$")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\b")
_OUT_OF_BOUNDS = re.compile(r"^#\s*Out of bounds values\s*:\s*(\d+)")
_AVERAGE = re.compile(rf"^#\s*Avg bus bandwidth\s*:\s*({_NUMBER})")
_PROVIDER = re.compile(r"Selected provider is ([\w;-]+)")
_LIBFABRIC = re.compile(r"(?:Using network|NET plugin) (?:AWS )?Libfabric|NET/(?:AWS )?Libfabric")
_SOCKETS = re.compile(r"(?:Using network|NET plugin) Socket|via NET/Socket|NET/Socket ?: Using")
_OUT_OF_MEMORY = re.compile(r"out of memory|cudaErrorMemoryAllocation", re.IGNORECASE)
_TROUBLE = re.compile(r"error|fail|warn|abort|refused|unable|not found|no such|denied", re.IGNORECASE)
_DO = "docs/proof.md#nccl says what each outcome means."


@dataclass(frozen=True)
class Link:
    """The network of the smallest node.

    Args:
        gbps: 10^9 bits per second; None: not known.
        gpudirect: whether its GPUs and its interfaces move bytes without the host; None: not known.
        efa: whether EFA was asked for.
    """

    gbps: float | None
    gpudirect: bool | None
    efa: bool

    @property
    def gb_per_s(self) -> float | None:
        """10^9 bytes per second."""
        return None if self.gbps is None else self.gbps / 8


@dataclass(frozen=True)
class Row:
    """One size: bytes, the better of the two bus bandwidths in 10^9 bytes per second, and wrong values in both.

    `wrong` is None where nothing was compared.
    """

    size: int
    busbw: float
    wrong: int | None


@dataclass(frozen=True)
class Table:
    """What nccl-tests printed.

    Args:
        rows: by size, as far as they can be read.
        hosts: the host of each rank.
        out_of_bounds: wrong values in all; None: not said.
        average: bus bandwidth over all rows, 10^9 bytes per second; None: not said.
    """

    rows: tuple[Row, ...]
    hosts: Mapping[int, str]
    out_of_bounds: int | None
    average: float | None

    @property
    def is_whole(self) -> bool:
        """Whether it was printed to its end, the largest size included."""
        sizes = [row.size for row in self.rows]
        return bool(sizes) and sizes[-1] == LARGEST and None not in (self.out_of_bounds, self.average)

    @property
    def wrong(self) -> int | None:
        """Wrong values that were found; None where a row was not compared."""
        known = [row.wrong for row in self.rows if row.wrong is not None]
        found = max(sum(known), self.out_of_bounds or 0)
        return found if found or len(known) == len(self.rows) else None


@dataclass(frozen=True)
class Judged:
    """What comes of a run: as a proof has it, without a name of its own."""

    state: State
    says: str
    evidence: tuple[Evidence, ...]


def read(output: str) -> Table:
    """Read the table of nccl-tests; lines of others in between are passed over.

    >>> read(" 8388608  2097152  float  sum  -1  3344.8  2.51  2.51  0  3353.4  2.50  2.50  0").rows[0]
    Row(size=8388608, busbw=2.51, wrong=0)
    """
    rows, hosts = [], {}
    out_of_bounds = average = None
    for line in output.splitlines():
        if found := _ROW.match(line):
            rows.append(_row(found.groups()))
        elif found := _RANK.match(line):
            hosts[int(found[1])] = found[2]
        elif found := _OUT_OF_BOUNDS.match(line):
            out_of_bounds = int(found[1])
        elif found := _AVERAGE.match(line):
            average = float(found[1])
    return Table(tuple(sorted(rows, key=lambda row: row.size)), hosts, out_of_bounds, average)


def _row(fields: tuple[str, ...]) -> Row:
    size, (first, second) = int(fields[0]), (fields[5:9], fields[9:13])
    wrong = [_count(each[3]) for each in (first, second)]
    counted = [each for each in wrong if each is not None]
    return Row(size, max(float(first[2]), float(second[2])), sum(counted) if len(counted) == 2 else None)


def _count(text: str) -> int | None:
    """A count as `%g` prints it; None for `N/A`."""
    try:
        return int(float(text))
    except ValueError:
        return None


def judge(told: Mapping[str, Any], link: Link) -> Judged:
    """What a run shows.

    Args:
        told: what `/diptych/v1/nccl` answered.
        link: what was asked for, and what the nodes have.
    """
    if why := told.get("skipped"):
        return _skipped(str(why))
    output, log = str(told.get("output") or ""), str(told.get("log") or "")
    text, table = f"{output}\n{log}", read(output)
    found = [*_network(text, link)]
    if table.rows:
        found.append(_values(table))
    if not table.is_whole:
        if _OUT_OF_MEMORY.search(text) and not table.wrong and not (link.efa and _is_another(text)):
            return _skipped("the engines leave too little GPU memory for it: it ran out of memory")
        found.insert(0, (FAILS, _evidence("all-reduce", _why_broken(told, output, log), "contradicts")))
        return _judged(found)
    code = told.get("exit_code")
    if code != 0:
        found.append((FAILS, _evidence("exit status", _ended(told), "contradicts")))
    found += [_placed(told, table), _bandwidth(told, table, link)]
    return _judged(found)


def joined(proof: Proof, judged: Judged) -> Proof:
    """The proof of speed with what NCCL showed; it is made worse by that, never better."""
    evidence = (*proof.evidence, *judged.evidence)
    says = f"{proof.says} {judged.says}"
    state = proof.state if judged.state == SKIPPED else worst([proof.state, judged.state])
    do = proof.do
    if judged.state in (WARNS, FAILS):
        do = f"{do} {_DO}".strip()
    return Proof(proof.name, state, says, evidence, proof.otherwise, do, proof.took_s)


def _skipped(why: str) -> Judged:
    return Judged(SKIPPED, f"{WHAT}: not measured, {why}.", (_evidence("all-reduce", why, "silent"),))


def _judged(found: list[tuple[State, Evidence]]) -> Judged:
    state = worst(each for each, _ in found)
    # The bandwidth, which comes last, sums up a good run; of failures the first names the cause.
    in_order = found if state == FAILS else found[::-1]
    first = next(one for each, one in in_order if each == state)
    return Judged(state, f"{first.what}: {first.value}.", tuple(one for _, one in found))


def _evidence(what: str, value: str, verdict: Any) -> Evidence:
    return Evidence(f"{WHAT}: {what}", value, verdict)


def _network(text: str, link: Link) -> Iterator[tuple[State, Evidence]]:
    """What carried it, by NCCL's own lines."""
    providers = sorted(set(_PROVIDER.findall(text)))
    over_libfabric, over_sockets = bool(_LIBFABRIC.search(text)), bool(_SOCKETS.search(text))
    parts = [f"provider {each}" for each in providers]
    parts += ["Libfabric"] if over_libfabric else []
    parts += ["sockets"] if over_sockets else []
    value = ", ".join(parts) or "not told"
    if not link.efa:
        yield HOLDS, _evidence("network", value, "silent")
    elif _is_another(text):
        yield FAILS, _evidence("network", f"{value}, and EFA was asked for", "contradicts")
    elif providers and over_libfabric:
        yield HOLDS, _evidence("network", value, "agrees")
    else:
        yield FAILS, _evidence("network", f"{value}: nothing shows that EFA carried it", "contradicts")


def _is_another(text: str) -> bool:
    """Whether NCCL says that something else than EFA carries its bytes."""
    others = [each for each in _PROVIDER.findall(text) if each.partition(";")[0] != "efa"]
    return bool(others or _SOCKETS.search(text))


def _values(table: Table) -> tuple[State, Evidence]:
    wrong = table.wrong
    if wrong == 0:
        return HOLDS, _evidence("wrong values", "0", "agrees")
    value = "not compared" if wrong is None else str(wrong)
    return FAILS, _evidence("wrong values", value, "contradicts")


def _placed(told: Mapping[str, Any], table: Table) -> tuple[State, Evidence]:
    """Whether it ran on all GPUs of all nodes: on one alone no network takes part."""
    nodes = list(told.get("nodes") or ())
    gpus, hosts = sum(int(each.get("gpus") or 0) for each in nodes), len(set(table.hosts.values()))
    value = f"{len(table.hosts)} GPUs on {hosts} nodes"
    if (len(table.hosts), hosts) == (gpus, len(nodes)) and hosts > 1:
        return HOLDS, _evidence("ranks", value, "agrees")
    return FAILS, _evidence("ranks", f"{value}, of {gpus} on {len(nodes)}", "contradicts")


def _bandwidth(told: Mapping[str, Any], table: Table, link: Link) -> tuple[State, Evidence]:
    busbw = table.rows[-1].busbw
    what = f"all-reduce of {LARGEST // 2**20} MiB over {len(told.get('nodes') or ())} nodes"
    value = f"{busbw:.2f} GB/s bus bandwidth"
    if not link.gb_per_s:
        return HOLDS, _evidence(what, f"{value}; of the nodes' network nothing is known", "silent")
    share = busbw / link.gb_per_s
    value += f", {share:.0%} of the {link.gb_per_s:.1f} GB/s that a node's network has"
    if share < FAIL_BELOW["link"] and link.gpudirect:
        return FAILS, _evidence(what, f"{value}; it fails below {FAIL_BELOW['link']:.0%}", "contradicts")
    if share < WARN_BELOW["link"]:
        return WARNS, _evidence(what, f"{value}; it warns below {WARN_BELOW['link']:.0%}", "contradicts")
    return HOLDS, _evidence(what, value, "agrees")


def _why_broken(told: Mapping[str, Any], output: str, log: str) -> str:
    if told.get("exit_code") is None:
        return f"it did not end within {float(told.get('deadline_s') or 0.0):.0f} s{_last_line(output, log)}"
    return f"its output can't be read to the end; {_ended(told)}{_last_line(output, log)}"


def _ended(told: Mapping[str, Any]) -> str:
    code = told.get("exit_code")
    return "it was ended" if code is None else f"mpirun ended with {code}"


def _last_line(output: str, log: str) -> str:
    """The last line that tells of trouble, or that there is."""
    lines = [line.strip() for text in (output, log) for line in text.splitlines() if line.strip(" #-*")]
    trouble = [line for line in lines if _TROUBLE.search(line)]
    last = (trouble or lines or [""])[-1]
    return f": {last[:200]}" if last else ", and nothing was printed"
