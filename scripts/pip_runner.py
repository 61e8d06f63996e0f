"""pip inside a virtual environment, for `scripts/setup.py`: side by side, watched, its failures in sentences."""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PROGRESS_SECONDS = 15
GB = 1e9
NO_ROUTE = (
    "NewConnectionError|NameResolutionError|ConnectTimeout|Connection refused|Max retries exceeded|ProxyError"
    "|Temporary failure in name resolution|Name or service not known|Network is unreachable"
)
BROKEN_OFF = "ReadTimeoutError|IncompleteRead|ConnectionResetError|Connection broken|RemoteDisconnected"
# Lines that say nothing about a failure.
NOISE = re.compile(
    r"\s*$|WARNING: (Location .* is ignored|pip index is currently)|\[notice\]|Looking in |Collecting |  Using cached "
)


class SetupFailure(Exception):  # noqa: N818 - the one exception of a program, shown as a sentence
    """What went wrong, in a sentence that says what to do, and the last words of the program that failed."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class Job(NamedTuple):
    """One run of pip: its arguments and where its output goes."""

    arguments: list[str]
    output: Path


class Pip:
    """The pip of one virtual environment.

    Args:
        python: of the environment.
        log: every run's output is added to it.
        scratch: pip's temporary files; removed by `close`.
        say: prints a line of progress.
    """

    def __init__(self, python: Path, log: Path, scratch: Path, say: Callable[[str], None]) -> None:
        self.python, self.log, self.scratch, self.say = python, log, scratch, say
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()

    def close(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)

    def install(self, doing: str, *groups: list[str], count: Callable[[], str] | None = None) -> None:
        """Install groups of requirements and options side by side, and nothing but what they name.

        Bytecode is left out: it is compiled afterwards, on all cores and only where it is used.

        Args:
            doing: what this is, for messages.
            groups: arguments of `pip install`, a list for each process.
            count: how many packages are in place, in words; told now and then.
        """
        common = ["install", "--no-deps", "--no-compile", "--progress-bar=off"]
        self.run_all(doing, [[*common, *group] for group in groups], count)

    def run_all(self, doing: str, runs: list[list[str]], count: Callable[[], str] | None = None) -> None:
        """Run pip with each list of arguments, all at once.

        Raises:
            SetupFailure: one failed; the others are ended.
        """
        jobs = [Job(arguments, self.scratch / f"pip-{number}.txt") for number, arguments in enumerate(runs)]
        processes = [self._start(job) for job in jobs]
        try:
            self._wait(processes, count)
        finally:
            for process in processes:
                process.terminate()  # does nothing to one that has ended
            for process, job in zip(processes, jobs, strict=True):
                process.wait()
                self._log(" ".join(job.arguments), job.output.read_text(errors="replace"))
        for process, job in zip(processes, jobs, strict=True):
            if process.returncode > 0:
                output = job.output.read_text(errors="replace")
                raise SetupFailure(explained(output, doing, self.scratch), last_words(output))
        if any(process.returncode for process in processes):
            raise SetupFailure(f"pip was ended by another program while {doing}: run the same command again.")

    def versions(self, package: str, options: list[str]) -> tuple[list[str], str]:
        """The versions of a package that fit this Python, and pip's complaints; gives up within seconds."""
        limits = ["--timeout=8", "--retries=1"]
        run = subprocess.run(
            self._command(["index", "versions", package, *limits, *options]),
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        self._log(f"index versions {package} {' '.join(options)}", run.stdout + run.stderr)
        listed = re.search(r"^Available versions: (.*)$", run.stdout, re.MULTILINE)
        return (listed.group(1).split(", ") if listed else []), run.stderr

    def _wait(self, processes: "list[subprocess.Popen[bytes]]", count: Callable[[], str] | None) -> None:
        """Until all have ended or one has failed."""
        told = time.monotonic()
        while any(process.poll() is None for process in processes):
            if any(process.returncode for process in processes):
                return
            if count and time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                fetched = fetched_bytes(self.scratch) / 1e6
                self.say(f"  {count()} in place" + (f", {fetched:.0f} MB fetched" if fetched else ""))
            time.sleep(0.1)

    def _start(self, job: Job) -> "subprocess.Popen[bytes]":
        with job.output.open("wb") as output:
            return subprocess.Popen(
                self._command(job.arguments),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _command(self, arguments: list[str]) -> list[str]:
        return [str(self.python), "-I", "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments]

    def _environment(self) -> dict[str, str]:
        """The user's, for mirrors and proxies, less what would send packages elsewhere or ask for more."""
        astray = (
            "PIP_TARGET",
            "PIP_PREFIX",
            "PIP_ROOT",
            "PIP_USER",
            "PIP_REQUIRE_HASHES",
            "PIP_QUIET",
            "PIP_LOG",
        )
        kept = {name: value for name, value in os.environ.items() if name not in astray}
        return kept | {"TMPDIR": str(self.scratch), "PIP_ROOT_USER_ACTION": "ignore"}

    def _log(self, title: str, output: str) -> None:
        with contextlib.suppress(OSError), self.log.open("a") as log:  # a full disk is told of otherwise
            log.write(f"\n$ pip {title}\n{output}")


def explained(output: str, doing: str, place: Path) -> str:
    """What a program's output comes down to, and what to do."""
    free = shutil.disk_usage(place).free / GB
    refused = re.search(r"(?:Permission denied|Read-only file system|File exists): '([^']+)'", output)
    absent = re.search(r"No matching distribution found for (\S+)", output)
    if re.search("No space left on device|Disk quota exceeded", output):
        do = "free some space, or name a place on a larger disk with --venv"
        return f"the disk is full ({free:.1f} GB free) while {doing}: {do}."
    if refused:
        do = "make it writable, or name another place with --venv"
        return f"{refused.group(1)} can't be written while {doing}: {do}."
    if "CERTIFICATE_VERIFY_FAILED" in output:
        do = "set PIP_CERT to your organisation's certificates"
        return f"the package index's certificate is not trusted while {doing}: {do}."
    if re.search(NO_ROUTE, output):
        do = "check the network and HTTPS_PROXY, or name a mirror in PIP_INDEX_URL"
        return f"pip can't reach its package index while {doing}: {do}."
    if re.search(BROKEN_OFF, output):
        return f"the connection broke off while {doing}: run the same command again, it goes on from here."
    if absent:
        do = "add one that has it in PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS"
        return f"the package index that pip uses lacks {absent.group(1)}: {do}."
    return f"pip failed while {doing}."


def last_words(output: str, lines: int = 6) -> str:
    """The end of a program's output, without the lines that say nothing."""
    return "\n".join([line.rstrip() for line in output.splitlines() if not NOISE.match(line)][-lines:])


def fetched_bytes(scratch: Path) -> int:
    """The size of the wheels that pip keeps there at this moment; files and folders may go while this counts."""
    folders = os.walk(scratch)  # leaves out what is gone, as Path.rglob does not
    wheels = (Path(folder, name) for folder, _, names in folders for name in names if name.endswith(".whl"))
    return sum(_size(wheel) for wheel in wheels)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
