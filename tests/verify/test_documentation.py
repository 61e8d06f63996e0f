"""docs/proof.md shows what `verify` prints: each failing case is made again here and compared.

`DOCS_WRITE=1` writes what is printed now into the page.
"""

import io
import os
import re
from pathlib import Path

import pytest
from rich.console import Console

from diptych.cli.verify import print_evidence, print_proof
from verify.cases import CASES

PAGE = Path(__file__).parents[2] / "docs" / "proof.md"
_BLOCK = "<!-- case: {name} -->\n```text\n"


def printed(name: str) -> str:
    """What `verify` prints of one case."""
    console = Console(file=io.StringIO(), width=118, color_system=None, highlight=False, emoji=False)
    proof = CASES[name]().in_time(0.0)
    print_proof(console, proof)
    print_evidence(console, [proof])
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines[:-1]) + "\n"  # without the legend


@pytest.mark.parametrize("name", CASES)
def test_the_page_shows_each_failing_case_as_it_is_printed(name: str) -> None:
    start = _BLOCK.format(name=name)
    text = PAGE.read_text()
    assert start in text, f"docs/proof.md does not show the case {name!r}"
    head, _, rest = text.partition(start)
    shown, _, tail = rest.partition("```\n")
    now = printed(name)
    if os.environ.get("DOCS_WRITE"):
        PAGE.write_text(f"{head}{start}{now}```\n{tail}")
        return
    assert shown == now


def test_the_page_shows_no_case_that_there_is_not() -> None:
    named = re.findall(r"<!-- case: (.+) -->", PAGE.read_text())
    assert sorted(named) == sorted(CASES)


def test_no_case_of_the_page_holds() -> None:
    assert {make().state for make in CASES.values()} == {"fails", "warns"}
