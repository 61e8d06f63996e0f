"""`diptych status`: a table per service, or JSON."""

import json
import time

from rich.table import Table

from diptych.cli.console import format_bytes, format_duration, out
from diptych.errors import NotUpError
from diptych.local.status import Status, look, look_at_all


def run_status(name: str | None, *, json_output: bool) -> int:
    """Print what is up; 0 when everything shown is ready, 1 when something is not, 3 when nothing is up.

    Raises:
        NotUpError: the named service is not up (without `--json` also: nothing is up).
    """
    found = [status for status in [look(name)] if status] if name else look_at_all()
    if name and not found:
        raise NotUpError(f"No service called {name!r} is up on this machine.", "`diptych up` starts one.")
    if json_output:
        answer = found[0].to_json() if len(found) == 1 else [status.to_json() for status in found]
        print(json.dumps(answer, indent=2))
    elif not found:
        raise NotUpError("Nothing is up on this machine.", "`diptych up` starts a service.")
    else:
        for status in found:
            _show(status)
    if not found:
        return NotUpError.exit_code
    return 0 if all(status.ready for status in found) else 1


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
