"""What is read out of an engine's own output: rails and known warnings, little by little and never without bound."""

import os
from pathlib import Path

import pytest

from diptych.serving import nixl_log
from diptych.serving.nixl_log import NixlLog

RAILS = "I1130 09:01:02.000003 77 libfabric_rail_manager.cpp:232] Created 4 rails using provider=efa\n"
OLD_RAILS = "Successfully created 1 rails using provider=tcp;ofi_rxm\n"
FAILED = (
    "(EngineCore pid=7) ERROR 11-30 [base_worker.py:984] NIXL transfer failure: transfer_failed | Context: "
    "{'request_id': 'chatcmpl-secret', 'remote_host': '10.0.0.1'}\n"
)
KINDS = {
    "ucx-on-efa": "W] 1 Amazon EFA(s) were detected, but the UCX backend was configured. For best performance, it's",
    "tcp-fallback": "I] Discovered 2 tcp devices (TCP fallback)",
    "no-fi-hmem": "W] VRAM memory requested but provider does not support FI_HMEM - falling back to system memory",
    "missing-plugin": "NIXL WARNING Skipping backend registration LIBFABRIC due to the missing plugin.",
    "cuda-not-registered": "Failed to register CUDA buffer with the EFA device, FI_HMEM transfers that require peer",
    "handshake-failed": "ERROR NIXL transfer failure: handshake_failed | Context: {}",
    "transfer-failed": "ERROR NIXL transfer failure: transfer_setup_failed. why | Context: {}",
}


class Process:
    """A process whose standard output and error are files."""

    def __init__(self, folder: Path) -> None:
        self.descriptors = folder / "fd"
        self.descriptors.mkdir()
        self.files = {number: folder / f"worker-{number}" for number in (1, 2)}
        for number, file in self.files.items():
            file.touch()
            self.descriptors.joinpath(str(number)).symlink_to(file)

    def says(self, text: str, number: int = 2) -> None:
        with self.files[number].open("a") as file:
            file.write(text)


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


@pytest.fixture
def log(process: Process) -> NixlLog:
    return NixlLog(process.descriptors)


@pytest.mark.parametrize(
    ("line", "rails"),
    [(RAILS, {"provider": "efa", "count": 4}), (OLD_RAILS, {"provider": "tcp;ofi_rxm", "count": 1})],
)
def test_rails_are_read(process: Process, log: NixlLog, line: str, rails: dict[str, object]) -> None:
    process.says("Backend LIBFABRIC was instantiated\n" + line)
    log.look()
    assert log.rails == rails


def test_a_backends_name_tells_no_rails(process: Process, log: NixlLog) -> None:
    process.says("Backend LIBFABRIC was instantiated\nRail Manager created with 4 rails\n")
    log.look()
    assert log.rails is None


@pytest.mark.parametrize("kind", KINDS)
def test_each_known_warning_is_told_with_its_line(process: Process, log: NixlLog, kind: str) -> None:
    process.says(f"something else\n{KINDS[kind]}\n", number=1)
    log.look()
    (told,) = log.warnings()
    assert told["kind"] == kind
    assert KINDS[kind].startswith(told["line"])


def test_what_a_warning_tells_of_a_request_is_left_out(process: Process, log: NixlLog) -> None:
    process.says(FAILED)
    log.look()
    (told,) = log.warnings()
    assert told["kind"] == "transfer-failed"
    assert "secret" not in told["line"]


def test_a_line_that_was_half_written_is_read_when_it_is_whole(process: Process, log: NixlLog) -> None:
    process.says(RAILS[:40])
    log.look()
    assert log.rails is None
    process.says(RAILS[40:])
    log.look()
    assert log.rails == {"provider": "efa", "count": 4}


def test_a_look_reads_only_what_is_new(
    process: Process, log: NixlLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.says(RAILS)
    log.look()
    taken: list[str] = []
    monkeypatch.setattr(log, "_take", lambda text, now: taken.append(text))
    process.says("one more\n")
    log.look()
    assert "".join(taken) == "one more\n"


def test_of_a_flood_only_the_end_is_read(
    process: Process, log: NixlLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl_log, "MOST_BYTES", 1000)
    process.says(KINDS["ucx-on-efa"] + "\n" + "x" * 5000 + "\n" + RAILS)
    log.look()
    assert log.rails == {"provider": "efa", "count": 4}
    assert log.warnings() == []


def test_a_log_that_was_cut_is_read_from_its_beginning(process: Process, log: NixlLog) -> None:
    process.says("x" * 500 + "\n")
    log.look()
    process.files[2].write_text(RAILS)
    log.look()
    assert log.rails is not None


def test_a_failure_is_forgotten_and_a_wrong_set_up_is_not(process: Process, log: NixlLog) -> None:
    process.says(FAILED + KINDS["ucx-on-efa"] + "\n")
    log.look(now=0.0)
    assert {each["kind"] for each in log.warnings(now=1.0)} == {"transfer-failed", "ucx-on-efa"}
    assert {each["kind"] for each in log.warnings(now=3600.0)} == {"ucx-on-efa"}


def test_output_that_is_no_file_is_left_alone(tmp_path: Path) -> None:
    descriptors = tmp_path / "fd"
    descriptors.mkdir()
    os.mkfifo(tmp_path / "pipe")
    descriptors.joinpath("2").symlink_to(tmp_path / "pipe")
    log = NixlLog(descriptors)
    log.look()
    assert (log.rails, log.warnings()) == (None, [])
