"""Terminal sessions for the docs, recorded while tests run them: `up`, a failure and `down` on EKS.

`DOCS_WRITE=1` draws them anew into docs/img; otherwise what they say is compared with what is drawn there, but for
numbers and for steps that pass too fast to be told each time.
"""

import io
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from rich.text import Text

from cli.commands import Shell
from cli.test_commands_on_eks import here, written  # noqa: F401  a fixture
from diptych.remembering import state_root
from eks.world import World

IMAGES = Path(__file__).parents[2] / "docs" / "img"
WIDTH = 132
PASSING = 0.2


def session(shell: Shell, *commands: tuple[str, ...]) -> str:
    """What a user types and reads, progress included."""
    read = []
    for command in commands:
        done = shell(*command)
        read.append(f"$ diptych {' '.join(command)}\n{done.err}{done.out}")
    read = [text.replace(str(state_root()), "~/.local/state/diptych") for text in read]
    return "\n".join(line.rstrip() for line in "\n".join(read).splitlines())


def keep(name: str, text: str) -> None:
    """Draw a session, or hold it against the drawing."""
    file = IMAGES / f"{name}.svg"
    if os.environ.get("DOCS_WRITE"):
        console = Console(file=io.StringIO(), record=True, width=WIDTH)
        console.print(Text(text))
        console.save_svg(str(file), title="diptych", unique_id=name)
    drawn = "".join(ElementTree.parse(file).getroot().itertext())
    new = words(text) - words(drawn)
    assert len(new) <= PASSING * len(words(text)), new


def words(text: str) -> set[str]:
    """The plain words of a session: without numbers, times and generated names."""
    return set(re.findall(r"(?<![\w.-])[A-Za-z]{4,}(?![\w-])", text.replace("\u00a0", " ")))


def test_up_a_failure_and_down_look_as_the_docs_show_them(
    here: World,  # noqa: F811
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    document = ("diptych.yaml",)
    here.aws.machines.left["g6.8xlarge", "us-east-2a"] = 0
    keep("eks-no-capacity", session(shell, ("up", *document, "--yes", "--set", "eks.zone=us-east-2a")))
    here.aws.machines.left.clear()
    keep("eks-up", session(shell, ("up", *document, "--yes"), ("status",)))
    keep("eks-down", session(shell, ("down", *document, "--yes"), ("status",)))
