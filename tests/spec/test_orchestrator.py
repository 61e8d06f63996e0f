"""The section `orchestrator`: what serves has the same fields and defaults, and takes what the document takes."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from diptych.serving.settings import Settings, settings_of
from diptych.spec import Document, OrchestratorSection, load
from spec.field_values import BAD, GOOD

FIELD = "orchestrator."
TAKEN = [(field, value) for field, _, value in GOOD if field.startswith(FIELD)]
REFUSED = [(field, text) for field, text, _ in BAD if field.startswith(FIELD)]


def nested(field: str, value: Any) -> dict[str, Any]:
    for step in reversed(field.removeprefix(FIELD).split(".")):
        value = {step: value}
    return dict(value)


def test_both_sides_have_the_same_fields_and_defaults() -> None:
    assert OrchestratorSection().model_dump() == asdict(Settings())


@pytest.mark.parametrize(("field", "value"), TAKEN, ids=lambda each: str(each)[:40])
def test_what_serves_takes_what_the_document_takes(field: str, value: Any) -> None:
    section = Document.model_validate({"orchestrator": nested(field, value)}).orchestrator
    assert asdict(settings_of(section.written(split=True))) == section.model_dump()


@pytest.mark.parametrize(
    "written", [{}, {"queues": {}}, {"queues": {"prefill": {}, "decode": {"tokens": None}}}]
)
def test_a_section_that_sets_nothing_is_written_as_nothing(written: dict[str, Any]) -> None:
    assert OrchestratorSection.model_validate(written).written(split=True) == {}


def test_what_the_document_sets_is_written_though_it_is_the_default() -> None:
    section = OrchestratorSection.model_validate({"prefill": "auto", "canary_period_s": 0})
    assert section.written(split=True) == {"prefill": "auto", "canary_period_s": 0}


def test_one_engine_for_both_phases_is_told_of_its_own_queue_only() -> None:
    queues = {"prefill": {"requests": 1}, "decode": {"requests": 2}}
    section = OrchestratorSection.model_validate({"prefill": 64, "queues": queues})
    assert section.written(split=False) == {"queues": {"decode": {"requests": 2}}}
    assert OrchestratorSection(prefill=64).written(split=False) == {}


def test_options_and_variables_set_a_word_or_a_number(tmp_path: Path) -> None:
    file = tmp_path / "diptych.yaml"
    file.write_text("orchestrator: {prefill: never}\n")

    def read(*overrides: str, **environ: str) -> object:
        return load(file, overrides, environ).orchestrator.prefill

    assert read() == "never"
    assert read(DIPTYCH_ORCHESTRATOR__PREFILL="512") == 512
    assert read("orchestrator.prefill=always", DIPTYCH_ORCHESTRATOR__PREFILL="512") == "always"
    assert read("orchestrator.prefill=") == "auto"
