"""Programs run without a shell, tell all they print, and leave nothing running, however they end."""

import os
import signal
import stat
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from diptych.errors import ClusterError, SetupError
from diptych.kube.programs import HELM, Program, Tool, find, run
from diptych.progress import View
from fakes import real_tools


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diptych.kube.child.TERMINATE_S", 0.5)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is first in PATH."""
    found = tmp_path / "bin"
    found.mkdir()
    monkeypatch.setenv("PATH", f"{found}:{os.environ['PATH']}")
    return found


def install(folder: Path, name: str, code: str) -> Tool:
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(code)}")
    path.chmod(0o755)
    return Tool(Program(name, (), (0, 0), (9, 0), ""), path, "1.0")


def prints(folder: Path, text: str, code: int = 0) -> None:
    install(folder, "helm", f"import sys; print({text!r}); sys.exit({code})")


@pytest.mark.parametrize("told", ["v3.14.0+g3fc9f4b", "v3.19.2", "v4.1.4"])
def test_helm_is_found_at_the_versions_that_work(folder: Path, told: str) -> None:
    prints(folder, told)
    assert find(HELM).path == folder / "helm"


@pytest.mark.parametrize("told", ["v3.13.9", "v2.17.0", "v5.0.0"])
def test_other_versions_are_refused_with_those_that_work(folder: Path, told: str) -> None:
    prints(folder, told)
    with pytest.raises(SetupError, match="not known to work") as caught:
        find(HELM)
    assert "3.14" in caught.value.hint and "https://helm.sh" in caught.value.hint


def test_a_program_that_is_missing_is_named_with_where_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="helm is not in PATH") as caught:
        find(HELM)
    assert "https://helm.sh" in caught.value.hint


def test_the_real_helm_is_found(folder: Path) -> None:
    (folder / "helm").symlink_to(real_tools.helm())
    assert find(HELM).version.startswith("4.")


def test_one_that_does_not_run_is_told(folder: Path) -> None:
    prints(folder, "cannot execute", code=1)
    with pytest.raises(SetupError, match="does not tell its version"):
        find(HELM)


def test_all_that_it_prints_is_told_and_logged_and_its_output_is_apart(folder: Path, tmp_path: Path) -> None:
    tool = install(
        folder,
        "talker",
        """
        import sys
        print("one", flush=True)
        print("a warning", file=sys.stderr, flush=True)
        sys.exit(3)
        """,
    )
    told: list[str] = []
    log = tmp_path / "logs" / "talker.log"
    done = run(tool, ["--flag", "a b"], log=log, timeout_s=20, on_line=told.append)
    assert (done.code, sorted(done.lines), done.output) == (3, ["a warning", "one"], "one\n")
    assert sorted(told) == ["a warning", "one"]
    assert log.read_text().startswith("$ talker --flag 'a b'\n") and log.read_text().endswith("exit 3\n")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_arguments_never_go_through_a_shell(folder: Path, tmp_path: Path) -> None:
    tool = install(folder, "echo-arguments", "import sys; print(sys.argv[1:])")
    nasty = "$(touch /tmp/never); `id` | cat"
    done = run(tool, [nasty], log=tmp_path / "log", timeout_s=20)
    assert done.output == f"{[nasty]}\n"


def test_secrets_are_masked_wherever_they_turn_up(folder: Path, tmp_path: Path) -> None:
    tool = install(
        folder,
        "indiscreet",
        "import sys; text = sys.stdin.read(); print('got ' + text); print(text, file=sys.stderr)",
    )
    told: list[str] = []
    log = tmp_path / "log"
    done = run(tool, [], log=log, timeout_s=20, input="hf_secret", secrets=["hf_secret"], on_line=told.append)
    assert done.output == "got ***\n" and "***" in told
    assert "hf_secret" not in log.read_text() + str(done) + str(told)


def test_one_that_takes_too_long_is_ended_with_all_that_it_started(folder: Path, tmp_path: Path) -> None:
    tool = install(folder, "slow", STUBBORN)
    began = time.monotonic()
    with pytest.raises(ClusterError, match="slow go did not end within 1 s") as caught:
        run(tool, ["go", str(tmp_path / "pids")], log=tmp_path / "log", timeout_s=1)
    assert time.monotonic() - began < 12
    assert str(tmp_path / "log") in caught.value.hint
    assert all_end(tmp_path / "pids")


def test_what_a_program_left_behind_does_not_hold_it_up_and_is_ended(folder: Path, tmp_path: Path) -> None:
    tool = install(
        folder,
        "leaver",
        """
        import subprocess, sys
        child = subprocess.Popen(["sleep", "60"])
        open(sys.argv[1], "w").write(f"{child.pid}\\n")
        """,
    )
    began = time.monotonic()
    assert run(tool, [str(tmp_path / "pids")], log=tmp_path / "log", timeout_s=30).code == 0
    assert time.monotonic() - began < 10
    assert all_end(tmp_path / "pids")


def test_a_dry_run_tells_the_command_and_runs_nothing(folder: Path, tmp_path: Path) -> None:
    tool = install(folder, "never", "open('ran', 'w')")
    told: list[str] = []

    class Listening(View):
        def say(self, text: str) -> None:
            told.append(text)

    assert (
        run(tool, ["a", "b c"], log=tmp_path / "log", timeout_s=5, dry_run=True, view=Listening()).code == 0
    )
    assert told == ["would run never a 'b c'"]
    assert not (tmp_path / "log").exists()


def test_ctrl_c_lets_the_program_tidy_up_and_then_ends(folder: Path, tmp_path: Path) -> None:
    tool = install(
        folder,
        "tidy",
        """
        import signal, sys, time
        def leave(*_):
            time.sleep(0.3)
            print("tidied", flush=True)
            open(sys.argv[1], "w").write("done")
            sys.exit(1)
        signal.signal(signal.SIGINT, leave)
        print("started", flush=True)
        time.sleep(60)
        """,
    )
    log = tmp_path / "log"
    with pytest.raises(KeyboardInterrupt):
        run(tool, [str(tmp_path / "tidied")], log=log, timeout_s=60, on_line=lambda _: interrupt())
    assert (tmp_path / "tidied").read_text() == "done"
    assert log.read_text().endswith("interrupted\n")


def test_a_second_ctrl_c_hastens_one_that_does_not_listen(folder: Path, tmp_path: Path) -> None:
    tool = install(folder, "stubborn", STUBBORN)
    timer = threading.Timer(1.5, interrupt)
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(
            tool,
            ["go", str(tmp_path / "pids")],
            log=tmp_path / "log",
            timeout_s=60,
            on_line=lambda _: interrupt(),
        )
    assert time.monotonic() - began < 15
    assert all_end(tmp_path / "pids")


def test_a_terminals_ctrl_c_does_not_reach_the_program_twice(folder: Path, tmp_path: Path) -> None:
    """It is in a session of its own; a terminal sends SIGINT to the whole foreground group."""
    tool = install(folder, "session", "import os; print(os.getsid(0) == os.getpid())")
    assert run(tool, [], log=tmp_path / "log", timeout_s=20).output == "True\n"


STUBBORN = """
import signal, subprocess, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", deaf])
open(sys.argv[2], "w").write(f"{child.pid}\\n")
print("started", flush=True)
time.sleep(60)
"""


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def all_end(path: Path) -> bool:
    """Whether the processes whose numbers a file has end within a few seconds."""
    deadline = time.monotonic() + 5
    while any(alive(int(line)) for line in path.read_text().split()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
