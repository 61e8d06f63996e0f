"""Is an engine alive and moving? Asked of real processes."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest

from diptych.serving import vitals
from diptych.serving.pulse import Pulse
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


@pytest.fixture
def spins() -> Iterator[subprocess.Popen[bytes]]:
    """An engine that uses all the processor time that it gets and takes no step."""
    process = subprocess.Popen(WORKS)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon, but not before a process that computes has had some of the processor."""
    monkeypatch.setattr(vitals, "STUCK_AFTER_S", 1.0)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vitals, "SPINNING_AFTER_S", 0.6)


def looks(watched: EngineVitals, within_s: float, steps: int = 7, expected_s: float = 0.0) -> str | None:
    """What the looks of so many seconds say; the first that says something ends them."""
    ends_at = time.monotonic() + within_s
    while time.monotonic() < ends_at and watched.look(1, steps, expected_s) is None:
        time.sleep(0.1)
    return watched.problem


@pytest.mark.usefixtures("on_a_busy_machine")
def test_an_engine_that_computes_one_long_step_is_not_stuck(spins: subprocess.Popen[bytes]) -> None:
    """A long prompt on one core is one step of many seconds: the processor time shows it."""
    assert looks(EngineVitals(spins.pid), 1.5) is None


@pytest.mark.usefixtures("soon")
def test_an_engine_that_spins_and_takes_no_step_is_stuck_in_the_end(spins: subprocess.Popen[bytes]) -> None:
    """A hung GPU or peer is waited for in a busy loop."""
    watched, began = EngineVitals(spins.pid), time.monotonic()
    said = looks(watched, 5.0)
    assert said is not None
    assert "no step" in said
    assert "though it is busy, 1 waiting" in said
    assert time.monotonic() - began >= 0.6


@pytest.mark.usefixtures("soon")
def test_a_step_that_is_expected_to_take_long_may_take_several_times_as_long(
    spins: subprocess.Popen[bytes],
) -> None:
    assert looks(EngineVitals(spins.pid), 1.0, expected_s=0.5) is None
    assert looks(EngineVitals(spins.pid), 5.0, expected_s=0.15) is not None


@pytest.mark.usefixtures("soon")
def test_an_engine_whose_steps_take_long_may_take_several_times_as_long_for_one(
    spins: subprocess.Popen[bytes],
) -> None:
    watched = EngineVitals(spins.pid)
    assert looks(watched, 0.4, steps=7) is None
    assert looks(watched, 1.2, steps=8) is None


@pytest.mark.usefixtures("soon")
def test_an_engine_that_does_not_tell_its_steps_is_not_stuck_while_it_computes(
    spins: subprocess.Popen[bytes],
) -> None:
    assert looks(EngineVitals(spins.pid), 1.0, steps=0, expected_s=inf) is None


@pytest.mark.usefixtures("on_a_busy_machine")
def test_an_engine_that_waits_for_workers_that_compute_is_not_stuck() -> None:
    waits = subprocess.Popen(["/bin/sh", "-c", "(while :; do :; done) & read x"], stdin=subprocess.PIPE)
    try:
        until(waits, "S")
        while vitals._cpu_s_of_all(waits.pid) < 0.1:
            time.sleep(0.01)
        assert looks(EngineVitals(waits.pid), 1.5) is None
        (worker,) = vitals._children(waits.pid)
        os.kill(worker, signal.SIGSTOP)
        assert looks(EngineVitals(waits.pid), 5.0) is not None
    finally:
        for pid in vitals._children(waits.pid):
            os.kill(pid, signal.SIGKILL)
        waits.kill()
        waits.wait()


@pytest.mark.usefixtures("soon")
def test_a_client_who_leaves_does_not_shorten_the_step_that_is_under_way(
    spins: subprocess.Popen[bytes],
) -> None:
    watched = EngineVitals(spins.pid)
    assert watched.look(2, 7, expected_s=10.0) is None
    assert looks(watched, 1.0, steps=7, expected_s=0.0) is None


@pytest.mark.usefixtures("soon")
def test_what_an_earlier_step_was_expected_to_take_leaves_the_next_one_no_time(
    spins: subprocess.Popen[bytes],
) -> None:
    watched = EngineVitals(spins.pid)
    watched.look(1, 7, expected_s=10.0)
    assert looks(watched, 5.0, steps=8) is not None


class Clock:
    """Stands for `time` in `vitals`, and for the processor time that an engine and its workers have used."""

    def __init__(self) -> None:
        self.now, self.cpu_s = 100.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(vitals, "time", made)
    monkeypatch.setattr(vitals, "_cpu_s_of_all", lambda pid: made.cpu_s)
    return made


def begun(engine: subprocess.Popen[bytes], clock: Clock, **more: Any) -> EngineVitals:
    """One that is watched from now on and has work."""
    now = clock.monotonic()
    watched = EngineVitals(engine.pid, _stepped_at=now, _computed_at=now, _looked_at=now, **more)
    assert watched.look(1, 7) is None
    return watched


def seconds_until_dead(watched: EngineVitals, clock: Clock, **expected: float) -> float:
    began = clock.now
    while watched.look(1, 7, **expected) is None and clock.now < began + 10_000:
        clock.passes(1.0)
    return clock.now - began


def test_while_nobody_could_look_time_does_not_count_for_the_engine_either(
    engine: subprocess.Popen[bytes], clock: Clock
) -> None:
    """A paused container, a machine that stood still: the first look afterwards finds no step of minutes."""
    watched = begun(engine, clock)
    clock.passes(3600.0)
    assert watched.look(1, 7) is None
    assert 4.0 <= seconds_until_dead(watched, clock) <= 10.0


def test_a_child_that_ends_takes_its_processor_time_along_and_the_next_one_s_counts(
    engine: subprocess.Popen[bytes], clock: Clock
) -> None:
    watched = begun(engine, clock)
    for _ in range(2):  # two children, one after the other, each of them busy all the time
        clock.cpu_s = 0.0
        for _ in range(12):
            clock.passes(1.0)
            clock.cpu_s += 1.0
            assert watched.look(1, 7) is None


def test_an_engine_whose_workers_are_out_of_sight_has_the_time_of_one_that_spins(
    engine: subprocess.Popen[bytes], clock: Clock
) -> None:
    watched = begun(engine, clock, sees_workers=False)
    assert seconds_until_dead(watched, clock) == pytest.approx(vitals.SPINNING_AFTER_S, abs=2.0)
    assert watched.problem is not None
    assert watched.problem.endswith("s, 1 waiting")


def test_an_engine_that_has_measured_nothing_has_its_time(
    engine: subprocess.Popen[bytes], clock: Clock
) -> None:
    watched = begun(engine, clock, sees_workers=False)
    assert seconds_until_dead(watched, clock, expected_s=Pulse(2048).expected_s(2048)) >= 600


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
