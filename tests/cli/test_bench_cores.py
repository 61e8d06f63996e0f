"""Others' use of the cores is noticed, the service's own and the client's is not."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from diptych.cli.bench_cores import OtherPrograms
from diptych.cli.places import LOCAL, Up
from diptych.local import hardware
from diptych.local.hardware import Hardware
from fakes.state import remember

HERE = Up("one", LOCAL)
_SPIN = "while True: pass"


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be on one of this machine's cores."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("processes can't be bound to a core here")
    before = os.sched_getaffinity(0)
    core = min(before)
    os.sched_setaffinity(0, {core})
    found = Hardware(cores=(core,), memory_total=2**34, memory_available=2**34)
    monkeypatch.setattr(hardware, "detect", lambda: found)
    remember("one")
    yield
    os.sched_setaffinity(0, before)


def test_what_others_compute_meanwhile_is_a_doubt() -> None:
    process = subprocess.Popen([sys.executable, "-c", _SPIN])
    try:
        with OtherPrograms(HERE) as others:
            time.sleep(1.0)
    finally:
        process.kill()
        process.wait()
    assert others.used > 0.5
    assert others.doubts == (f"other programs kept {others.used:.1f} of 1 cores busy",)


def test_what_this_process_and_its_clients_compute_is_none_of_it() -> None:
    with OtherPrograms(HERE) as idle:
        time.sleep(1.0)
    with OtherPrograms(HERE) as others:
        end = time.process_time() + 0.5
        while time.process_time() < end:
            pass
        subprocess.run(
            [sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True
        )
    # Whatever else runs on this core now comes on top of either.
    assert others.used < idle.used + 0.5


def test_on_a_cluster_and_on_gpus_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    with OtherPrograms(Up("one", "eks")) as cluster:
        pass
    gpus = Hardware(cores=(0,), memory_total=2**34, memory_available=2**34, gpus=(2**36,))
    monkeypatch.setattr(hardware, "detect", lambda: gpus)
    with OtherPrograms(HERE) as on_gpus:
        pass
    assert cluster.doubts == on_gpus.doubts == ()
