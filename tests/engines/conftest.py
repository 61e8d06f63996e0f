"""Real engines, one set at a time: the reference first, then the service, which the tests share and restart.

Two cores hold one set of engines: whatever needs another start asks for `stopped` and leaves the service as it likes.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.chaos import ChaosService
from engines.questions import QUESTIONS
from engines.service import Service, leftovers

_ORDER = (
    "test_replicas",
    "test_placement_on_engines",
    "test_prefill_replicas",
    "test_decode_replicas",
    "test_conformance",
    "test_fuzz",
    "test_kv_transfer",
    "test_proof",
    "test_verify",
    "test_bench",
    "test_answers",
    "test_openai_client",
    "test_access",
    "test_loopback",
    "test_commands",
    "test_secrets",
    "test_dead_engines",
    "test_direct_streaming",
    "test_stock",
    "test_adapters",
    "test_pictures",
    "test_down",
    "test_interrupted_up",
    "test_dead_service",
    "test_chaos",
    "test_two_hosts",
    "test_libfabric",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything without engines first, then gentle tests before those that kill."""

    def rank(item: pytest.Item) -> int:
        return _ORDER.index(item.path.stem) + 1 if item.path.parent == Path(__file__).parent else 0

    items.sort(key=rank)


@pytest.fixture(scope="session")
def reference() -> list[dict[str, str]]:
    """What one aggregated engine answers, asked before anything else runs on these cores."""
    from diptych.models.hub import resolve_model

    script = Path(__file__).with_name("reference.py")
    with tempfile.TemporaryDirectory() as directory:
        questions, answers = Path(directory) / "questions.json", Path(directory) / "answers.json"
        questions.write_text(json.dumps(QUESTIONS))
        command = [sys.executable, str(script), str(resolve_model("embedded")), str(questions), str(answers)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr[-4000:]
        rows: list[dict[str, str]] = json.loads(answers.read_text())
        return rows


@pytest.fixture(scope="session")
def machine(reference: list[dict[str, str]]) -> Iterator[Service]:
    """The service, up or not; whatever a test left is taken down at the end."""
    with tempfile.TemporaryDirectory(prefix="dt-") as directory:
        service = Service(Path(directory))
        yield service
        service.down()
        left = leftovers(service) if service.plan else []
        assert left == []


@pytest.fixture
def service(machine: Service) -> Service:
    """The service, up and ready."""
    if not machine.is_up():
        machine.down()
        up = machine.up()
        assert up.returncode == 0, up.stderr
    return machine


@pytest.fixture
def stopped(machine: Service) -> Service:
    """The service, not up."""
    machine.down()
    return machine


@pytest.fixture(scope="session")
def chaos_machine() -> Iterator[ChaosService]:
    """The service whose KV link a test holds, up or not."""
    with tempfile.TemporaryDirectory(prefix="dt-") as directory:
        service = ChaosService(Path(directory))
        yield service
        service.down()
        assert (leftovers(service) if service.plan else []) == []


@pytest.fixture
def chaos(chaos_machine: ChaosService) -> ChaosService:
    """That service, up, ready and idle."""
    if not chaos_machine.is_up():
        chaos_machine.down()
        up = chaos_machine.up()
        assert up.returncode == 0, up.stderr
    return chaos_machine
