"""Is an engine alive and moving? Read from the process table and the engine's own counters.

An engine is dead when its process is gone, stopped (SIGSTOP counts: it answers nobody) or stuck: work waiting and,
for `STUCK_AFTER_S`, neither a step counted nor processor time used.
"""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

STUCK_AFTER_S = 10.0
_STOPPED_STATES = frozenset("Tt")
_GONE_STATES = frozenset("ZX")
_NEGLIGIBLE_CPU_S = 0.05


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
    """Follows one engine process.

    `problem` is why it counts as dead, or None. Call `look` about once a second.
    """

    pid: int | None
    problem: str | None = None
    _moved_at: float = field(default_factory=time.monotonic)
    _steps: float = -1.0
    _cpu_s: float = -1.0

    def look(self, waiting: int, steps: float) -> str | None:
        """Take one look.

        Args:
            waiting: requests that the engine has not finished.
            steps: the engine's count of steps so far, from its own metrics.
        """
        if self.pid is None or self.problem is not None:
            return self.problem
        sample = ProcessSample.of(self.pid)
        if sample is None or sample.state in _GONE_STATES:
            self.problem = f"engine process {self.pid} is gone"
        elif sample.state in _STOPPED_STATES:
            self.problem = f"engine process {self.pid} is stopped (a signal stopped it)"
        elif waiting and self._stands_still(sample.cpu_s, steps):
            self.problem = (
                f"engine process {self.pid} took no step for {STUCK_AFTER_S:.0f} s, {waiting} waiting"
            )
        elif not waiting:
            self._moved_at = time.monotonic()
        return self.problem

    def _stands_still(self, cpu_s: float, steps: float) -> bool:
        now = time.monotonic()
        if steps != self._steps or cpu_s - self._cpu_s > _NEGLIGIBLE_CPU_S:
            self._moved_at, self._steps, self._cpu_s = now, steps, cpu_s
        return now - self._moved_at >= STUCK_AFTER_S

    def end(self) -> None:
        """Kill the engine process: a stopped one would outlive the replica that replaces it."""
        if self.pid is not None and ProcessSample.of(self.pid) is not None:
            os.kill(self.pid, signal.SIGKILL)
