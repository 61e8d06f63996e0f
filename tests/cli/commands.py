"""The command line in this process, as its user runs it: what it is given, what it prints, and its exit code."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import diptych
from diptych.cli import main
from diptych.cli.console import err, out
from diptych.cli.view import LiveView
from diptych.progress import Event

SOURCE = str(Path(diptych.__file__).parents[1])


@dataclass(frozen=True)
class Done:
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def failure(self) -> str:
        """Its error message and its hint, in one line; "" where there is none."""
        return " ".join(self.err.partition("Error: ")[2].split())


def process_of(*arguments: str) -> dict[str, Any]:
    """What `subprocess` is given to run `diptych` as a process of its own, without a terminal."""
    return {
        "args": [sys.executable, "-m", "diptych", *arguments],
        "env": {**os.environ, "PYTHONPATH": SOURCE, "COLUMNS": "200", "LC_ALL": "C.UTF-8"},
        "text": True,
        "stdin": subprocess.DEVNULL,
    }


class Terminal(io.StringIO):
    """A standard input at which somebody sits, with an answer."""

    def isatty(self) -> bool:
        return True


class Shell:
    """Runs commands; an error that nobody foresaw fails the test with its traceback."""

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = patch, capsys
        patch.setenv("DIPTYCH_TEST_TRACEBACK", "1")
        patch.setenv("COLUMNS", "150")

    def __call__(self, *arguments: object, answer: str | None = None) -> Done:
        """Run `diptych` with these arguments; without an `answer` nobody sits at the terminal."""
        self._patch.setattr("sys.argv", ["diptych", *map(str, arguments)])
        self._patch.setattr("sys.stdin", io.StringIO() if answer is None else Terminal(f"{answer}\n"))
        self._capsys.readouterr()
        out.cache_clear()
        err.cache_clear()
        with pytest.raises(SystemExit) as left:
            main()
        printed = self._capsys.readouterr()
        code = left.value.code
        assert isinstance(code, int), code
        return Done(code, printed.out, printed.err)


@contextmanager
def ctrl_c_at(kind: str, stage: str, text: str = "") -> Iterator[None]:
    """Ctrl-C once the view is told of an event of this kind and stage whose text begins so; told it must be."""
    show, pressed = LiveView.stage, []

    def shown(view: LiveView, event: Event) -> None:
        show(view, event)
        if not pressed and (event.kind, event.stage) == (kind, stage) and event.text.startswith(text):
            pressed.append(event)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LiveView, "stage", shown)
        yield
    assert pressed, f"nobody told of {kind} {stage} {text}"
