"""What is remembered between commands, and the lock that keeps two of them apart."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diptych.errors import StartError
from diptych.local.paths import ServicePaths
from diptych.local.state import exclusive, known_names, load, save
from fakes.state import a_state

STATE = a_state()


@pytest.fixture
def paths() -> ServicePaths:
    paths = ServicePaths.of("one")
    paths.create()
    return paths


def test_a_state_is_read_as_it_was_written(paths: ServicePaths) -> None:
    save(paths, STATE)
    assert load(paths) == STATE
    assert known_names() == ["one"]


@pytest.mark.parametrize("content", ["", "{", '{"name": "one"}', "[]"])
def test_a_state_that_cannot_be_read_counts_as_none(paths: ServicePaths, content: str) -> None:
    paths.state.write_text(content)
    assert load(paths) is None


def test_without_a_state_directory_no_service_is_known() -> None:
    assert known_names() == []


def test_a_second_command_on_the_same_service_is_refused_while_the_first_works(paths: ServicePaths) -> None:
    with exclusive(paths), pytest.raises(StartError, match="Another diptych command"), exclusive(paths):
        pass
    with exclusive(paths):
        pass


def test_two_services_do_not_keep_each_other_out(paths: ServicePaths) -> None:
    other = ServicePaths.of("two")
    other.create()
    with exclusive(paths), exclusive(other):
        pass


def test_the_lock_of_a_command_that_was_killed_is_free(paths: ServicePaths) -> None:
    code = (
        "import os, signal; from diptych.local.paths import ServicePaths; from diptych.local.state import exclusive\n"
        "with exclusive(ServicePaths.of('one')): os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code], env=os.environ)
    assert killed.returncode == -9
    with exclusive(paths):
        pass


def test_a_process_that_a_command_leaves_behind_does_not_hold_its_lock(paths: ServicePaths) -> None:
    """The keeper outlives `up`: were the lock inherited, no other command would ever get it."""
    with exclusive(paths):
        child = subprocess.Popen(["/bin/sleep", "30"], stdin=subprocess.DEVNULL)
    try:
        with exclusive(paths):
            assert Path(f"/proc/{child.pid}").exists()
    finally:
        child.kill()
        child.wait()
