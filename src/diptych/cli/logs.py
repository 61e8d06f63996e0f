"""`diptych logs`: the engines' logs by phase, merged and readable."""

import time
from pathlib import Path

from diptych.cli.console import write
from diptych.errors import DocumentError, NotUpError
from diptych.local.logs import PHASES, clean, other_log_files, phase_log_files
from diptych.local.paths import ServicePaths
from diptych.local.state import load

_POLL_S = 0.5
RAY = "ray"


def run_logs(name: str, phase: str | None, *, follow: bool, lines: int) -> int:
    """Print the last lines of each phase, then, with `follow`, what comes.

    Raises:
        NotUpError: there are no logs of that service.
        DocumentError: there is no such phase.
    """
    if phase is not None and phase not in (*PHASES, RAY):
        raise DocumentError(f"{phase!r} is not a phase.", f"One of: {', '.join((*PHASES, RAY))}.")
    paths = ServicePaths.of(name)
    state = load(paths)
    directory = state.ray_logs if state else paths.ray_logs
    if not directory.is_dir():
        raise NotUpError(f"There are no logs of a service called {name!r} here.", "`diptych up` starts one.")
    wanted = (phase,) if phase else tuple(PHASES)
    read: dict[Path, int] = {}
    for each in wanted:
        _print_new(each, _files(directory, each), read, lines, prefix=len(wanted) > 1)
    while follow and directory.is_dir():
        time.sleep(_POLL_S)
        for each in wanted:
            _print_new(each, _files(directory, each), read, None, prefix=len(wanted) > 1)
    return 0


def _files(directory: Path, phase: str) -> list[Path]:
    return other_log_files(directory) if phase == RAY else phase_log_files(directory, phase)


def _print_new(
    phase: str, files: list[Path], read: dict[Path, int], limit: int | None, *, prefix: bool
) -> None:
    fresh = []
    for path in files:
        with path.open("rb") as file:
            file.seek(read.get(path, 0))
            text = file.read().decode(errors="replace")
            read[path] = file.tell()
        fresh += [line for raw in text.splitlines() if (line := clean(raw)) is not None]
    for line in fresh[-limit:] if limit else fresh:
        write(f"{phase}: {line}\n" if prefix else line + "\n")
