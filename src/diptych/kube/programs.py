"""Programs beside Kubernetes' API (eksctl, helm): found at a version that works, and run with a log of all they print.

A program never sees a shell, and secrets go through files or its standard input, never its arguments.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from diptych.check.account import Program as Found
from diptych.errors import ClusterError, SetupError
from diptych.kube.child import Child
from diptych.kube.waiting import duration
from diptych.progress import View

_FIND_TIMEOUT_S = 30.0
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True)
class Program:
    """A program that is known to work from a version on.

    Args:
        name: of its file in PATH.
        ask: arguments that make it print its version.
        least: the oldest version that works.
        below: the first that is not known to.
        where: how to get it.
    """

    name: str
    ask: tuple[str, ...]
    least: tuple[int, int]
    below: tuple[int, int]
    where: str


HELM = Program("helm", ("version", "--short"), (3, 14), (5, 0), "https://helm.sh/docs/intro/install/")
EKSCTL = Program(
    "eksctl",
    ("version",),
    (0, 200),
    (1, 0),
    "https://docs.aws.amazon.com/eks/latest/eksctl/installation.html",
)
PROGRAMS = (HELM, EKSCTL)


@dataclass(frozen=True)
class Tool:
    """A program that was found: its file and its version."""

    program: Program
    path: Path
    version: str


@dataclass(frozen=True)
class Finished:
    """What a run came to: its exit code, all lines in the order in which they came, and what was standard output."""

    code: int
    lines: tuple[str, ...] = ()
    output: str = ""

    def last(self, count: int = 5) -> str:
        """The last lines with words, for a message."""
        told = [line for line in self.lines if line.strip()]
        return "\n".join(told[-count:])


def look(program: Program) -> Found:
    """Whether a program is here, for the rules of `diptych.check`."""
    try:
        return Found(program.name, find(program).version)
    except SetupError as error:
        return Found(program.name, None, error.message, error.hint)


def find(program: Program) -> Tool:
    """Find a program in PATH.

    Raises:
        SetupError: it is not there, does not run, or is of a version that is not known to work.
    """
    least, below = (".".join(map(str, version)) for version in (program.least, program.below))
    wanted = f"Versions from {least} and below {below} work; get one from {program.where}"
    found = shutil.which(program.name)
    if found is None:
        raise SetupError(f"The program {program.name} is not in PATH.", wanted)
    try:
        told = subprocess.run(
            [found, *program.ask], capture_output=True, text=True, timeout=_FIND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{found} does not run: {error}", wanted) from None
    match = _VERSION.search(told.stdout)
    if told.returncode or match is None:
        raise SetupError(
            f"{found} does not tell its version: {(told.stderr or told.stdout).strip()[:200]}", wanted
        )
    version = int(match[1]), int(match[2])
    if not program.least <= version < program.below:
        raise SetupError(f"{found} is version {match[0]}, which is not known to work.", wanted)
    return Tool(program, Path(found), match[0])


def run(
    tool: Tool,
    args: Sequence[str],
    *,
    log: Path,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
    on_line: Callable[[str], None] | None = None,
    input: str | None = None,
    quiet: bool = False,
    dry_run: bool = False,
    view: View | None = None,
) -> Finished:
    """Run a program and wait for its end.

    Args:
        log: is appended to, and made for its owner only (0600).
        timeout_s: then it is ended.
        env: variables beside our own.
        secrets: texts that are masked in all that it prints.
        on_line: is told each line.
        input: its standard input.
        quiet: what it prints is an answer, too long for the log.
        dry_run: tell the view what would be run, and run nothing.
        view: is ticked meanwhile.

    Raises:
        ClusterError: it did not end in time.
        KeyboardInterrupt: Ctrl-C; the program was let end by itself for up to 30 s, and is gone.
    """
    view = view or View()
    called = shlex.join([tool.program.name, *args])
    if dry_run:
        view.say(f"would run {called}")
        return Finished(0)
    with _private_log(log) as file:
        file.write(f"$ {called}\n")
        running = Child([str(tool.path), *args], env, input)
        try:
            lines, output = _follow(
                running, None if quiet else file, tuple(filter(None, secrets)), on_line, view, timeout_s
            )
        except KeyboardInterrupt:
            running.leave()
            file.write("interrupted\n")
            raise
        except _LateError:
            file.write(f"ended after {duration(timeout_s)}\n")
            raise ClusterError(
                f"{tool.program.name} {args[0] if args else ''} did not end within {duration(timeout_s)}.",
                f"What it did is in {log}. Run the same command again to go on.",
            ) from None
        finally:
            running.end()
        file.write(f"exit {running.code}\n")
    return Finished(running.code, tuple(lines), "".join(f"{line}\n" for line in output))


class _LateError(Exception):
    """The program did not end in time."""


def _follow(
    running: Child,
    file: IO[str] | None,
    secrets: tuple[str, ...],
    on_line: Callable[[str], None] | None,
    view: View,
    timeout_s: float,
) -> tuple[list[str], list[str]]:
    """All lines, and those of standard output, as the program prints them."""
    lines: list[str] = []
    output: list[str] = []
    deadline = time.monotonic() + timeout_s
    for is_output, text in running.lines():
        if text is None:
            view.tick()
            if time.monotonic() > deadline:
                raise _LateError
            continue
        line = _masked(text, secrets)
        if file:
            file.write(line + "\n")
            file.flush()
        lines.append(line)
        if is_output:
            output.append(line)
        if on_line:
            on_line(line)
    return lines, output


@contextlib.contextmanager
def _private_log(path: Path) -> Iterator[IO[str]]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a") as file:
        yield file


def _masked(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
