"""A service's processes: found by their mark or their files, told by their titles, and ended."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from diptych.local.processes import Mark, end_all, is_alive, marked

IGNORES_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"

# What setproctitle does: the memory in which the kernel shows the environment is used for something else.
OVERWRITES_ITS_ENVIRONMENT = """
import ctypes
first = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")[0]
ctypes.memset(first, 0, len(open("/proc/self/environ", "rb").read()))
assert b"DIPTYCH" not in open("/proc/self/environ", "rb").read()
"""


def pids(mark: Mark) -> set[int]:
    return {process.pid for process in marked(mark)}


def test_a_process_is_found_by_the_run_id_in_its_environment(start, mark) -> None:
    process = start()
    assert pids(mark) == {process.pid}


def test_a_process_of_another_run_is_not_found(start, mark) -> None:
    start()
    assert pids(Mark("another-run", mark.ray_directory)) == set()


def test_an_unmarked_process_is_not_found(start, mark) -> None:
    start(marked=False)
    assert pids(mark) == set()


def test_a_process_that_overwrote_its_environment_is_found_by_a_file_it_holds_open(start, mark) -> None:
    log = mark.ray_directory / "agent.log"
    process = start(OVERWRITES_ITS_ENVIRONMENT + f"file = open({str(log)!r}, 'w')")
    assert pids(mark) == {process.pid}


def test_a_process_that_overwrote_its_environment_and_holds_no_file_is_not_taken_for_ours(
    start, mark
) -> None:
    start(OVERWRITES_ITS_ENVIRONMENT)
    assert pids(mark) == set()


def test_a_file_in_a_directory_whose_name_only_begins_alike_does_not_count(start, mark) -> None:
    other = mark.ray_directory.with_name(mark.ray_directory.name + "-2")
    other.mkdir()
    start(f"file = open({str(other / 'log')!r}, 'w')", marked=False)
    assert pids(mark) == set()


def test_the_one_who_looks_does_not_find_itself(mark, monkeypatch) -> None:
    code = (
        "from pathlib import Path; from diptych.local.processes import Mark, marked; "
        f"print(marked(Mark({mark.run_id!r}, Path({str(mark.ray_directory)!r}))))"
    )
    environment = os.environ | {"DIPTYCH_SERVICE": mark.run_id}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_zombie_does_not_count(mark) -> None:
    environment = os.environ | {"DIPTYCH_SERVICE": mark.run_id}
    process = subprocess.Popen(["/bin/sleep", "60"], env=environment)
    try:
        while psutil.Process(process.pid).cmdline()[:1] != ["/bin/sleep"]:
            time.sleep(0.01)
        assert is_alive(process.pid, mark)
        process.send_signal(signal.SIGKILL)
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert pids(mark) == set()
        assert not is_alive(process.pid, mark)
        assert end_all(mark, grace_s=0.2) == []
    finally:
        process.wait()


def test_a_pid_that_another_program_took_over_is_not_alive(start, mark) -> None:
    stranger = start(marked=False)
    assert not is_alive(stranger.pid, mark)


@pytest.mark.parametrize(
    ("title", "phase", "role"),
    [
        ("ray::ServeReplica:diptych:Prefill:smollm2", "prefill", "replica"),
        ("ray::ServeReplica:diptych:Decode:smollm2.initialize_and_get_metadata", "decode", "replica"),
        ("ray::ServeReplica:diptych:Aggregated:smollm2", "aggregated", "replica"),
        ("ray::ServeController", "", ""),
        ("ray::DashboardAgent", "", ""),
    ],
)
def test_phase_and_role_are_read_from_the_title(start, mark, title: str, phase: str, role: str) -> None:
    start(title=title)
    (found,) = marked(mark)
    assert (found.name, found.phase, found.role) == (title, phase, role)


@pytest.mark.parametrize("engine", ["VLLM::EngineCore", "ray::ServeReplica:diptych:Decode:smollm2"])
def test_a_replicas_child_is_its_engine_under_vllms_title_or_the_replicas_own(
    start, mark, engine: str
) -> None:
    """A spawned engine has vLLM's title, a forked one keeps its replica's."""
    replica = "ray::ServeReplica:diptych:Decode:smollm2"
    script = f"exec -a {replica} bash -c 'exec -a {engine} sleep 60 & wait'"
    environment = os.environ | {"DIPTYCH_SERVICE": mark.run_id}
    process = subprocess.Popen(["bash", "-c", script], env=environment)
    try:
        deadline = time.monotonic() + 10
        while [p.cmdline()[:1] for p in psutil.Process(process.pid).children()] != [[engine]]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        told = {found.pid: (found.phase, found.role) for found in marked(mark)}
        (child,) = psutil.Process(process.pid).children()
        assert told == {process.pid: ("decode", "replica"), child.pid: ("decode", "engine")}
    finally:
        for one in [*psutil.Process(process.pid).children(), process]:
            one.kill()
        process.wait()


def test_a_stopped_process_is_told_as_stopped(start, mark) -> None:
    process = start()
    process.suspend()
    while process.status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    (found,) = marked(mark)
    assert found.is_stopped


def test_end_all_ends_everything_of_the_run_and_nothing_else(start, mark) -> None:
    own, stranger = [start(), start()], start(marked=False)
    assert end_all(mark, grace_s=5.0) == []
    assert pids(mark) == set()
    assert [process.status() for process in own] == [psutil.STATUS_ZOMBIE] * 2
    assert stranger.status() != psutil.STATUS_ZOMBIE


def test_end_all_asks_first_and_kills_what_does_not_listen(start, mark, tmp_path) -> None:
    farewell = tmp_path / "farewell"
    start(f"""
import pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(farewell)!r}).touch(), sys.exit()))
""")
    start(IGNORES_SIGTERM)
    began = time.monotonic()
    assert end_all(mark, grace_s=1.0) == []
    assert 1.0 <= time.monotonic() - began < 5.0
    assert farewell.exists()
    assert pids(mark) == set()


def test_a_worker_of_rays_that_waits_for_others_is_not_waited_for_once_no_engine_is_left(mark) -> None:
    environment = os.environ | {"DIPTYCH_SERVICE": mark.run_id}
    workers = [
        subprocess.Popen(
            [title, "60"],
            executable="/bin/sleep",
            env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        )
        for title in ("ray::ServeController", "ray::ServeReplica:diptych:Decode:smollm2")
    ]
    began = time.monotonic()
    try:
        assert end_all(mark, grace_s=10.0) == []
        assert time.monotonic() - began < 5.0
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def test_end_all_ends_a_stopped_process_too(start, mark) -> None:
    start().suspend()
    assert end_all(mark, grace_s=0.5) == []
    assert pids(mark) == set()


def test_end_all_tells_what_it_was_told_to_spare_from_what_it_could_not_end(start, mark) -> None:
    spared = start()
    assert end_all(mark, grace_s=0.5, spare=frozenset({spared.pid})) == []
    assert pids(mark) == {spared.pid}
