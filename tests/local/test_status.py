"""What `status` makes of processes and of the endpoint's own word: ready, or the first thing that blocks."""

from pathlib import Path
from typing import Any

import pytest

from diptych.endpoint import Endpoint
from diptych.local import status
from diptych.local.paths import ServicePaths
from diptych.local.processes import ServiceProcess
from diptych.local.state import save
from diptych.local.status import look, look_at_all
from fakes.state import a_state

GONE = "engine process 12 is gone"
STATE = a_state(url="http://127.0.0.1:1")


def process(pid: int, phase: str, role: str, state: str = "sleeping") -> ServiceProcess:
    return ServiceProcess(pid, "x", phase, role, 1000, state)


PROCESSES = [
    process(1, "", ""),
    process(11, "prefill", "replica"),
    process(12, "prefill", "engine"),
    process(21, "decode", "replica"),
    process(22, "decode", "engine"),
]


def replica(engine_pid: int, problem: str | None = None) -> dict[str, Any]:
    counters = {"requests_finished": 3.0}
    return {"engine_pid": engine_pid, "ready": problem is None, "problem": problem, "counters": counters}


TOLD = {"prefill": [replica(12)], "decode": [replica(22)]}


class Machine:
    """What there is to be seen; a test changes what it wants."""

    def __init__(self) -> None:
        self.processes = PROCESSES
        self.told: dict[str, Any] | None = {"phases": TOLD}
        self.asked_with: Path | None = None
        self.kept = True
        self.state = STATE


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(status, "marked", lambda mark: machine.processes)

    def fetch_status(endpoint: Endpoint) -> dict[str, Any] | None:
        machine.asked_with = endpoint.api_key_file
        return machine.told

    monkeypatch.setattr(status, "fetch_status", fetch_status)
    monkeypatch.setattr(status, "is_alive", lambda pid, mark: machine.kept)
    return machine


def seen(machine: Machine) -> Any:
    paths = ServicePaths.of("one")
    paths.create()
    save(paths, machine.state)
    return look("one")


def test_a_service_whose_engines_answer_is_ready(machine: Machine) -> None:
    found = seen(machine)
    assert (found.ready, found.blocker) == (True, None)
    assert (found.memory_bytes, found.processes) == (5000, 5)
    decode = found.phases["decode"]
    assert (decode.replicas, decode.ready, decode.pid, decode.memory_bytes, decode.requests) == (
        1,
        1,
        22,
        2000,
        3,
    )


def test_it_asks_with_the_admin_key_and_tells_of_the_clients(machine: Machine) -> None:
    found, paths = seen(machine), ServicePaths.of("one")
    assert machine.asked_with == paths.admin_key
    assert found.to_json()["api_key_file"] == str(paths.api_key)
    assert status.endpoint_of("one").api_key_file == paths.api_key


def test_its_json_has_what_is_promised(machine: Machine) -> None:
    told = seen(machine).to_json()
    assert told["name"] == "one"
    assert told["place"] == "local"
    assert told["endpoint"] == "http://127.0.0.1:1"
    assert told["ready"] is True
    for phase in ("prefill", "decode"):
        assert {"replicas", "ready", "pid", "model"} <= told["phases"][phase].keys()


def test_an_engine_that_is_gone_blocks_and_is_named(machine: Machine) -> None:
    machine.processes = [one for one in PROCESSES if one.pid != 12]
    found = seen(machine)
    assert not found.ready
    assert found.blocker.startswith("prefill: ")
    assert found.phases["prefill"].ready == 0


def test_an_engine_that_is_stopped_blocks_though_its_replica_says_it_is_ready(machine: Machine) -> None:
    machine.processes = [*PROCESSES[:-1], process(22, "decode", "engine", "stopped")]
    found = seen(machine)
    assert not found.ready
    assert found.blocker.startswith("decode: engine process 22 is stopped")
    assert found.phases["decode"].ready == 0


def test_a_problem_that_the_replica_tells_blocks_in_its_words(machine: Machine) -> None:
    machine.told = {"phases": TOLD | {"prefill": [replica(12, GONE)]}}
    assert seen(machine).blocker.startswith(f"prefill: {GONE}")


def test_an_endpoint_that_does_not_answer_blocks(machine: Machine) -> None:
    machine.told = None
    found = seen(machine)
    assert not found.ready
    assert "does not answer" in found.blocker
    assert found.phases["decode"].requests is None


def test_a_transport_that_contradicts_what_was_asked_for_blocks_in_the_services_words(
    machine: Machine,
) -> None:
    why = "EFA was asked for, and UCX over tcp is in use (backend made by prefill rank 0: UCX)."
    machine.told = {"phases": TOLD, "readiness": {"state": "contradicted", "why": why}}
    found = seen(machine)
    assert not found.ready
    assert found.blocker == f"{why} `diptych verify` shows the evidence."


def test_a_fallback_that_is_allowed_is_said_and_blocks_nothing(machine: Machine) -> None:
    transport = {"state": "contradicted", "fallback": "EFA was asked for, and UCX over tcp is in use."}
    machine.told = {"phases": TOLD, "readiness": {"state": "ready", "transport": transport}}
    found = seen(machine)
    assert (found.ready, found.fallback) == (True, transport["fallback"])
    assert found.to_json()["fallback"] == transport["fallback"]


def test_a_phase_that_the_endpoint_does_not_see_blocks(machine: Machine) -> None:
    machine.told = {"phases": {"prefill": [], "decode": TOLD["decode"]}}
    found = seen(machine)
    assert found.blocker.startswith("prefill: no replica is ready")


def test_a_dead_keeper_blocks_whatever_else_still_runs(machine: Machine) -> None:
    machine.kept = False
    found = seen(machine)
    assert not found.ready
    assert "keeper" in found.blocker
    assert "diptych down" in found.blocker


def test_a_failure_that_was_told_is_what_blocks(machine: Machine) -> None:
    machine.state = STATE.model_copy(update={"failure": "Ray's raylet process (pid 7) died."})
    machine.processes, machine.kept = [], False
    assert seen(machine).blocker == "Ray's raylet process (pid 7) died."


def test_a_service_that_comes_up_is_not_ready_yet(machine: Machine) -> None:
    machine.state = STATE.model_copy(update={"ready_at": None})
    assert seen(machine).blocker == "It is still coming up."


def test_what_left_no_state_is_not_there() -> None:
    assert look("one") is None
    assert look_at_all() == []
