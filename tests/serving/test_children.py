"""Programs beside the engine: how they end, and that nothing of theirs is left."""

import contextlib
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from diptych.serving.children import marked, run

MARK = uuid.uuid4().hex
# Starts a process in a session of its own, as a daemon does, and ends itself.
DAEMON = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep({lasts})'], "
    "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); print('left')"
)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().partition("lifeline.py")[0]
    return ""


def until(said: Callable[[], bool], within_s: float = 20.0) -> None:
    ends_at = time.monotonic() + within_s
    while not said():
        assert time.monotonic() < ends_at, "it did not come to that"
        time.sleep(0.02)


def test_what_it_printed_and_how_it_ended() -> None:
    code = "import os, sys; print(os.environ['A']); print('no', file=sys.stderr); sys.exit(3)"
    ended = run(python(code), {"A": "yes"}, mark=MARK, within_s=20)
    assert (ended.code, ended.output, ended.log) == (3, "yes\n", "no\n")


def test_at_its_deadline_it_is_ended_with_all_that_it_started() -> None:
    code = DAEMON.format(lasts=60) + "; import time; time.sleep(60)"
    began = time.monotonic()
    ended = run(python(code), {}, mark=MARK, within_s=1.0)
    assert ended.code is None
    assert time.monotonic() - began < 10
    assert marked(MARK) == []


def test_a_program_that_heeds_no_signal_is_ended_as_well() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code = f"{deaf}; print('deaf', flush=True); time.sleep(60)"
    ended = run(python(code), {}, mark=MARK, within_s=1.0)
    assert (ended.code, ended.output) == (None, "deaf\n")
    assert marked(MARK) == []


def test_it_ends_at_once_when_it_is_told_to() -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    began = time.monotonic()
    assert run(python("import time; time.sleep(60)"), {}, mark=MARK, within_s=60, stop=stop).code is None
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(("waits", "least_s"), [(True, 1.0), (False, 0.0)])
def test_a_daemon_that_it_left_is_waited_for_or_ended(waits: bool, least_s: float) -> None:
    began = time.monotonic()
    ended = run(python(DAEMON.format(lasts=1.2)), {}, mark=MARK, within_s=20, with_descendants=waits)
    assert (ended.code, ended.output) == (0, "left\n")
    assert time.monotonic() - began > least_s
    assert marked(MARK) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel is not Linux")
def test_it_does_not_outlive_us_when_we_are_killed() -> None:
    mark = uuid.uuid4().hex
    sleeps = python("import time; print('on', flush=True); time.sleep(60)")
    code = f"from diptych.serving import children; children.run({sleeps!r}, {{}}, mark={mark!r}, within_s=60)"
    parent = subprocess.Popen(python(code))
    until(lambda: any("time.sleep" in command_of(pid) for pid in marked(mark)))
    parent.kill()
    parent.wait()
    until(lambda: not marked(mark))


def test_a_program_that_is_not_there_can_not_be_started() -> None:
    with pytest.raises(OSError, match="/nowhere/mpirun"):
        run(["/nowhere/mpirun"], {}, mark=MARK, within_s=20)


def test_a_failure_of_ours_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("diptych.serving.children._is_on", fails)
    with pytest.raises(KeyboardInterrupt):
        run(python("import time; time.sleep(60)"), {}, mark=MARK, within_s=60)
    assert marked(MARK) == []
