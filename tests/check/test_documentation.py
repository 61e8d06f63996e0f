"""docs/checks.md has an entry for each code and no other, and its examples show what they claim to."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from diptych.check import RAY, RULES, SHAPE, Finding, ModelFacts, check_file
from diptych.models import shipped_config
from diptych.spec import InvalidDocumentError, load_with_provenance
from fakes.account_facts import RIGHT, WRONG

PAGE = Path(__file__).parents[2] / "docs" / "checks.md"
ENTRY = re.compile(r"^### ([A-Z]\d{3}): (.+) \((error|warning)\)$", re.MULTILINE)
BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)

ENCODER_DECODER = {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}
LLAMA = "meta-llama/Meta-Llama-3.1-8B"
REFUSED = ModelFacts(
    shipped_config(LLAMA), "in the test", refused="the hub refuses it (HTTP 401): it is gated"
)
FACTS: dict[str, dict[str, Any]] = {
    "P221": {"model_config": ENCODER_DECODER},
    "P230": {"pinning": True},
    "M316": {"model": REFUSED},
    **WRONG,
}
"""What an example needs to be told beside its text."""
FACTS_PUT_RIGHT = {**FACTS, **RIGHT}
"""The same beside the fixed text: where the fix lies in the account or the cluster, they are what changes."""


@dataclass(frozen=True)
class Entry:
    code: str
    title: str
    severity: str
    text: str

    @property
    def examples(self) -> list[str]:
        return BLOCK.findall(self.text)

    @property
    def fixed(self) -> str:
        """The example put right: the same text where the fix lies outside the document."""
        return self.examples[-1]


def entries() -> list[Entry]:
    text = PAGE.read_text()
    heads = list(ENTRY.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return [Entry(*head.groups(), text[head.end() : end]) for head, end in zip(heads, ends, strict=True)]


RULE_ENTRIES = [entry for entry in entries() if entry.code in RULES]
SHAPE_ENTRIES = [entry for entry in entries() if entry.code in SHAPE]


def test_each_code_has_an_entry_and_each_entry_a_code() -> None:
    titles = SHAPE | RAY | {code: rule.title for code, rule in RULES.items()}
    assert {entry.code: entry.title for entry in entries()} == titles
    assert len(entries()) == len(titles)


def test_each_entry_states_the_severity_of_its_code() -> None:
    stated = {entry.code: entry.severity for entry in RULE_ENTRIES}
    assert stated == {code: rule.severity for code, rule in RULES.items()}
    assert {entry.severity for entry in SHAPE_ENTRIES} == {"error"}


def test_each_entry_has_an_example_and_a_fix() -> None:
    for entry in entries():
        assert "```" in entry.text, entry.code
        assert "\nFix: " in entry.text, entry.code


def test_each_group_of_codes_is_in_the_contents() -> None:
    linked = set(re.findall(r"\[([A-Z])\dxx\]\(#", PAGE.read_text()))
    assert linked == {entry.code[0] for entry in entries()}


@pytest.mark.parametrize("entry", [e for e in RULE_ENTRIES if e.examples], ids=lambda e: e.code)
def test_an_example_raises_its_code_and_the_fixed_one_is_free_of_it_and_of_errors(
    entry: Entry, check: Callable[..., list[Finding]]
) -> None:
    assert len(entry.examples) == (1 if entry.code in RIGHT else 2)
    facts = FACTS.get(entry.code, {})
    assert entry.code in {finding.code for finding in check(entry.examples[0], **facts)}
    left = check(entry.fixed, **FACTS_PUT_RIGHT.get(entry.code, {}))
    assert entry.code not in {finding.code for finding in left}
    assert [f for f in left if f.severity == "error" and f.code != "M301"] == []  # folders that are not there


@pytest.mark.parametrize("entry", [e for e in SHAPE_ENTRIES if e.examples], ids=lambda e: e.code)
def test_an_example_of_a_wrong_shape_raises_its_code_and_the_fixed_one_loads(
    entry: Entry, tmp_path: Path
) -> None:
    file = tmp_path / "diptych.yaml"
    wrong, fixed = entry.examples
    file.write_text(wrong)
    with pytest.raises(InvalidDocumentError) as caught:
        load_with_provenance(file, environ={})
    assert {problem.code for problem in caught.value.problems} == {entry.code}
    file.write_text(fixed)
    load_with_provenance(file, environ={})


def test_what_can_not_be_read_and_what_names_no_field_have_their_codes(tmp_path: Path) -> None:
    assert [f.code for f in check_file(tmp_path / "none.yaml", environ={}).findings] == ["S101"]
    report = check_file(None, ["decode.num_replicas"], offline=True, environ={})
    assert report.findings[0].code == "S111"


def test_every_rule_that_has_no_example_document_is_tested_elsewhere() -> None:
    """Rules about this machine, its variables and its files: test_here.py."""
    assert {e.code for e in RULE_ENTRIES if not e.examples} == {
        "T404",
        "T405",
        "K525",
        "K526",
        "A711",
        "A721",
        "A732",
    }
