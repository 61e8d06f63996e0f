"""The real keeper and the real deployer on a Ray of `sleep`s: whoever dies, and whenever, nothing is left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from diptych.local.environment import service_environment
from diptych.local.events import EventLog
from diptych.local.paths import ServicePaths
from diptych.local.plan import Plan
from diptych.local.ports import free_ports
from diptych.local.processes import Mark, end_all, marked
from diptych.local.state import load
from diptych.progress import Event
from fakes.state import remember

RAY_ALONE = Path(__file__).parents[1] / "fakes" / "ray_alone"
APPLICATION = {"name": "diptych", "import_path": "application:build", "args": {}}


@dataclass
class Kept:
    """A keeper that was started: its process, whose standard input is its leash, and what it tells."""

    process: "subprocess.Popen[str]"
    mark: Mark
    paths: ServicePaths

    def events(self) -> list[Event]:
        return EventLog(self.paths.events).so_far()

    def until(self, reached: Callable[[], bool], within_s: float = 20.0) -> float:
        began = time.monotonic()
        while not reached():
            assert time.monotonic() - began < within_s, (self.events(), self.paths.keeper_log.read_text())
            time.sleep(0.02)
        return time.monotonic() - began

    def until_told(self, kind: str, stage: str = "") -> Event:
        def told() -> list[Event]:
            return [event for event in self.events() if (event.kind, event.stage) == (kind, stage)]

        self.until(lambda: bool(told()))
        return told()[0]

    def running(self) -> list[str]:
        return [process.name for process in marked(self.mark)]

    def ended(self, within_s: float = 15.0) -> float:
        """Seconds until nothing of the run was left."""
        return self.until(lambda: self.process.poll() is not None and self.running() == [], within_s)

    def daemon(self, name: str) -> psutil.Process:
        return next(child for child in psutil.Process(self.process.pid).children() if child.name() == name)

    def close_leash(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def let_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("detach\n")
        self.process.stdin.close()


Keep = Callable[..., Kept]


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keep]:
    """Start a keeper on a Ray that behaves as told."""
    started: list[Kept] = []

    def begin(*behaviour: str) -> Kept:
        ray = tmp_path / "ray"
        ray.mkdir()
        paths = remember(run_id="kept", ray_directory=str(ray), ready_at=None)
        paths.api_key.write_text("dk-x")
        paths.admin_key.write_text("dk-y admin")
        (port,) = free_ports(1)
        plan = Plan(
            name="one", run_id="kept", application="diptych", topology="aggregated", model="m",
            serve_config={"applications": [APPLICATION]}, host="127.0.0.1", port=port,
            api_key_file=str(paths.api_key), admin_key_file=str(paths.admin_key),
            phases=["aggregated"], engine_stages=["engine"],
            events=str(paths.events), ray_directory=str(ray), ray_logs=str(ray / "session_latest" / "logs"),
            ray_token_file=str(paths.ray_token), num_cpus=1, num_gpus=0, object_store_bytes=1,
            start_deadline_s=60.0,
        )  # fmt: skip
        plan.save(paths.plan)
        monkeypatch.setenv("PYTHONPATH", str(RAY_ALONE))
        environment = service_environment("kept", plan.host, paths.ray_token) | {
            "FAKE_RAY": ",".join(behaviour)
        }
        with paths.keeper_log.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "diptych.local.keeper", str(paths.plan)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, text=True,
                start_new_session=True,
            )  # fmt: skip
        kept = Kept(process, Mark("kept", ray), paths)
        started.append(kept)
        return kept

    yield begin
    for kept in started:
        end_all(kept.mark, grace_s=0.0)
        kept.process.wait()


def test_a_service_comes_up_stage_by_stage_and_lives_on_without_its_leash(keep: Keep) -> None:
    kept = keep()
    kept.until_told("ready")
    told = [(event.kind, event.stage) for event in kept.events()]
    assert told == [
        ("start", "Ray"), ("done", "Ray"), ("start", "engine"), ("done", "engine"),
        ("start", "first answer"), ("done", "first answer"), ("ready", ""),
    ]  # fmt: skip
    assert load(kept.paths).ready_at is not None
    kept.let_go()
    time.sleep(1.5)
    assert kept.process.poll() is None
    assert sorted(Path(name).name for name in kept.running()) == sorted(
        [Path(sys.executable).name, Path(sys.executable).name, "gcs_server", "raylet"]  # keeper and guard
    )


@pytest.mark.parametrize(
    ("behaviour", "kind", "stage"),
    [("slow", "start", "Ray"), ("no-engine", "start", "engine"), ("", "ready", "")],
    ids=["while Ray starts", "while the engines start", "when it is ready"],
)
def test_when_the_leash_is_dropped_all_of_it_ends(keep: Keep, behaviour: str, kind: str, stage: str) -> None:
    kept = keep(behaviour)
    kept.until_told(kind, stage)
    kept.close_leash()
    kept.ended()
    assert kept.events()[-1].kind == "stopped"
    assert "interrupted" in kept.events()[-1].text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_all_of_it_in_order(keep: Keep, number: signal.Signals) -> None:
    kept = keep()
    kept.until_told("ready")
    kept.let_go()
    kept.process.send_signal(number)
    kept.ended()
    assert kept.process.returncode == 0
    assert kept.events()[-1].kind == "stopped"


@pytest.mark.parametrize("daemon", ["raylet", "gcs_server"])
def test_when_one_of_rays_processes_dies_the_rest_ends_and_it_is_named_with_its_signal(
    keep: Keep, daemon: str
) -> None:
    kept = keep()
    kept.until_told("ready")
    kept.let_go()
    process = kept.daemon(daemon)
    process.kill()
    kept.ended()
    assert kept.process.returncode == 1
    failure = load(kept.paths).failure
    assert failure == (
        f"Ray's {daemon} process (pid {process.pid}) died, killed by signal 9 (SIGKILL); "
        "without it nothing can be served."
    )
    assert kept.events()[-1].kind == "failed"


def test_when_one_dies_while_the_engines_start_it_is_the_one_that_is_blamed(keep: Keep) -> None:
    kept = keep("no-engine")
    kept.until_told("start", "engine")
    kept.daemon("raylet").kill()
    kept.ended()
    assert "raylet" in kept.until_told("failed").text


def test_ray_that_does_not_start_is_told_in_its_words(keep: Keep) -> None:
    kept = keep("broken")
    kept.ended()
    assert kept.until_told("failed").text == "Ray did not start: ConnectionError: GCS failed to start"


def test_an_application_that_fails_is_told_and_nothing_is_left(keep: Keep) -> None:
    kept = keep("bad-engine")
    kept.ended()
    assert "Deploying application diptych failed" in kept.until_told("failed").text
    assert [event.kind for event in kept.events()].count("failed") == 1


def test_a_deployer_that_dies_without_a_word_is_told_by_its_last_ones(keep: Keep) -> None:
    kept = keep("dies")
    kept.ended()
    assert "ImportError: libray.so" in kept.until_told("failed").text


def test_a_deployer_that_is_killed_is_told_with_how(keep: Keep) -> None:
    kept = keep("no-engine")
    kept.until_told("start", "engine")
    deployer = next(
        child
        for child in psutil.Process(kept.process.pid).children()
        if "diptych.local.deploy" in child.cmdline()
    )
    os.kill(deployer.pid, signal.SIGKILL)
    kept.ended()
    assert "-9" in kept.until_told("failed").text


def test_what_happened_is_told_once_and_in_order(keep: Keep) -> None:
    kept = keep("bad-engine")
    kept.ended()
    lines = kept.paths.events.read_text().splitlines()
    times = [json.loads(line)["at"] for line in lines]
    assert times == sorted(times)
    assert load(kept.paths).ready_at is None
