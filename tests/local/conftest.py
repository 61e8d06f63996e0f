"""Processes that stand for a service's: real ones, marked, titled and stubborn as the test wants."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from diptych.local.processes import MARK_ENV, Mark

Start = Callable[..., psutil.Process]


@pytest.fixture
def mark(tmp_path: Path) -> Mark:
    ray = tmp_path / "ray"
    ray.mkdir()
    return Mark("run-of-this-test", ray)


@pytest.fixture
def start(mark: Mark) -> Iterator[Start]:
    """Start a process: Python code, or `sleep` under a title; marked unless said otherwise."""
    started: list[subprocess.Popen[str]] = []

    def begin(code: str | None = None, *, title: str | None = None, marked: bool = True) -> psutil.Process:
        environment = {key: value for key, value in os.environ.items() if key != MARK_ENV}
        if marked:
            environment[MARK_ENV] = mark.run_id
        if code is None:
            command, executable = [title or "sleep", "60"], "/bin/sleep"
        else:
            command, executable = (
                [sys.executable, "-c", code + "\nprint('up', flush=True); import time; time.sleep(60)"],
                None,
            )
        process = subprocess.Popen(
            command, executable=executable, env=environment, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        if code is not None:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
        else:
            _until_executed(process.pid, command)
        return psutil.Process(process.pid)

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def _until_executed(pid: int, command: list[str]) -> None:
    while psutil.Process(pid).cmdline() != command:
        time.sleep(0.01)
