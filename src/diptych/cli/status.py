"""`diptych status`: a table per service, or JSON."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rich.table import Table

from diptych.cli.console import format_bytes, format_duration, out, print_error
from diptych.cli.places import LOCAL, Up, services, the_service
from diptych.errors import AccountError, ClusterError, DiptychError, DocumentError, NotUpError
from diptych.local.status import Status, look

if TYPE_CHECKING:
    from diptych.cli.cluster_status import NoCluster
    from diptych.eks.costs import Meter
    from diptych.kube.status import ClusterStatus

    Seen: TypeAlias = Status | ClusterStatus | NoCluster

INTERRUPTED = 130
_EVERY_S = 2.0


def run_status(file: Path | None, name: str | None, *, watch: bool, json_output: bool) -> int:
    """Print what is up; 0 when everything shown is ready, 1 when something is not, 3 when nothing is up.

    Raises:
        NotUpError: the named service is not up (without `--json` also: nothing is up).
        DocumentError: a document and a name are given.
        DiptychError: the account or cluster of the one service that is meant can't be asked.
    """
    if not watch:
        return _tell(_find(file, name), json_output=json_output)
    from diptych.eks.costs import Meter

    code, meter = INTERRUPTED, Meter()
    try:
        while True:
            code = _again(file, name, meter, json_output=json_output)
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:
        return code


def _again(file: Path | None, name: str | None, meter: "Meter", *, json_output: bool) -> int:
    """One look of a watch, on a terminal in place of the one before; what can't be asked now is asked again."""
    try:
        found = _find(file, name, meter)
        if not json_output and out().is_terminal:
            out().clear()
        return _tell(found, json_output=json_output)
    except DocumentError:
        raise
    except DiptychError as error:
        print_error(error)
        return error.exit_code


def _find(file: Path | None, name: str | None, meter: "Meter | None" = None) -> "list[Seen]":
    """How everything is that is meant."""
    wanted = [the_service(file, name)] if file is not None else services(name)
    if name and not wanted:
        raise NotUpError(f"No service called {name!r} is up on this machine.", "`diptych up` starts one.")
    is_alone = len(wanted) == 1
    return [seen for up in wanted if (seen := _look(up, meter, is_alone=is_alone)) is not None]


def _tell(found: "list[Seen]", *, json_output: bool) -> int:
    if json_output:
        answer = found[0].to_json() if len(found) == 1 else [status.to_json() for status in found]
        print(json.dumps(answer, indent=2))
    elif not found:
        raise NotUpError("Nothing is up on this machine.", "`diptych up` starts a service.")
    else:
        for status in found:
            _print(status)
    if not found:
        return NotUpError.exit_code
    return 0 if all(status.ready for status in found) else 1


def _look(up: Up, meter: "Meter | None", *, is_alone: bool) -> "Seen | None":
    if up.place == LOCAL:
        return look(up.name)
    from diptych.cli.cluster_status import NoCluster, look_at

    try:
        return look_at(up, meter)
    except (AccountError, ClusterError) as error:
        if is_alone:
            raise
        return NoCluster(up, (), None, error.message)  # the others are shown all the same


def _print(status: "Seen") -> None:
    if isinstance(status, Status):
        _show(status)
        return
    from diptych.cli.cluster_status import show

    show(status)


def _show(status: Status) -> None:
    console, state = out(), status.state
    word = "ready" if status.ready else "not ready"
    since = format_duration(time.time() - (state.ready_at or state.started_at))
    console.print(
        f"{state.name}: {word}, {state.model} ({state.topology}) at {state.url}/v1, since {since}",
        highlight=False,
    )
    if status.blocker:
        console.print(f"  blocked: {status.blocker}", highlight=False, markup=False)
    if status.fallback:
        console.print(f"  fallback allowed: {status.fallback}", highlight=False, markup=False)
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for column in ("phase", "ready", "engine pid", "memory", "requests", "prompt tokens", "KV received"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for phase in status.phases.values():
        counters = [one["counters"] for one in phase.replica_details]
        table.add_row(
            phase.phase,
            f"{phase.ready}/{phase.replicas}",
            str(phase.pid or "–"),
            format_bytes(phase.memory_bytes),
            "–" if phase.requests is None else str(phase.requests),
            f"{sum(c['prompt_tokens'] for c in counters):.0f}" if counters else "–",
            format_bytes(sum(c["kv_transfer_bytes"] for c in counters)) if counters else "–",
        )
    console.print(table)
    console.print(
        f"  {status.processes} processes, {format_bytes(status.memory_bytes)} resident in all",
        style="dim",
        highlight=False,
    )
