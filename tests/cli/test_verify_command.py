"""`diptych verify` as it is typed: lines, evidence, exit codes, JSON, a watch until Ctrl-C, and odd cases in words."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.commands import process_of
from diptych.local.paths import ServicePaths
from diptych.local.state import load
from diptych.local.status import look
from diptych.remembering import write_private
from diptych.verify.proof import NAMES
from fakes import probed
from fakes.provable_endpoint import ADMIN_KEY, KEY, MODEL, ProvableEndpoint, probing
from fakes.state import remember


@pytest.fixture
def fake() -> Iterator[ProvableEndpoint]:
    """An endpoint, and the state of a service called `one` that is there."""
    with ProvableEndpoint() as server:
        paths = remember("one", url=server.url, model=MODEL)
        write_private(paths.admin_key, f"{ADMIN_KEY} admin\n")
        yield server


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(**process_of("verify", *arguments), capture_output=True, timeout=60)


def test_each_proof_is_a_line_then_comes_the_evidence_and_the_verdict(fake: ProvableEndpoint) -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [re.split(r"\s+", line)[:2] for line in lines[:5]] == [["✓", name] for name in NAMES]
    assert "UCX was asked for, and carried the KV cache: UCX over shared memory" in lines[1]
    assert "libplugin_UCX.so" in done.stdout
    assert lines[-1] == "All proofs hold."
    assert [line for line in done.stderr.splitlines() if line.endswith(" …")] == [
        f"{stage} …" for stage in ("status", *NAMES)
    ]


def test_a_failure_exits_with_1_and_says_what_was_seen_what_else_and_what_to_do(
    fake: ProvableEndpoint,
) -> None:
    fake.behaviour.probe = probing(probed.still_efa)
    done = run("--name", "one")
    assert done.returncode == 1
    assert "✗ transport" in done.stdout
    assert "EFA was asked for, and LIBFABRIC over tcp is in use" in done.stdout
    assert "otherwise: NIXL falls back without an error" in done.stdout
    assert "→ docs/proof.md#transport" in done.stdout
    assert done.stdout.splitlines()[-1] == "Not proven (transport failed; speed with a warning)."


def test_json_is_one_object_of_the_documented_shape(fake: ProvableEndpoint) -> None:
    done = run("--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["holds"]) == (0, True)
    assert set(report) == {"holds", "endpoint", "model", "topology", "versions", "proofs"}
    assert [proof["name"] for proof in report["proofs"]] == list(NAMES)
    for proof in report["proofs"]:
        assert set(proof) == {"name", "state", "says", "otherwise", "do", "evidence", "took_s"}
        assert all(set(one) == {"what", "value", "verdict"} for one in proof["evidence"])
    assert done.stderr == ""


def test_a_fallback_that_is_allowed_exits_with_0_and_every_status_says_so_until_it_is_gone(
    fake: ProvableEndpoint,
) -> None:
    fake.behaviour.probe = probing(probed.tcp_for_efa)
    assert run().returncode == 1
    done = run("--allow-fallback")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "All proofs hold (transport, speed with a warning)."
    status = look("one")
    assert status is not None
    assert status.to_json()["fallback"].startswith("EFA was asked for, and LIBFABRIC over tcp is in use")
    fake.behaviour.probe = probing(probed.one_rail)  # slower than it should be, and no fallback
    assert run("--allow-fallback").returncode == 0
    state = load(ServicePaths.of("one"))
    assert state is not None
    assert state.fallback is None


def test_one_engine_for_both_phases_says_what_can_be_proven(fake: ProvableEndpoint) -> None:
    fake.behaviour.aggregated = True
    done = run()
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == (
        "What can be proven here holds (split, transport, speed could not be proven here)."
    )


def test_the_document_says_which_service(
    fake: ProvableEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "one.yaml"
    document.write_text("version: 1\nname: one\n")
    assert run(str(document)).returncode == 0
    assert run(str(document), "--name", "one").returncode == 2
    document.write_text("version: 1\nname: one\non: kubernetes\nmodel: Qwen/Qwen3-0.6B\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    done = run(str(document))
    assert (done.returncode, "kubeconfig" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("spoil", "words", "code"),
    [
        (lambda fake: ServicePaths.of("one").state.unlink(), "No service called", 3),
        (lambda fake: setattr(fake.behaviour, "probe", None), "runs a version of Diptych without", 1),
        (lambda fake: setattr(fake.behaviour, "down", True), "takes no request now (503)", 1),
        (lambda fake: ServicePaths.of("one").admin_key.write_text(KEY), "a proof needs an admin key", 1),
        (lambda fake: ServicePaths.of("one").admin_key.write_text("wrong"), "does not accept the key", 1),
        (lambda fake: ServicePaths.of("one").admin_key.unlink(), "cannot be read", 1),
    ],
)
def test_odd_cases_are_told_in_words_without_a_traceback(
    spoil: Any, words: str, code: int, fake: ProvableEndpoint
) -> None:
    spoil(fake)
    for arguments in ((), ("--json",)):
        done = run(*arguments)
        assert done.returncode == code, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


def started(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        **process_of("verify", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def test_ctrl_c_in_the_middle_of_a_proof_leaves_with_130_and_no_traceback(fake: ProvableEndpoint) -> None:
    def slow(tokens: list[int]) -> Any:
        time.sleep(5)
        return probing(probed.ucx_here)(tokens)

    fake.behaviour.probe = slow
    process = started()
    while not fake.behaviour.asked:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_watch_prints_what_changes_and_ctrl_c_ends_it_with_the_last_rounds_verdict(
    fake: ProvableEndpoint,
) -> None:
    process = started("--watch", "--period", "1")
    assert process.stdout is not None
    assert "All proofs hold." in process.stdout.readline()
    fake.behaviour.probe = probing(probed.still_efa)
    assert "✗ transport" in process.stdout.readline()
    while "✓ transport" not in (line := process.stdout.readline()):
        assert line
        fake.behaviour.probe = probing(probed.ucx_here)
    while "✓ speed" not in process.stdout.readline():
        pass
    fake.behaviour.down = True
    assert "takes no request now (503)" in process.stdout.readline()
    fake.behaviour.down = False
    assert "All proofs hold." in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 0, errors
    assert "Watched for" in errors


def test_a_watch_for_programs_prints_one_line_for_each_round(fake: ProvableEndpoint) -> None:
    process = started("--watch", "--period", "1", "--json")
    assert process.stdout is not None
    rounds = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert [one["holds"] for one in rounds] == [True, True]
    assert rounds[1]["at"] - rounds[0]["at"] >= 0.5  # a period of 1 s, from begin to begin
    fake.behaviour.down = True
    while "error" not in (told := json.loads(process.stdout.readline())):
        pass
    assert told["holds"] is False
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 1
