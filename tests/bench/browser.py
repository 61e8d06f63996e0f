"""A page as a real browser shows it."""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass(frozen=True)
class Shown:
    """What became of a page: its elements once scripts have run, the picture's file, what the console said."""

    dom: str
    picture: Path
    console: str


def show(page: Path) -> Shown:
    """Open a file; skips the test where there is no browser."""
    if _CHROMIUM is None:
        pytest.skip("no chromium here to look at the report in")
    picture = page.with_suffix(".png")
    quiet = ("background-networking", "component-update", "sync", "quic", "gpu")
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile:
        done = subprocess.run(
            [
                *(_CHROMIUM, "--headless", "--no-sandbox", "--no-first-run", "--enable-logging=stderr"),
                *(f"--disable-{each}" for each in quiet),
                *(f"--user-data-dir={profile}", "--window-size=1200,2400", "--virtual-time-budget=10000"),
                *(f"--screenshot={picture}", "--dump-dom", page.as_uri()),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return Shown(done.stdout, picture, console)
