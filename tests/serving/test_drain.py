"""A pod ends when Ray has drained, however KubeRay started it."""

import subprocess
import sys
import time
from pathlib import Path

from diptych.serving.drain import drain, is_running, ray_start_process

# Stands for Ray: told to end, it takes a moment, and then says so.
RAY = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(0.5)
    pathlib.Path(sys.argv[-1]).write_text("drained")
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(60)
"""


def start_ray(tmp_path: Path, *, below_a_shell: bool) -> subprocess.Popen[str]:
    program = tmp_path / "ray"
    program.write_text(RAY)
    words = [
        sys.executable,
        str(program),
        "start",
        "--address=10.0.0.1:6379",
        "--block",
        str(tmp_path / "end"),
    ]
    if below_a_shell:  # one that ignores the signal, as the first process of a container does
        words = ["bash", "-c", 'trap "" TERM; "$@"; true', "bash", *words]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def only(*processes: int, tmp_path: Path) -> Path:
    """A /proc that shows these processes alone: others on this machine may be Ray's as well."""
    proc = tmp_path / "proc"
    proc.mkdir(exist_ok=True)
    for process in processes:
        (proc / str(process)).symlink_to(f"/proc/{process}")
    return proc


def children(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_ray_is_told_and_awaited_below_a_shell_that_takes_no_notice(tmp_path: Path) -> None:
    shell = start_ray(tmp_path, below_a_shell=True)
    proc = only(shell.pid, *children(shell.pid), tmp_path=tmp_path)
    assert ray_start_process(proc) in children(shell.pid)
    assert drain(proc) == 0
    assert (tmp_path / "end").read_text() == "drained"
    shell.communicate(timeout=10)


def test_ray_is_told_and_awaited_where_it_is_the_first_process(tmp_path: Path) -> None:
    ray = start_ray(tmp_path, below_a_shell=False)
    proc = only(ray.pid, tmp_path=tmp_path)
    assert drain(proc) == 0
    assert (tmp_path / "end").read_text() == "drained"
    ray.communicate(timeout=10)


def test_a_pod_without_ray_ends_at_once(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "start", "--block"])
    started = time.monotonic()
    assert drain(only(other.pid, tmp_path=tmp_path)) == 0
    assert time.monotonic() - started < 1
    assert is_running(other.pid)
    other.kill()
    other.wait()
    assert not is_running(other.pid)
