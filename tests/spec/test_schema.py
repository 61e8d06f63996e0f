from pathlib import Path

from diptych.spec import Document, example, json_schema, load


def test_the_schema_allows_no_unknown_field_and_describes_every_known_one() -> None:
    schema = json_schema()
    sections = [schema, *schema["$defs"].values()]
    assert len(sections) == 5
    for section in sections:
        assert section["additionalProperties"] is False
        assert all("description" in field for field in section["properties"].values())


def test_the_schema_takes_what_the_loader_takes() -> None:
    schema = json_schema()
    assert {"type": "string"} in schema["properties"]["model"]["anyOf"]
    memory = schema["$defs"]["PhaseSection"]["properties"]["kv_cache_memory"]["anyOf"]
    assert [kind["type"] for kind in memory] == ["integer", "string", "null"]
    assert "required" not in schema


def test_the_example_says_what_the_defaults_say(tmp_path: Path) -> None:
    file = tmp_path / "diptych.yaml"
    file.write_text(example())
    assert load(file, environ={}) == Document()
