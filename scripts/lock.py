"""Make the locks in `requirements/`: every version that `scripts/setup.py` installs.

    python -m pip install uv packaging && python scripts/lock.py [--upgrade]

uv resolves once for all of `TARGETS`, keeping the versions locked before unless `--upgrade` is given. What
`requirements/dropped.txt` names is left out, with what only that asks for. In the end uv is asked again, per
target, whether each version has a wheel for it: nothing here is ever compiled.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
TARGETS = [(python, machine) for python in PYTHONS for machine in MACHINES]
GLIBC = "2_31"
TORCH = "2.13.0"
# PyPI's torch is built for CUDA; these come with it and with nothing else.
OF_CUDA = ("torch", "nvidia-", "cuda-")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the locks in requirements/.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions, not those locked")
    upgrade = parser.parse_args().upgrade
    everything = resolve(["--extra=bench", "--extra=eks"], upgrade)
    cuda = {name: pin for name, pin in everything.items() if name.startswith(OF_CUDA)}
    base = {name: pin for name, pin in everything.items() if name not in cuda}
    dev = {
        name: pin
        for name, pin in resolve(["--extra=bench", "--extra=eks", "--extra=dev"], upgrade).items()
        if name not in everything
    }
    write("lock.txt", "The engines, what they need, and what this project needs.", base)
    write("dev.txt", "What `make test` needs besides.", dev)
    write("torch-cuda.txt", "torch as PyPI has it: built for CUDA, works on a CPU.", cuda)
    write(
        "torch-cpu.txt", "torch built for CPUs, which PyPI does not have.", {"torch": f"torch=={TORCH}+cpu"}
    )
    for target in TARGETS:
        check_wheels(*target)


def resolve(options: list[str], upgrade: bool) -> dict[str, str]:
    """Every requirement by name, as `name==version`, with a marker where not every target needs it."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "pyproject.toml").write_text(dependencies_alone())
        (work / "torch.txt").write_text(f"torch=={TORCH}\n")
        if not upgrade:
            (work / "locked.txt").write_text("".join(file.read_text() for file in LOCKS.glob("*.txt")))
        scope = ["--universal", f"--python-version={PYTHONS[0]}", *options]
        changes = ["--overrides=torch.txt", f"--excludes={LOCKS / 'dropped.txt'}"]
        sources = ["pyproject.toml", str(LOCKS / "engines.in")]
        uv([*scope, *changes, "--no-annotate", "--output-file=locked.txt", *sources], work)
        found = [Requirement(line) for line in (work / "locked.txt").read_text().splitlines()]
    return {item.name: pin for item in found if (pin := pinned(item))}


def dependencies_alone() -> str:
    """A pyproject.toml with this project's dependencies, limited to the targets' machines."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    machines = [f"sys_platform == 'linux' and platform_machine == '{machine}'" for machine in MACHINES]
    optional = project["optional-dependencies"].items()
    extras = "\n".join(f"{extra} = {json.dumps(wanted)}" for extra, wanted in optional)
    return (
        f'[project]\nname = "{project["name"]}"\nversion = "0"\nrequires-python = ">={PYTHONS[0]}"\n'
        f"dependencies = {json.dumps(project['dependencies'])}\n"
        f"[project.optional-dependencies]\n{extras}\n"
        f"[tool.uv]\nenvironments = {json.dumps(machines)}\n"
    )


def pinned(item: Requirement) -> str | None:
    """The requirement with the shortest marker that says the same of the targets; None if none needs it."""
    targets = [(python, machine) for python, machine in TARGETS if needed(item, python, machine)]
    pythons = [python for python in PYTHONS if any(python == target[0] for target in targets)]
    machines = [machine for machine in MACHINES if any(machine == target[1] for target in targets)]
    if not targets:
        return None
    if len(targets) != len(pythons) * len(machines):
        return f"{item.name}{item.specifier} ; {item.marker}"
    limits = [
        either("python_version", pythons) if len(pythons) < len(PYTHONS) else "",
        either("platform_machine", machines) if len(machines) < len(MACHINES) else "",
    ]
    marker = " and ".join(limit for limit in limits if limit)
    return f"{item.name}{item.specifier}" + (f" ; {marker}" if marker else "")


def either(variable: str, values: list[str]) -> str:
    """
    >>> either("python_version", ["3.11", "3.12"])
    '(python_version == "3.11" or python_version == "3.12")'
    """
    choice = " or ".join(f'{variable} == "{value}"' for value in values)
    return f"({choice})" if len(values) > 1 else choice


def needed(item: Requirement, python: str, machine: str) -> bool:
    target = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_machine": machine,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
    }
    return item.marker is None or item.marker.evaluate(target)


def write(name: str, purpose: str, pins: dict[str, str]) -> None:
    head = f"# {purpose}\n# Made by scripts/lock.py for Python {PYTHONS[0]} to {PYTHONS[-1]}; not by hand.\n"
    (LOCKS / name).write_text(head + "".join(f"{pins[package]}\n" for package in sorted(pins)))
    print(f"requirements/{name}: {len(pins)} packages")


def check_wheels(python: str, machine: str) -> None:
    """Refuse a version without a wheel for the target."""
    target = [f"--python-version={python}", f"--python-platform={machine}-manylinux_{GLIBC}"]
    files = [str(LOCKS / name) for name in ("lock.txt", "dev.txt", "torch-cuda.txt")]
    uv([*target, "--no-deps", "--only-binary=:all:", "--output-file=/dev/null", *files], ROOT)
    print(f"Python {python} on {machine}: a wheel of each")


def uv(arguments: list[str], directory: Path) -> None:
    """Run `uv pip compile` without the settings of whoever runs this."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", *arguments]
    subprocess.run(command, cwd=directory, env=environment, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
