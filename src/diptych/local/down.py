"""Take a service down: exactly what its `up` started, proven by looking again."""

import contextlib
import shutil
import time
from dataclasses import dataclass

from diptych.errors import NotUpError, StartError
from diptych.local.paths import ServicePaths
from diptych.local.processes import Mark, ServiceProcess, end_all, marked
from diptych.local.state import ServiceState, exclusive, load


@dataclass(frozen=True)
class Ended:
    """What `down` ended: the processes that were there, and how long it took in seconds."""

    name: str
    processes: list[ServiceProcess]
    took_s: float


def take_down(name: str) -> Ended:
    """End a service and forget it.

    Raises:
        NotUpError: there is no such service here, and nothing of one is left.
        StartError: some of its processes could not be ended; the message lists them.
    """
    paths = ServicePaths.of(name)
    if not paths.directory.is_dir():
        raise NotUpError(f"No service called {name!r} is up on this machine.")
    started = time.monotonic()
    with exclusive(paths):
        state = load(paths)
        mark = _mark(paths, state)
        found = marked(mark)
        if state is None and not found:
            _forget(paths, mark)
            raise NotUpError(f"No service called {name!r} is up on this machine.")
        _end(paths, mark)
    return Ended(name, found, time.monotonic() - started)


def clear_leftovers(paths: ServicePaths) -> None:
    """End what an earlier run left behind (its keeper was killed, say).

    Raises:
        StartError: something of it could not be ended.
    """
    _end(paths, _mark(paths, load(paths)))


def _mark(paths: ServicePaths, state: ServiceState | None) -> Mark:
    return state.mark if state else Mark("", paths.ray)


def _end(paths: ServicePaths, mark: Mark) -> None:
    left = end_all(mark)
    if left:
        rows = ", ".join(f"{process.name} (pid {process.pid})" for process in left)
        raise StartError(
            f"These processes could not be ended: {rows}.", "End them by hand, then run `diptych down` again."
        )
    _forget(paths, mark)


def _forget(paths: ServicePaths, mark: Mark) -> None:
    """Remove what a run left on disk: keys first, Ray's logs last. A read-only disk keeps them; no process does."""
    paths.forget()
    with contextlib.suppress(OSError):
        paths.events.unlink(missing_ok=True)
    shutil.rmtree(mark.ray_directory, ignore_errors=True)
