"""`diptych verify`: a line for each proof and what it rests on, or JSON; once, or for as long as it is watched."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from diptych.cli.console import err, format_duration, out, print_dim, safe, write
from diptych.errors import DocumentError, EndpointError
from diptych.verify.proof import FAILS, HOLDS, SKIPPED, WARNS, Proof, Report
from diptych.verify.run import Verification, changes
from diptych.verify.transport import fallback

if TYPE_CHECKING:
    from rich.console import Console

    from diptych.cli.places import Up
    from diptych.endpoint import Endpoint
    from diptych.verify.nccl import Link

_MARKS = {
    "holds": ("✓", "green"),
    "warns": ("!", "yellow"),
    "fails": ("✗", "bold red"),
    "skipped": ("–", "dim"),
}
_VERDICTS = {"agrees": ("✓", "green"), "contradicts": ("✗", "red"), "silent": ("·", "dim")}


def run_verify(
    endpoint: "Endpoint",
    *,
    json_output: bool,
    allow_fallback: bool,
    network: "Link | None" = None,
    remember: Callable[[str | None], None] = lambda says: None,
) -> int:
    """Make all proofs once and print them; 0 when none fails, else 1.

    Args:
        network: NCCL is measured over the nodes as well, and held against it.
        remember: told what transport was put up with, in a sentence; None when it is the one that was asked for.

    Raises:
        EndpointError: the endpoint does not answer, refuses the key, or can't be probed; what was proven so far
            stays printed.
    """
    with Verification(endpoint, allow_fallback=allow_fallback, network=network) as verification:
        for step in _steps(verification, light=False, quiet=json_output):
            if not json_output:
                print_proof(out(), step)
        report = verification.report()
    _remember(report, remember, allow_fallback=allow_fallback)
    if json_output:
        write(json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n")
    else:
        print_evidence(out(), report.proofs)
        print_verdict(out(), report)
    return 0 if report.holds else 1


def network_for_nccl(up: "Up", *, watch: bool, yes: bool) -> "Link | None":
    """What `--nccl` is held against, once its user has agreed to what it costs; None: they did not.

    Args:
        up: the service.
        watch: it was asked for with `--watch`.
        yes: nobody is to be asked.

    Raises:
        DocumentError: there is nothing to measure at this place, or it can't be watched; or there is nobody to ask.
    """
    from diptych.cli.cluster_plan import agreed
    from diptych.render.layout import wants_efa
    from diptych.render.transport import slowest_network
    from diptych.verify.nccl import Link

    if watch:
        raise DocumentError(
            "--nccl and --watch do not go together: each run of NCCL stalls answers for seconds.",
            "Run `diptych verify --nccl` by itself.",
        )
    if up.place != "eks" or up.remembered is None:
        raise DocumentError(
            f"--nccl is for services on eks, whose image has nccl-tests and Open MPI; {up} is none.",
            "Leave it out: the proof of speed times KV transfers everywhere.",
        )
    _say_what_nccl_costs(up)
    if not yes and not agreed():
        print_dim(err(), "Nothing was measured.")
        return None
    gbps, gpudirect = slowest_network(up.remembered.document)
    return Link(gbps, gpudirect, efa=wants_efa(up.remembered.document))


def _say_what_nccl_costs(up: "Up") -> None:
    err().print(
        f"NCCL will run on all GPUs of {up.name}, beside its engines: answers stall for seconds, for two minutes "
        "at most.",
        highlight=False,
        soft_wrap=True,
    )


def _remember(report: Report, remember: Callable[[str | None], None], *, allow_fallback: bool) -> None:
    """Tell what transport is in use in place of what was asked for, if a user puts up with it; or that none is."""
    proof = next(one for one in report.proofs if one.name == "transport")
    instead = fallback(proof)
    if proof.state in (HOLDS, WARNS) and (allow_fallback or instead is None):
        remember(instead)


def run_watch(
    endpoint: "Endpoint",
    *,
    json_output: bool,
    allow_fallback: bool,
    period_s: float,
    remember: Callable[[str | None], None] = lambda says: None,
) -> int:
    """Make light proofs every `period_s` seconds until Ctrl-C; print what changes, or one line of JSON each time.

    Args:
        remember: as for `run_verify`, after each round.

    Returns:
        0 when no proof of the last round failed, else 1.
    """
    watch = _Watch(json_output)
    try:
        with Verification(endpoint, allow_fallback=allow_fallback) as verification:
            if not json_output:
                print_dim(
                    err(), f"Watching {endpoint.url} every {format_duration(period_s)}; Ctrl-C ends it."
                )
            while True:
                began = time.monotonic()
                if report := watch.round(verification):
                    _remember(report, remember, allow_fallback=allow_fallback)
                time.sleep(max(0.0, period_s - (time.monotonic() - began)))
    except KeyboardInterrupt:
        if not json_output:
            print_dim(err(), f"Watched for {format_duration(time.monotonic() - watch.began)}.")
    return 0 if watch.holds else 1


class _Watch:
    """What a watch has seen; `holds` is of its last round, and of none before the first."""

    def __init__(self, json_output: bool) -> None:
        self.began = time.monotonic()
        self.holds = False
        self._json_output = json_output
        self._last: Report | None = None
        self._trouble = ""

    def round(self, verification: Verification) -> Report | None:
        """Make the proofs; a service that does not answer is a change like any other, without a report."""
        try:
            for _ in _steps(verification, light=True, quiet=True):
                pass
        except EndpointError as error:
            self._troubled(error)
            return None
        report = verification.report()
        self.holds = report.holds
        if self._json_output:
            write(json.dumps({"at": round(time.time(), 3)} | report.to_json(), ensure_ascii=False) + "\n")
        else:
            self._print(report)
        self._last, self._trouble = report, ""
        return report

    def _print(self, report: Report) -> None:
        changed = changes(self._last, report)
        if (self._last is None or self._trouble) and not changed:
            _say(f"{_clock()} All proofs hold.")
        for proof in changed:
            print_proof(out(), proof, at=_clock())

    def _troubled(self, error: EndpointError) -> None:
        self.holds = False
        if self._json_output:
            told = {"at": round(time.time(), 3), "holds": False, "error": error.message}
            write(json.dumps(told, ensure_ascii=False) + "\n")
        elif error.message != self._trouble:
            _say(f"{_clock()} {error.message}")
        self._trouble = error.message


def print_proof(console: "Console", proof: Proof, at: str = "") -> None:
    """Print one proof: its mark, name and time, what was seen; where it does not hold, the rest below.

    Args:
        at: the time of day, before it.
    """
    mark, style = _MARKS[proof.state]
    head = Text(f"{at} " if at else "")
    head.append(f"{mark} {proof.name:<10}", style=style)
    head.append(f"{format_duration(proof.took_s):>7}  {safe(proof.says)}")
    console.print(head, soft_wrap=True)
    if proof.state in (FAILS, WARNS):
        for word, text in (("otherwise", proof.otherwise), ("→", proof.do)):
            if text:
                told = f"{word}: {text}" if word == "otherwise" else f"{word} {text}"
                console.print(Text(f"{'':<21}{safe(told)}", style="dim"), soft_wrap=True)


def print_evidence(console: "Console", proofs: Iterable[Proof]) -> None:
    """Print what the proofs rest on, a line for each signal."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("proof", "evidence", "", "seen"):
        table.add_column(name, overflow="fold")
    for proof in proofs:
        name = proof.name
        for one in proof.evidence:
            mark, style = _VERDICTS[one.verdict]
            table.add_row(name, Text(safe(one.what)), Text(mark, style=style), Text(safe(one.value)))
            name = ""
    if table.row_count:
        console.print()
        console.print(table)
        print_dim(console, "✓ agrees   ✗ contradicts   · says nothing either way")


