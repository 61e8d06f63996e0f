"""Time in the fake: what takes AWS minutes takes a fraction of a second here, in the same order."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime


class StoppedError(Exception):
    """The fake was stopped while something in it still went on."""


class Clock:
    """Waits for AWS's durations, shortened.

    Args:
        scale: seconds of ours for one of AWS's; 0.001 makes nine minutes half a second.
    """

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self._stopped = threading.Event()

    def now(self) -> datetime:
        """The true time: what is made now was made now, however short it took."""
        return datetime.now(UTC)

    def wait(self, seconds: float) -> None:
        """Wait for so many of AWS's seconds; raises `StoppedError` when the fake ends."""
        if self._stopped.wait(seconds * self.scale):
            raise StoppedError

    def until(self, condition: Callable[[], bool], every: float = 5.0) -> None:
        """Wait until the condition holds; looks again after `every` of AWS's seconds, 20 ms at least."""
        while not condition():
            if self._stopped.wait(max(0.02, every * self.scale)):
                raise StoppedError

    def start(self, work: Callable[[], None]) -> threading.Thread:
        """Do it beside everything else; it ends with the fake."""

        def run() -> None:
            try:
                work()
            except Exception:
                if not self._stopped.is_set():  # afterwards nothing is there to talk to
                    raise

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        """Do it after so many of AWS's seconds."""

        def run() -> None:
            self.wait(seconds)
            work()

        self.start(run)

    def stop(self) -> None:
        """End all waiting."""
        self._stopped.set()


def stamp() -> float:
    """Seconds since some start, for durations."""
    return time.monotonic()
