"""Is an engine alive and moving? Read from the process table and from its pulse.

An engine is dead when its process is gone, stopped (SIGSTOP counts: it answers nobody) or stuck: work waits, and no
step is heard of for too long. How long that is depends on whether it computes:

    neither it nor its workers use processor time    STUCK_AFTER_S; with one look more it is noticed within 10 s
    they do, or its workers are out of sight         at least SPINNING_AFTER_S, and at least `_TIMES` times the
                                                     longest step so far, and what this one was expected to take

An engine on CPUs that computes a long prompt uses processor time, and so does one whose GPU or peers hang: it waits for
them in a busy loop. Nothing but time tells them apart. What its own steps take is known where they were measured, and
`_TIMES` leaves room for what a short prompt does not show of a long one: attention takes more per token.

Workers are in sight where vLLM starts them as processes of the engine's. Where they are Ray's actors (as Ray Serve LLM
has them on GPUs when an engine has several), the engine waits for them without any processor time, at work or not.

SPINNING_AFTER_S is vLLM's own bound on one step of its workers (`VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS`). What no earlier
step shows fits in it: kernels that are compiled for a new size, an image encoder's first pass. An engine that is killed
at work is killed again by the same prompt, so that too long a limit is the lesser harm.

Looks that come late prove nothing of the engine: while a container is paused, or this process is held up, time counts
for neither.
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

STUCK_AFTER_S = 8.0
SPINNING_AFTER_S = 300.0
_TIMES = 5.0
_STOPPED_STATES = frozenset("Tt")
_GONE_STATES = frozenset("ZX")
_NEGLIGIBLE_CPU_S = 0.05
_LOOKS_APART_S = 3.0
"""What lies between two looks beyond that counts for nobody: we were held up, and perhaps the engine with us."""


@dataclass(frozen=True)
class ProcessSample:
    """One look at a process: its state letter from /proc and the processor seconds it has used."""

    state: str
    cpu_s: float

    @classmethod
    def of(cls, pid: int) -> "ProcessSample | None":
        """None when there is no such process."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        return cls(fields[0], (int(fields[11]) + int(fields[12])) / ticks)


@dataclass
class EngineVitals:
    """Follows one engine process, with the workers that it started.

    `problem` is why it counts as dead, or None. Call `look` about once a second.

    Args:
        pid: of the engine; None: there is none to be looked at.
        sees_workers: whether its workers are processes that it started itself.
    """

    pid: int | None
    problem: str | None = None
    sees_workers: bool = True
    _stepped_at: float = field(default_factory=time.monotonic)
    _computed_at: float = field(default_factory=time.monotonic)
    _looked_at: float = field(default_factory=time.monotonic)
    _longest_step_s: float = 0.0
    _expected_s: float = 0.0
    _steps: int = -1
    _cpu_s: float = -1.0

    def look(self, waiting: int, steps: int, expected_s: float = 0.0) -> str | None:
        """Take one look.

        Args:
            waiting: requests that the engine has not finished.
            steps: how many steps of the engine were heard of so far.
            expected_s: what a step may take with what waits; infinite where steps are not told. The most that was
                expected since the last step counts: a client who leaves does not shorten the step that is under way.
        """
        if self.pid is None or self.problem is not None:
            return self.problem
        now = time.monotonic()
        self._leave_out(now - self._looked_at - _LOOKS_APART_S)
        self._looked_at = now
        self._hear(now, steps, expected_s)
        sample = ProcessSample.of(self.pid)
        if sample is None or sample.state in _GONE_STATES:
            self.problem = f"engine process {self.pid} is gone"
        elif sample.state in _STOPPED_STATES:
            self.problem = f"engine process {self.pid} is stopped (a signal stopped it)"
        elif waiting:
            self.problem = self._stuck(now, waiting)
        else:
            self._stepped_at = self._computed_at = now
        return self.problem

    def _leave_out(self, seconds: float) -> None:
        """Have so much of the time that has passed count for nothing."""
        if seconds > 0:
            self._stepped_at += seconds
            self._computed_at += seconds

    def _hear(self, now: float, steps: int, expected_s: float) -> None:
        """Take in how many steps there were, and what the one under way may take."""
        if steps != self._steps:
            self._longest_step_s = max(self._longest_step_s, now - self._stepped_at)
            self._stepped_at = self._computed_at = now
            self._steps, self._expected_s = steps, 0.0
        self._expected_s = max(self._expected_s, expected_s)

    def _stuck(self, now: float, waiting: int) -> str | None:
        cpu_s = _cpu_s_of_all(self.pid or 0)
        # It falls when a worker ends, which takes its share along.
        if abs(cpu_s - self._cpu_s) > _NEGLIGIBLE_CPU_S:
            self._computed_at, self._cpu_s = now, cpu_s
        still_s = now - self._stepped_at
        said = f"engine process {self.pid} took no step for {still_s:.0f} s"
        is_idle = now - self._computed_at >= STUCK_AFTER_S
        if is_idle and self.sees_workers:
            return f"{said}, {waiting} waiting"
        if still_s >= max(SPINNING_AFTER_S, _TIMES * max(self._longest_step_s, self._expected_s)):
            return f"{said}{'' if is_idle else ' though it is busy'}, {waiting} waiting"
        return None

    def end(self) -> None:
        """Kill the engine process: a stopped one would outlive the replica that replaces it."""
        if self.pid is not None and ProcessSample.of(self.pid) is not None:
            os.kill(self.pid, signal.SIGKILL)


def _cpu_s_of_all(pid: int) -> float:
    """The processor seconds that a process and those that it started have used, as far as they live."""
    sample = ProcessSample.of(pid)
    return (sample.cpu_s if sample else 0.0) + sum(_cpu_s_of_all(child) for child in _children(pid))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for told in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            found += map(int, told.read_text().split())
    return found
