"""`diptych verify`: a line for each proof and what it rests on, or JSON; once, or for as long as it is watched."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from diptych.cli.console import err, format_duration, out, print_dim, safe, write
from diptych.errors import DocumentError, EndpointError
from diptych.verify.proof import FAILS, HOLDS, SKIPPED, WARNS, Proof, Report
from diptych.verify.run import Verification, changes

if TYPE_CHECKING:
    from rich.console import Console

    from diptych.endpoint import Endpoint

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
    remember: Callable[[str | None], None] = lambda says: None,
) -> int:
    """Make all proofs once and print them; 0 when none fails, else 1.

    Args:
        remember: told what transport was put up with, in a sentence; None when it is the one that was asked for.

    Raises:
        EndpointError: the endpoint does not answer, refuses the key, or can't be probed; what was proven so far
            stays printed.
    """
    with Verification(endpoint, allow_fallback=allow_fallback) as verification:
        for step in _steps(verification, light=False, quiet=json_output):
            if not json_output:
                print_proof(out(), step)
        report = verification.report()
    proof = next(one for one in report.proofs if one.name == "transport")
    if proof.state == HOLDS or (proof.state == WARNS and allow_fallback):
        remember(proof.says if proof.state == WARNS else None)
    if json_output:
        write(json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n")
    else:
        print_evidence(out(), report.proofs)
        print_verdict(out(), report)
    return 0 if report.holds else 1


def run_watch(endpoint: "Endpoint", *, json_output: bool, allow_fallback: bool, period_s: float) -> int:
    """Make light proofs every `period_s` seconds until Ctrl-C; print what changes, or one line of JSON each time.

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
                watch.round(verification)
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

    def round(self, verification: Verification) -> None:
        """Make the proofs; a service that does not answer is a change like any other."""
        try:
            for _ in _steps(verification, light=True, quiet=True):
                pass
        except EndpointError as error:
            self._troubled(error)
            return
        report = verification.report()
        self.holds = report.holds
        if self._json_output:
            write(json.dumps({"at": round(time.time(), 3)} | report.to_json(), ensure_ascii=False) + "\n")
        else:
            self._print(report)
        self._last, self._trouble = report, ""

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


def service_of(file: Path) -> str:
    """The name of the service that a document stands for.

    Raises:
        DocumentError: it can't be read, or is for another place.
    """
    from diptych.spec import load

    document = load(file, [])
    if document.on != "local":
        raise DocumentError(
            f"`verify` can't reach a service on {document.on} yet: this version proves those on this machine.",
            "The endpoint's own POST /diptych/v1/probe works everywhere; docs/json.md has its shape.",
        )
    return document.name
