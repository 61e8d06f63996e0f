"""Each trap of EKS, and each field report about the life of a service and its end that can be met here, has a test."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FACTS = TESTS.parents[1] / "shared" / "facts"
TRAPS = {f"T{number}" for number in range(1, 13)}
# Names of cases are split into ids, as tests/kube/test_blockers.py does: each case is a parameter with their marks.
CASES = TESTS / "kube" / "test_blockers.py"
IDS = re.compile(r"\b[ABEGIT]\d+\b")


def reports_of(file: Path) -> Iterator[str]:
    """The ids in `pytest.mark.report(id)` in a file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.report"):
            yield from (each.value for each in node.args if isinstance(each, ast.Constant))


def cases_of(file: Path) -> Iterator[str]:
    """The ids in the names of the cases that are marked with them."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASES":
            assert isinstance(node.value, ast.Dict)
            for key in node.value.keys:
                assert isinstance(key, ast.Constant)
                yield from IDS.findall(key.value)


@pytest.fixture(scope="module")
def marked() -> dict[str, set[str]]:
    """The files of the tests that carry an id, by id."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in sorted(TESTS.rglob("test_*.py")):
        for report in reports_of(file):
            found[report].add(file.name)
    for report in cases_of(CASES):
        found[report].add(CASES.name)
    return found


def mocked(group: str) -> list[str]:
    """The ids of a group of field reports whose last column says that a fake shows them."""
    lines = (FACTS / "field-reports.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row[0] for row in rows if re.fullmatch(rf"{group}\d+", row[0]) and "MOCK" in row[-1]]


def test_every_trap_has_a_test(marked: dict[str, set[str]]) -> None:
    assert TRAPS - marked.keys() == set()


@pytest.mark.parametrize("group", ["E", "I"])
def test_every_field_report_that_a_fake_can_show_has_a_test(group: str, marked: dict[str, set[str]]) -> None:
    if not FACTS.is_dir():
        pytest.skip("../shared/facts is not here: its field reports are not known")
    wanted = mocked(group)
    assert len(wanted) > 3
    assert set(wanted) - marked.keys() == set()


def test_every_id_is_one_that_there_is(marked: dict[str, set[str]]) -> None:
    if not FACTS.is_dir():
        pytest.skip("../shared/facts is not here: its field reports are not known")
    text = (FACTS / "field-reports.md").read_text()
    known = TRAPS | set(re.findall(r"^\| ([A-I]\d+) \|", text, re.MULTILINE))
    assert marked.keys() - known == set()


def test_a_mark_is_found_and_nothing_else_is(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text('@pytest.mark.report("T1")\ndef test_t2() -> None: "report T3"\n')
    assert list(reports_of(file)) == ["T1"]
    file.write_text('CASES = {"E6 I1 rights": 1, "no id, Ray 2": 2}\n')
    assert list(cases_of(file)) == ["E6", "I1"]
