"""Every command without a service: what it says in a line or two, its exit code, and never a traceback."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diptych import __version__
from diptych.cli import main
from diptych.local import state as local_state
from diptych.local.paths import ServicePaths
from fakes.state import remember


def diptych(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "diptych", *arguments],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["status"], 3, "Nothing is up"),
        (["status", "--name", "x"], 3, "No service called 'x'"),
        (["chat", "Hello"], 3, "No service called 'diptych'"),
        (["logs"], 3, "no logs of a service called 'diptych'"),
        (["logs", "prefil"], 2, "'prefil' is not a phase"),
        (["down"], 3, "No service called 'diptych'"),
        (["up", "no/such/file.yaml"], 2, "no/such/file.yaml"),
        (["up", "--set", "prefil.cores=1"], 2, "prefil"),
        (["up", "--set", "nonsense"], 2, "nonsense"),
        (["up", "--port", "99999"], 2, "99999"),
        (["up", "--name", "Not A Name"], 2, "Not A Name"),
        (["up", "--model", "./no/such/model"], 2, "no/such/model"),
        (["up", "--set", "decode.engine_kwargs.max_model_len=9"], 2, "P201"),
        (["forward"], 3, "No service called 'diptych'"),
        (["up", "--step", "nodes"], 2, "there is one step, service"),
        (["up", "--dry-run"], 2, "no dry run"),
        (["up", "examples/qwen3.5-9b-g6.yaml", "--step", "pods"], 2, "there is no step 'pods'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_said_in_a_line_or_two_with_its_exit_code(
    arguments: list[str], code: int, said: str
) -> None:
    done = diptych(*arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stdout == ""
    progress, error, message = done.stderr.partition("Error: ")
    assert error
    assert all(line.endswith("model started") for line in progress.splitlines())
    assert 1 <= len(message.splitlines()) <= 3
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [["--nonsense"], ["statu"], ["up", "--prot", "1"], ["chat", "--max-tokens", "no"]]
)
def test_wrong_usage_is_worded_by_the_command_line_itself(arguments: list[str]) -> None:
    done = diptych(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Usage" in done.stderr
    assert arguments[-2 if arguments[0] in ("up", "chat") else -1] in done.stderr


def test_the_version_is_the_packages() -> None:
    done = diptych("--version")
    assert (done.returncode, done.stdout) == (0, f"diptych {__version__}\n")


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['diptych', '--help']\n"
        "from diptych.cli import main\n"
        "try: main()\n"
        "except SystemExit as leave: code = leave.code\n"
        "heavy = {'ray', 'vllm', 'torch', 'transformers', 'pydantic', 'psutil', 'httpx', 'yaml'} & set(sys.modules)\n"
        "print(code, sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
    for command in ("up", "status", "chat", "logs", "down"):
        assert f" {command} " in done.stdout


def test_help_answers_on_a_busy_machine_too() -> None:
    def ask(command: str) -> float:
        began = time.monotonic()
        assert diptych(command, "--help").returncode == 0
        return time.monotonic() - began

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(ask, ["up", "status", "chat", "logs", "down"] * 3)) < 20


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="`up` wants the engines first")
def test_a_port_that_was_asked_for_and_is_held_is_told_with_its_holder(tmp_path: Path) -> None:
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"\0" * 64)
    (model / "tokenizer.json").write_text("{}")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = str(server.getsockname()[1])
        done = diptych("up", "--model", str(model), "--port", port)
    assert done.returncode == 2
    assert f"Error: Port {port} is in use by" in done.stderr
    assert f"(pid {os.getpid()})" in done.stderr
    assert list(ServicePaths.of("diptych").directory.glob("*key*")) == []


@pytest.mark.parametrize("arguments", [["up"], ["up", "--name", "x"]])
def test_a_state_directory_that_cannot_be_written_is_told_apart(
    state_root: Path, arguments: list[str]
) -> None:
    state_root.write_text("a file in the way")
    done = diptych(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Diptych cannot write its state to")
    assert "DIPTYCH_STATE_DIR" in done.stderr


def test_status_of_nothing_is_an_empty_list_in_json() -> None:
    done = diptych("status", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (3, [])


def test_status_of_a_service_whose_keeper_was_killed_says_what_to_do() -> None:
    remember("one")
    done = diptych("status")
    assert done.returncode == 1
    assert "one: not ready" in done.stdout
    assert "The keeper of this service is gone" in done.stdout
    told = json.loads(diptych("status", "--json").stdout)
    assert (told["name"], told["ready"], told["processes"]) == ("one", False, 0)
    assert diptych("down").returncode == 0
    assert diptych("status").returncode == 3


def test_with_two_services_up_the_one_that_is_meant_must_be_named() -> None:
    remember("one")
    remember("two")
    for command in ("down", "logs"):
        done = diptych(command)
        assert done.returncode == 3
        assert "one on local, two on local" in done.stderr
        assert "--name" in done.stderr
    assert [told["name"] for told in json.loads(diptych("status", "--json").stdout)] == ["one", "two"]
    assert diptych("down", "--name", "two").returncode == 0
    assert json.loads(diptych("status", "--json").stdout)["name"] == "one"


def test_a_state_that_is_no_json_is_as_good_as_none() -> None:
    paths = ServicePaths.of("one")
    paths.create()
    paths.state.write_text("{")
    assert diptych("status", "--name", "one").returncode == 3
    assert diptych("down", "--name", "one").returncode == 3


def test_a_fault_of_our_own_is_one_sentence_and_a_report_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken() -> list[str]:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(local_state, "known_names", broken)
    monkeypatch.setattr(sys, "argv", ["diptych", "down"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr().err
    assert left.value.code == 70
    assert "ZeroDivisionError: a bug" in said
    assert "Traceback" not in said
    (report,) = tmp_path.glob("diptych-error-*.txt")
    assert report.name in said.replace("\n", "")
    assert "in broken" in report.read_text()


def test_ctrl_c_is_exit_code_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed() -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(local_state, "known_names", pressed)
    monkeypatch.setattr(sys, "argv", ["diptych", "down"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 130
    assert "Traceback" not in capsys.readouterr().err


def test_output_that_nobody_reads_is_no_error() -> None:
    remember("one")
    command = f"{sys.executable} -m diptych status --json | true"
    done = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert done.stderr == ""
    assert done.returncode in (0, 1, 141)
