"""The real service under test: started and asked through the command line, looked at through the process table.

What is asserted of Diptych is never asked of Diptych's own code: processes, files and sockets are read here.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

PORT = 18439
NAME = "proof"
MARK = "DIPTYCH_SERVICE"
START_TIMEOUT_S = 240.0
PHASES = ("prefill", "decode")


class Service:
    """One service with a state directory, a temporary directory and a port of its own.

    Args:
        root: a directory with a short path, since Ray puts sockets some way below it.
    """

    def __init__(self, root: Path) -> None:
        self.temporary = root / "t"
        self.temporary.mkdir()
        self.directory = root / "s" / NAME
        own = {"DIPTYCH_STATE_DIR": str(root / "s"), "TMPDIR": str(self.temporary), "COLUMNS": "200"}
        # Tests count tokens to the last one: no prompt of the service's own may come between.
        own["DIPTYCH_ORCHESTRATOR__CANARY_PERIOD_S"] = "3600"
        self.environment = os.environ | own
        self._plan: dict[str, Any] = {}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "diptych", *arguments]

    def run(self, *arguments: str, timeout_s: float = 60.0) -> "subprocess.CompletedProcess[str]":
        """Run one command to its end."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )

    def start(self, output: Path, *arguments: str) -> "subprocess.Popen[bytes]":
        """Begin `diptych up`; its progress goes to the file `output`."""
        with output.open("wb") as file:
            return subprocess.Popen(
                self.command("up", "--name", NAME, "--port", str(PORT), *arguments),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                # A test run in the background of a shell ignores Ctrl-C, and so would what it starts.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    def up(self) -> "subprocess.CompletedProcess[str]":
        return self.run("up", "--name", NAME, "--port", str(PORT), timeout_s=START_TIMEOUT_S)

    def down(self) -> "subprocess.CompletedProcess[str]":
        return self.run("down", "--name", NAME)

    @property
    def plan(self) -> dict[str, Any]:
        """The keeper's plan; remembered, for what is asked about after `down`."""
        path = self.directory / "plan.json"
        if path.exists():
            self._plan = json.loads(path.read_text())
        return self._plan

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{PORT}"

    @property
    def key_file(self) -> Path:
        return self.directory / "api-key"

    @property
    def key(self) -> str:
        return self.key_file.read_text().strip()

    @property
    def admin_key(self) -> str:
        """The key with which Diptych's own commands ask."""
        return (self.directory / "admin-key").read_text().split()[0]

    @property
    def model(self) -> str:
        return str(self.plan["model"])

    @property
    def ray_directory(self) -> Path:
        return Path(self.plan["ray_directory"])

    def processes(self) -> list[psutil.Process]:
        """Every process of the newest run: by the mark in its environment, or by a file it holds in Ray's directory."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        plan = self.plan
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                return False
            if process.environ().get(MARK) == plan["run_id"]:
                return True
            return any(file.startswith(plan["ray_directory"] + "/") for file in _open_files(process.pid))
        except (psutil.Error, OSError):
            return False

    def engine(self, phase: str) -> psutil.Process:
        """The process that computes for a phase, as the engine's own replica tells it."""
        return psutil.Process(self.phases()[phase][0]["engine_pid"])

    def client(self, *, key: str | None = None, timeout_s: float = 120.0) -> httpx.Client:
        """A client with the key that `up` makes for users, an ordinary one, or with another."""
        headers = {"authorization": f"Bearer {key or self.key}", "x-diptych-timing": "include"}
        headers["x-diptych-prefill"] = "remote"  # what the service itself would choose is for test_placement
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s, trust_env=False)

    def post(self, path: str, timeout_s: float = 120.0, **body: Any) -> httpx.Response:
        with self.client(timeout_s=timeout_s) as client:
            return client.post(path, json={"model": self.model, **body})

    def complete(self, prompt: str | list[int], max_tokens: int = 4, **more: Any) -> dict[str, Any]:
        """A greedy completion that must succeed."""
        response = self.post("/v1/completions", prompt=prompt, max_tokens=max_tokens, temperature=0, **more)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def phases(self) -> dict[str, list[dict[str, Any]]]:
        with self.client(key=self.admin_key) as client:
            phases: dict[str, list[dict[str, Any]]] = client.get("/diptych/v1/status").json()["phases"]
        return phases

    def counters(self) -> dict[str, dict[str, float]]:
        """Both engines' own counters, by phase."""
        return {phase: replicas[0]["counters"] for phase, replicas in self.phases().items()}

    def settled_counters(self) -> dict[str, dict[str, float]]:
        """The counters once both engines have accounted for everything."""
        time.sleep(1.0)
        return self.counters()

    def status(self) -> dict[str, Any]:
        """What `diptych status --json` says."""
        answer: dict[str, Any] = json.loads(self.run("status", "--name", NAME, "--json").stdout)
        return answer

    def is_up(self) -> bool:
        return (self.directory / "state.json").exists() and self.run("status", "--name", NAME).returncode == 0


def rise(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """How far each counter rose; those that did not are left out."""
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


def seconds_until(condition: Callable[[], bool], within_s: float, every_s: float = 0.2) -> float:
    """The seconds until the condition held; fails the test when it does not within `within_s`."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s, f"not within {within_s:.0f} s: {condition}"
        time.sleep(every_s)
    return time.monotonic() - began


@contextlib.contextmanager
def repeatedly(work: Callable[[], object], every_s: float) -> Iterator[None]:
    """Have work done over and over beside what the test does meanwhile, with a pause after each time."""
    stop = threading.Event()

    def again() -> None:
        while not stop.is_set():
            work()
            stop.wait(every_s)

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def check_status_names(service: Service, dead: str) -> None:
    """Hold that `diptych status` says which process was killed, and that `down` works after that."""
    done = service.run("status", "--name", NAME)
    assert done.returncode == 1
    assert dead in done.stdout
    assert "SIGKILL" in done.stdout
    assert service.down().returncode == 0


def leftovers(service: Service) -> list[str]:
    """What is left of the newest run, in words."""
    return [f"{process.pid} {_words(process)}" for process in service.processes()]


def seconds_until_nothing_is_left(service: Service, within_s: float = 15.0) -> float:
    """The seconds until the newest run had ended wholly; fails the test, naming what is left, when it has not."""
    began = time.monotonic()
    while left := leftovers(service):
        assert time.monotonic() - began < within_s, f"left after {within_s:.0f} s: {left}"
        time.sleep(0.2)
    return time.monotonic() - began


def kill(process: psutil.Process, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(process.pid, number)


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:100]
    except psutil.Error:
        return "?"


def _open_files(pid: int) -> list[str]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(entry.readlink()))
    return found
