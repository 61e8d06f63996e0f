"""Who else used the cores while a service on this machine was measured."""

import os
import time
from collections.abc import Iterable

import psutil

from diptych.cli.places import LOCAL, Up

_SHARE = 0.1
"""Of the cores; less is what any machine does beside."""


class OtherPrograms:
    """Watches the cores of a service whose engines compute on them, while the block runs."""

    def __init__(self, up: Up) -> None:
        from diptych.local.hardware import detect

        hardware = detect()
        self._up = up
        self._cores = () if up.place != LOCAL or hardware.gpus else hardware.cores
        self.used = 0.0

    def __enter__(self) -> "OtherPrograms":
        if self._cores:
            self._began, self._busy, self._ours = time.monotonic(), _busy_s(self._cores), self._ours_s()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave in `used` how many cores other programs kept busy on average."""
        if not self._cores:
            return
        ours = sum(seconds - self._ours.get(pid, 0.0) for pid, seconds in self._ours_s().items())
        others = _busy_s(self._cores) - self._busy - ours
        self.used = max(0.0, others / (time.monotonic() - self._began))

    @property
    def doubts(self) -> tuple[str, ...]:
        """What that says against a run."""
        if self.used <= _SHARE * len(self._cores):
            return ()
        return (f"other programs kept {self.used:.1f} of {len(self._cores)} cores busy",)

    def _ours_s(self) -> dict[int, float]:
        """Seconds that the service's processes have computed, by pid, and this one with the clients it started."""
        from diptych.local.paths import ServicePaths
        from diptych.local.processes import marked
        from diptych.local.state import load

        state = load(ServicePaths.of(self._up.name))
        pids = [process.pid for process in marked(state.mark)] if state else []
        own = os.times()
        return {**_computed_s(pids), os.getpid(): sum(own[:4])}


def _computed_s(pids: Iterable[int]) -> dict[int, float]:
    found = {}
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            continue
        found[pid] = times.user + times.system
    return found


def _busy_s(cores: Iterable[int]) -> float:
    """Seconds for which these cores were busy since the machine started."""
    every = psutil.cpu_times(percpu=True)
    return sum(
        sum(times) - times.idle - sum(getattr(times, name, 0.0) for name in ("iowait", "guest", "guest_nice"))
        for core, times in enumerate(every)
        if core in set(cores)
    )
