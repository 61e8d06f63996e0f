"""Programs that run beside an engine for a while: each has a deadline, and none of their processes outlives it.

A program may start others in sessions of their own, which a signal to its process group does not reach. So each run
has a mark in its environment, which its processes hand on to theirs, and what bears it is ended.

Where this process is killed itself it can end nobody: the kernel kills the program then (`lifeline`), but not what the
program has started.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diptych.serving import lifeline

MARK_ENV = "DIPTYCH_RUN"
_LOOK_EVERY_S = 0.1
_GRACE_S = 2.0
_KILLED_WITHIN_S = 5.0


@dataclass(frozen=True)
class Ended:
    """A program that has ended.

    Args:
        code: its exit status, negative for a signal; None: it was ended here, at its deadline or because asked to.
        output: what was written to standard output.
        log: to standard error.
    """

    code: int | None
    output: str
    log: str


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    mark: str,
    within_s: float,
    stop: threading.Event | None = None,
    with_descendants: bool = False,
) -> Ended:
    """Run a program and wait for it; in the end none of its processes is left, whatever happens.

    Args:
        command: the program and its arguments.
        environment: added to this process's own.
        mark: of this run alone.
        within_s: seconds until it is ended.
        stop: ends it at once when it is set.
        with_descendants: wait for what the program left running, too: a daemon of its own.

    Raises:
        OSError: it can't be started.
    """
    stop = stop or threading.Event()
    until = time.monotonic() + within_s
    with tempfile.TemporaryDirectory(prefix="diptych-") as folder:
        told = {name: Path(folder) / name for name in ("output", "log")}
        with told["output"].open("wb") as output, told["log"].open("wb") as log:
            process = subprocess.Popen(
                _lifelined(command),
                env={**os.environ, **environment, MARK_ENV: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                start_new_session=True,
            )
            try:
                while _is_on(process, mark if with_descendants else None):
                    if time.monotonic() > until or stop.wait(_LOOK_EVERY_S):
                        break
                ended_itself = not _is_on(process, mark if with_descendants else None)
                if not ended_itself:
                    _ask_to_end(process)
            finally:
                _kill(process, mark)
        texts = {name: path.read_text(errors="replace") for name, path in told.items()}
    return Ended(process.returncode if ended_itself else None, **texts)


def _lifelined(command: Sequence[str]) -> list[str]:
    """The command, so that it ends with this thread.

    Not by way of `preexec_fn`, which would fork a process of many threads and have Python run in the copy.

    Raises:
        FileNotFoundError: there is no such program.
    """
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"{command[0]} is no program that can be run here.")
    return [sys.executable, "-I", "-S", lifeline.__file__, str(os.getpid()), *command]


def marked(mark: str) -> list[int]:
    """The processes of this user, in this container, that bear a run's mark; none where there is no /proc."""
    wanted = f"{MARK_ENV}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it is gone, or somebody else's
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _is_on(process: "subprocess.Popen[bytes]", mark: str | None) -> bool:
    return process.poll() is None or (mark is not None and bool(marked(mark)))


def _ask_to_end(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(_GRACE_S)


def _kill(process: "subprocess.Popen[bytes]", mark: str) -> None:
    """End the program's group and all that bears the mark, which may start others meanwhile."""
    until = time.monotonic() + _KILLED_WITHIN_S
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    while (left := marked(mark)) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_EVERY_S / 10)
