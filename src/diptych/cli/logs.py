"""`diptych logs`: the engines' logs by phase, merged and readable."""

import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from diptych.cli.console import err, print_dim, write
from diptych.cli.places import LOCAL, Up, cluster_of, job_of
from diptych.engine_log import clean
from diptych.errors import ClusterError, DocumentError, NotUpError
from diptych.local.logs import PHASES, other_log_files, phase_log_files
from diptych.local.paths import ServicePaths
from diptych.local.state import load
from diptych.render.layout import worker_groups

if TYPE_CHECKING:
    from diptych.kube.logs import Line

_POLL_S = 0.5
RAY = "ray"


def run_logs(up: Up, phase: str | None, *, follow: bool, lines: int) -> int:
    """Print the last lines of each phase, then, with `follow`, what comes.

    Raises:
        NotUpError: there are no logs of that service.
        DocumentError: there is no such phase.
    """
    if phase is not None and phase not in (*PHASES, RAY):
        raise DocumentError(f"{phase!r} is not a phase.", f"One of: {', '.join((*PHASES, RAY))}.")
    if up.place != LOCAL:
        return _of_cluster(up, phase, follow=follow, lines=lines)
    name = up.name
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


def _of_cluster(up: Up, phase: str | None, *, follow: bool, lines: int) -> int:
    """The logs of a service on a cluster: what its pods print and what Ray keeps there, merged by time."""
    from diptych.kube.logs import PhaseLogs
    from diptych.progress import View

    document = up.known.document
    wanted = (phase,) if phase else tuple(group.name for group in worker_groups(document))
    job = job_of(up, View())
    with cluster_of(up, job) as cluster, ExitStack() as stack:
        logs = {name: stack.enter_context(PhaseLogs(cluster, document, name)) for name in wanted}
        for name, each in logs.items():
            _write_lines(name, each.look(lines), prefix=len(wanted) > 1)
            if each.missing:
                print_dim(err(), f"{name}: without the engines' own lines: {each.missing}")
        while follow:
            time.sleep(_POLL_S)
            for name, each in logs.items():
                with suppress(ClusterError):  # it is asked again
                    _write_lines(name, each.look(), prefix=len(wanted) > 1)
    return 0


def _write_lines(phase: str, lines: "Iterable[Line]", *, prefix: bool) -> None:
    for line in lines:
        write(f"{phase}: {line}\n" if prefix else f"{line}\n")
