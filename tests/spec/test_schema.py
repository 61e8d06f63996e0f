import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from diptych.spec import json_schema, schema_text
from diptych.spec.source import parse
from spec.field_values import BAD, GOOD

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "docs" / "diptych.schema.json"


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def nested(field: str, text: str) -> Any:
    value = parse(text).value
    for step in reversed(field.split(".")):
        value = {step: value}
    return value


def test_the_published_schema_is_this_one() -> None:
    again = "publish it again: diptych init --schema > docs/diptych.schema.json"
    assert PUBLISHED.read_text() == schema_text(), again
    assert json.loads(schema_text()) == json_schema()


def test_the_schema_allows_no_unknown_field_and_describes_every_known_one() -> None:
    schema = json_schema()
    sections = [schema, *(each for name, each in schema["$defs"].items() if name != "EngineKwargs")]
    for section in sections:
        assert section["additionalProperties"] is False
        assert section["description"]
        assert "required" not in section
        for field in section["properties"].values():
            assert field["description"]
            assert set(field) & {"type", "enum", "const", "anyOf", "$ref"}


def test_the_schema_gives_editors_defaults_and_choices() -> None:
    schema = json_schema()
    assert schema["properties"]["on"]["enum"] == ["local", "kubernetes", "eks"]
    assert schema["$defs"]["KVTransferSection"]["properties"]["lease_s"]["default"] == 120
    assert schema["$defs"]["NodesSection"]["properties"]["market"]["enum"] == [
        "on-demand",
        "spot",
        "capacity-block",
    ]
    assert "default" not in schema["$defs"]["NodesSection"]["properties"]["market"]
    assert "default" not in schema["$defs"]["ModelSection"]["properties"]["name"]


def test_the_schema_completes_arguments_of_vllm_and_takes_others(validator: Draft202012Validator) -> None:
    known = json_schema()["$defs"]["EngineKwargs"]["properties"]
    assert known["max_model_len"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert "bfloat16" in known["dtype"]["enum"]
    assert "model" not in known
    assert validator.is_valid({"engine_kwargs": {"an_argument_of_tomorrow": {"a": 1}}})
    assert not validator.is_valid({"engine_kwargs": {"max_model_len": "4096"}})
    assert not validator.is_valid({"decode": {"engine_kwargs": {"max-model-len": 4096}}})


@pytest.mark.parametrize(("field", "text", "_"), GOOD, ids=lambda each: str(each)[:40])
def test_the_schema_takes_what_the_loader_takes(
    validator: Draft202012Validator, field: str, text: str, _: Any
) -> None:
    validator.validate(nested(field, text))


# Texts whose rules a schema can't say, or would hide what it can complete.
ONLY_THE_LOADER = {"model.source", "model.name", "model.token_file", "access.api_key_file"}


@pytest.mark.parametrize(("field", "text", "_"), BAD, ids=lambda each: str(each)[:40])
def test_the_schema_refuses_what_the_loader_refuses(
    validator: Draft202012Validator, field: str, text: str, _: str
) -> None:
    only_the_loader = field in ONLY_THE_LOADER and isinstance(parse(text).value, str)
    assert validator.is_valid(nested(field, text)) is only_the_loader


@pytest.mark.parametrize("document", [{"model": "a/b"}, {"model": {"source": "a/b"}}, {}])
def test_a_model_may_be_a_plain_word(validator: Draft202012Validator, document: dict[str, Any]) -> None:
    validator.validate(document)
