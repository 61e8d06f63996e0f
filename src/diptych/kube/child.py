"""A program that runs: its lines as they come, Ctrl-C passed on to it, and nothing of it left behind."""

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from math import inf
from typing import IO

LEAVE_S = 30.0
"""For a program to end by itself after Ctrl-C; eksctl and helm tidy up."""
TERMINATE_S = 5.0
_TICK_S = 0.2
_READ_S = 2.0
"""For our threads to read what a program printed at its end, on a machine that is busy."""


class Child:
    """A program in a session of its own, so that a terminal's Ctrl-C reaches it through us only."""

    def __init__(self, command: list[str], env: Mapping[str, str] | None, input: str | None) -> None:
        self.code = 0
        self._found: queue.Queue[tuple[bool, str | None]] = queue.Queue()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        for is_output, stream in ((True, self._process.stdout), (False, self._process.stderr)):
            threading.Thread(target=self._read, args=(is_output, stream), daemon=True).start()
        if input is not None:
            threading.Thread(target=self._write, args=(input,), daemon=True).start()

    def lines(self) -> Iterator[tuple[bool, str | None]]:
        """Each line, and whether it is standard output; None every now and then, until both streams end."""
        open_streams, ended_at = 2, inf
        while open_streams:
            try:
                is_output, text = self._found.get(timeout=_TICK_S)
            except queue.Empty:
                ended_at = min(ended_at, time.monotonic()) if self._has_ended() else inf
                if time.monotonic() - ended_at > _READ_S:
                    break  # something that it left behind holds the streams open
                yield False, None
                continue
            ended_at = inf
            if text is None:
                open_streams -= 1
            else:
                yield is_output, text
        while not self._has_ended():
            yield False, None
            time.sleep(0.01)

    def leave(self) -> None:
        """Pass Ctrl-C on and let it end by itself; another Ctrl-C hastens it."""
        try:
            self._signal(signal.SIGINT)
            self._wait(LEAVE_S)
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):
                self._stop()

    def end(self) -> None:
        """End what is left of it, whatever else it started included."""
        while True:
            try:
                if not self._has_ended():
                    self._stop()
                self._signal(signal.SIGKILL)  # of a leader that ended, its group may still live
                self.code = self._process.wait()
                return
            except KeyboardInterrupt:
                continue

    def _stop(self) -> None:
        self._signal(signal.SIGTERM)
        if not self._wait(TERMINATE_S):
            self._signal(signal.SIGKILL)
            self._wait(TERMINATE_S)

    def _wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._has_ended():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _has_ended(self) -> bool:
        """Whether the leader is done. It is not reaped, so that its group's number stays ours."""
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _read(self, is_output: bool, stream: IO[str]) -> None:
        with contextlib.suppress(ValueError, OSError):
            for line in stream:
                self._found.put((is_output, line.rstrip("\r\n")))
        self._found.put((is_output, None))

    def _write(self, text: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(text)
            self._process.stdin.close()
