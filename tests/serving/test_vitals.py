"""Is an engine alive and moving? Asked of real processes."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diptych.serving import vitals
from diptych.serving.vitals import EngineVitals, ProcessSample

SLEEPS = ["/bin/sleep", "60"]
WORKS = ["/bin/sh", "-c", "while :; do :; done"]


@pytest.fixture
def engine() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(SLEEPS)
    yield process
    process.kill()
    process.wait()


def until(process: subprocess.Popen[bytes], states: str) -> None:
    while (sample := ProcessSample.of(process.pid)) is not None and sample.state not in states:
        time.sleep(0.01)


def test_a_living_engine_without_work_has_no_problem(engine: subprocess.Popen[bytes]) -> None:
    assert EngineVitals(engine.pid).look(waiting=0, steps=0) is None


def test_a_killed_engine_is_gone_even_while_its_parent_has_not_reaped_it(
    engine: subprocess.Popen[bytes],
) -> None:
    watched = EngineVitals(engine.pid)
    engine.kill()
    until(engine, "Z")
    assert watched.look(0, 0) == f"engine process {engine.pid} is gone"
    engine.wait()
    assert EngineVitals(engine.pid).look(0, 0) == f"engine process {engine.pid} is gone"


def test_a_stopped_engine_counts_as_dead_at_the_first_look(engine: subprocess.Popen[bytes]) -> None:
    engine.send_signal(signal.SIGSTOP)
    until(engine, "T")
    said = EngineVitals(engine.pid).look(0, 0)
    assert said is not None
    assert "is stopped" in said


def test_once_dead_an_engine_stays_dead(engine: subprocess.Popen[bytes]) -> None:
    watched = EngineVitals(engine.pid)
    engine.send_signal(signal.SIGSTOP)
    until(engine, "T")
    first = watched.look(0, 0)
    engine.send_signal(signal.SIGCONT)
    until(engine, "S")
    assert watched.look(0, 0) == first


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vitals, "STUCK_AFTER_S", 0.3)


@pytest.mark.usefixtures("at_once")
def test_an_engine_that_neither_steps_nor_computes_while_work_waits_is_stuck(
    engine: subprocess.Popen[bytes],
) -> None:
    watched = EngineVitals(engine.pid)
    assert watched.look(waiting=2, steps=7) is None
    time.sleep(0.4)
    said = watched.look(waiting=2, steps=7)
    assert said is not None
    assert "no step" in said
    assert "2" in said.rpartition(",")[2]


@pytest.mark.usefixtures("at_once")
def test_an_engine_that_steps_is_not_stuck_however_long_work_waits(engine: subprocess.Popen[bytes]) -> None:
    watched = EngineVitals(engine.pid)
    for step in range(4):
        assert watched.look(waiting=2, steps=step) is None
        time.sleep(0.2)


@pytest.mark.usefixtures("at_once")
def test_an_engine_that_computes_one_long_step_is_not_stuck() -> None:
    """A long prompt on one core is one step of many seconds: the processor time shows it."""
    process = subprocess.Popen(WORKS)
    try:
        watched = EngineVitals(process.pid)
        for _ in range(4):
            assert watched.look(waiting=1, steps=7) is None
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("at_once")
def test_an_engine_that_was_idle_for_long_has_its_full_time_when_work_comes(
    engine: subprocess.Popen[bytes],
) -> None:
    watched = EngineVitals(engine.pid)
    watched.look(waiting=1, steps=7)
    watched.look(waiting=0, steps=7)
    time.sleep(0.4)
    watched.look(waiting=0, steps=7)
    assert watched.look(waiting=1, steps=7) is None


def test_end_kills_a_stopped_engine_and_is_quiet_about_one_that_is_gone(
    engine: subprocess.Popen[bytes],
) -> None:
    engine.send_signal(signal.SIGSTOP)
    watched = EngineVitals(engine.pid)
    watched.end()
    assert engine.wait(10) == -signal.SIGKILL
    watched.end()
    EngineVitals(None).end()


def test_a_process_with_brackets_and_spaces_in_its_name_is_read_rightly() -> None:
    process = subprocess.Popen(
        ["/bin/sh", "-c", "printf 'a) Z (b' > /proc/self/comm; read x"], stdin=subprocess.PIPE
    )
    try:
        until(process, "S")
        while "a) Z" not in Path(f"/proc/{process.pid}/comm").read_text():
            time.sleep(0.01)
        assert ProcessSample.of(process.pid).state == "S"
    finally:
        process.kill()
        process.wait()


def test_there_is_no_sample_of_a_process_that_is_not_there() -> None:
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    assert ProcessSample.of(process.pid) is None
    assert ProcessSample.of(os.getpid()).cpu_s > 0
