"""The processes of a service, found by the mark they inherit: its run id in their environment.

A mark survives what a table of process ids does not: a crash of `up`, a reused id, a worker that Ray started later.
"""

import contextlib
import os
import signal
import stat
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK_ENV = "DIPTYCH_SERVICE"
_RAY_WORKER_TITLE = "ray::"
_REPLICA_TITLE = f"{_RAY_WORKER_TITLE}ServeReplica:"
_ENGINE_TITLE = "VLLM::"
PHASES = ("prefill", "decode", "aggregated")


@dataclass(frozen=True)
class ServiceProcess:
    """One process of a service.

    `phase` is "prefill", "decode", "aggregated" or "" (Ray and the keeper); `role` within a phase is "replica"
    (faces the other processes), "engine" (computes) or "helper".
    """

    pid: int
    name: str
    phase: str
    role: str
    rss_bytes: int
    status: str

    @property
    def is_stopped(self) -> bool:
        return self.status == psutil.STATUS_STOPPED

    @property
    def waits_for_others(self) -> bool:
        """Whether it is a worker of Ray's without an engine: told to end, it first waits for calls to come back."""
        return self.name.startswith(_RAY_WORKER_TITLE) and self.role != "engine"


@dataclass(frozen=True)
class Mark:
    """How the processes of one run of a service are told from all others.

    Processes that rename themselves (Ray's agents) overwrite the environment they show; those are known by the
    files they hold open in Ray's temporary directory, which is this service's alone.
    """

    run_id: str
    ray_directory: Path

    def is_on(self, process: psutil.Process) -> bool:
        """Whether the process belongs to this run. False for one that may not be looked at."""
        try:
            if process.environ().get(MARK_ENV) == self.run_id:
                return True
        except (psutil.Error, OSError):
            return False
        return self._holds_files(process.pid)

    def _holds_files(self, pid: int) -> bool:
        """Whether the process writes there: somebody who only reads a log is none of ours."""
        prefix = f"{self.ray_directory}/"
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    is_written = entry.stat(follow_symlinks=False).st_mode & stat.S_IWUSR
                    # Path.readlink costs much more.
                    if is_written and os.readlink(entry.path).startswith(prefix):  # noqa: PTH115
                        return True
        return False


def marked(mark: Mark) -> list[ServiceProcess]:
    """Every process of the run, zombies and the caller itself excepted."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            is_other = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if is_other and mark.is_on(process):
                found.append(_describe(process))
    return found


def _describe(process: psutil.Process) -> ServiceProcess:
    with process.oneshot():
        title, parent = _title(process), _title(process.parent())
        phase = _phase_in(title) or _phase_in(parent)
        role = _role(title, parent) if phase else ""
        return ServiceProcess(process.pid, title, phase, role, process.memory_info().rss, process.status())


def _role(title: str, parent: str) -> str:
    """A forked engine keeps its replica's title, a spawned one has vLLM's."""
    if title.startswith(_ENGINE_TITLE) or (_REPLICA_TITLE in title and _REPLICA_TITLE in parent):
        return "engine"
    return "replica" if _REPLICA_TITLE in title else "helper"


def _title(process: psutil.Process | None) -> str:
    with contextlib.suppress(psutil.Error, OSError):
        if process is not None:
            return (process.cmdline() or [process.name()])[0] or process.name()
    return ""


def _phase_in(title: str) -> str:
    """The phase in the title of a replica, like `ray::ServeReplica:diptych:Decode:smollm2`."""
    return next((phase for phase in PHASES if f":{phase.capitalize()}:" in title), "")


def end_all(mark: Mark, *, grace_s: float = 5.0, spare: frozenset[int] = frozenset()) -> list[ServiceProcess]:
    """End every process that belongs to the run: SIGTERM, then SIGKILL after `grace_s` seconds.

    Workers of Ray's get SIGKILL as soon as no engine is left: those they wait for have been ended, too, and Ray's node
    process waits for them.

    Returns:
        the processes that are still there after that (another user's, or stuck in the kernel).
    """
    _signal(marked(mark), signal.SIGTERM, spare)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        left = [p for p in marked(mark) if p.pid not in spare]
        if not left:
            return []
        if not any(process.role == "engine" for process in left):
            _signal([process for process in left if process.waits_for_others], signal.SIGKILL, spare)
        time.sleep(0.2)
    for _ in range(20):  # again and again: one that is dying may still have started another
        left = [p for p in marked(mark) if p.pid not in spare]
        if not left:
            return []
        _signal(left, signal.SIGKILL, spare)
        time.sleep(0.2)
    return [p for p in marked(mark) if p.pid not in spare]


def _signal(processes: list[ServiceProcess], number: signal.Signals, spare: frozenset[int]) -> None:
    for process in processes:
        if process.pid not in spare:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def is_alive(pid: int, mark: Mark) -> bool:
    """Whether `pid` is a live process of this service (and not another that took its number)."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and mark.is_on(process)
    except (psutil.Error, OSError):
        return False