def print_verdict(console: "Console", report: Report) -> None:
    """Print what all proofs come to."""
    of = {state: [one.name for one in report.proofs if one.state == state] for state in _MARKS}
    parts = [f"{', '.join(of[state])} {word}" for state, word in ((FAILS, "failed"), (WARNS, "with a warning"))
             if of[state]]  # fmt: skip
    parts += [f"{', '.join(of[SKIPPED])} could not be proven here"] if of[SKIPPED] else []
    told = f" ({'; '.join(parts)})" if parts else ""
    console.print()
    if report.holds:
        words = "All proofs hold" if not of[SKIPPED] else "What can be proven here holds"
        console.print(Text(f"{words}{told}.", style="green"), soft_wrap=True)
    else:
        console.print(Text(f"Not proven{told}.", style="bold red"), soft_wrap=True)


def _steps(verification: Verification, *, light: bool, quiet: bool) -> Iterator[Proof]:
    """The proofs; meanwhile the one that is being made is shown, with the time since it began."""
    steps, stage = verification.steps(light=light), "status"
    while stage:
        with _shown(stage, quiet=quiet):
            step = next(steps, None)
        if isinstance(step, Proof):
            yield step
            step = next(steps, None)
        stage = step if isinstance(step, str) else ""


@contextmanager
def _shown(stage: str, *, quiet: bool) -> Iterator[None]:
    """The stage and the time since it began: redrawn on a terminal, a line elsewhere."""
    console = err()
    if quiet:
        yield
    elif console.is_terminal:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            progress.add_task(stage, total=None)
            yield
    else:
        print_dim(console, f"{stage} …")
        yield


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _say(text: str) -> None:
    out().print(Text(safe(text)), soft_wrap=True)
