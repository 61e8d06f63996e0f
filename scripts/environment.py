"""The virtual environment that `scripts/setup.py` makes: what is in it, and whether the locks say so."""

import functools
import hashlib
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FORMAT = 1  # raise it when set-up comes to install the same locks in another way
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
LOCKS = ("lock.txt", "torch-cpu.txt", "torch-cuda.txt")


class Venv:
    """A virtual environment at a path, whether or not there is one yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = path / "bin" / "python"
        self.log = path / "setup.log"
        self.stamp = path / "setup.json"

    @functools.cached_property
    def version(self) -> str:
        """Its Python's version, as "3.11"; empty if it has none that runs."""
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        try:
            return subprocess.run([self.python, "-ISc", code], capture_output=True, text=True).stdout.strip()
        except OSError:
            return ""

    @property
    def site(self) -> Path:
        return self.path / "lib" / f"python{self.version}" / "site-packages"

    def is_usable(self) -> bool:
        """Whether its Python runs, is one that the engines have wheels for, and was set up where it lies now."""
        if not self.version or not (self.path / "pyvenv.cfg").exists():
            return False
        made = re.search(r"^command = (.*)$", (self.path / "pyvenv.cfg").read_text(), re.MULTILINE)
        moved = made is not None and not made.group(1).endswith(f" {self.path}")
        return not moved and OLDEST_PYTHON <= tuple(map(int, self.version.split("."))) <= NEWEST_PYTHON

    def is_ours(self) -> bool:
        """Whether set-up made it, and so may make it anew."""
        return self.log.exists()

    def clear(self) -> None:
        """Empty the directory, and mark it as ours from the first moment."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != self.log:
                entry.unlink()

    def metadata(self) -> list[Path]:
        return sorted(self.site.glob("*.dist-info"))

    def installed(self) -> dict[str, str]:
        """Version by normalised name."""
        found = (entry.name.removesuffix(".dist-info").rpartition("-") for entry in self.metadata())
        return {normalised(name): version for name, _, version in found}

    def lacks(self, pins: dict[str, str]) -> list[str]:
        """Those pins that are not installed in just that version."""
        installed = self.installed()
        return [pin for name, pin in pins.items() if installed.get(name) != pinned_version(pin)]

    def is_ready(self, dev: bool) -> bool:
        """Whether the last set-up ended well, was of these locks, and its packages are still there."""
        stamp = self._read_stamp()
        if not stamp or stamp["digest"] != self._digest(dev):
            return False
        return {entry.name for entry in self.metadata()}.issuperset(stamp["packages"])

    def has_dev(self) -> bool:
        return bool(self._read_stamp().get("dev"))

    def write_stamp(self, dev: bool) -> None:
        packages = [entry.name for entry in self.metadata()]
        partial = self.stamp.with_suffix(".partial")
        partial.write_text(
            json.dumps({"digest": self._digest(dev), "dev": dev, "packages": packages}, indent=1)
        )
        partial.rename(self.stamp)

    def remove_halves(self) -> None:
        """Forget packages whose installation was cut short, so that pip installs them over what is there.

        pip writes a package's files, then INSTALLER, then the list of both, RECORD.
        """
        for metadata in self.metadata():
            try:
                whole = f"{metadata.name}/INSTALLER," in (metadata / "RECORD").read_text()
            except OSError:
                whole = False
            if not whole:
                shutil.rmtree(metadata)

    def _read_stamp(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.stamp.read_bytes()))
        except (OSError, ValueError):
            return {}

    def _digest(self, dev: bool) -> str:
        """Of all that decides what is installed here."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        parts = [FORMAT, self.version, str(self.path), str(ROOT), project["project"], project["build-system"]]
        locks = [*LOCKS, "dev.txt"] if dev else LOCKS
        texts = [(ROOT / "requirements" / name).read_text() for name in locks]
        return hashlib.sha256(json.dumps([parts, texts]).encode()).hexdigest()


def read_lock(name: str) -> dict[str, str]:
    """Pin (`name==version`, perhaps with a marker) by normalised name."""
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return {normalised(line.split("==")[0]): line for line in lines if line and not line.startswith("#")}


def pinned_version(pin: str) -> str:
    """
    >>> pinned_version('intel-openmp==2024.2.1 ; platform_machine == "x86_64"')
    '2024.2.1'
    """
    return re.split("==|;", pin)[1].strip()


def normalised(name: str) -> str:
    """
    >>> normalised("Jinja2"), normalised("pydantic_core")
    ('jinja2', 'pydantic-core')
    """
    return re.sub(r"[-_.]+", "-", name).lower()
