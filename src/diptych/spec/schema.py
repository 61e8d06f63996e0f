"""The document for editors, as a JSON schema (2020-12): every field with its description, default and choices.

It takes what the loader takes, but for two things that help more while one writes: a field that is left empty is
marked, and `engine_kwargs` completes the arguments of the versions of vLLM that have a table in the catalog, and
takes others.
"""

import json
from typing import Any

from diptych.catalog.arguments import VERSIONS, Argument, engine_arguments
from diptych.spec.document import SHORTHANDS, Document
from diptych.spec.fields import RESERVED_CONNECTOR_CONFIG, RESERVED_ENGINE_KWARGS

_TITLE = "Diptych's document, version 1"
_ARGUMENTS = "EngineKwargs"
_TYPES: dict[str, dict[str, Any]] = {
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "str": {"type": "string"},
    "list": {"type": "array"},
    "json": {"type": "object"},
    "any": {},
}


def json_schema() -> dict[str, Any]:
    """The JSON schema of the document."""
    schema = Document.model_json_schema()
    definitions = schema.pop("$defs")
    for section in (schema, *definitions.values()):
        section.pop("title", None)
        for name, field in section["properties"].items():
            _tidy(name, field)
    fields = schema["properties"]
    for name in SHORTHANDS:
        description = fields[name].pop("description")
        fields[name] = {"description": description, "anyOf": [fields[name], {"type": "string"}]}
    definitions[_ARGUMENTS] = _engine_kwargs()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": _TITLE,
        **schema,
        "$defs": dict(sorted(definitions.items())),
    }


def schema_text() -> str:
    """The JSON schema as the text of a file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _tidy(name: str, field: dict[str, Any]) -> None:
    """Take away what tells an editor nothing, and say what Pydantic leaves open."""
    field.pop("title", None)
    if "default" in field and field["default"] is None:
        del field["default"]
        field["anyOf"].remove({"type": "null"})
        if len(field["anyOf"]) == 1:
            field |= field.pop("anyOf")[0]
    if name == "engine_kwargs":
        del field["additionalProperties"], field["type"]
        field["$ref"] = f"#/$defs/{_ARGUMENTS}"
    if name == "kv_connector_extra_config":
        field["propertyNames"] = {"not": {"enum": list(RESERVED_CONNECTOR_CONFIG)}}
    if "patternProperties" in field:
        field["additionalProperties"] = False


def _engine_kwargs() -> dict[str, Any]:
    tables = [engine_arguments(version) or {} for version in VERSIONS]
    names = sorted({name for table in tables for name in table} - set(RESERVED_ENGINE_KWARGS))
    return {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z][a-z0-9_]*$", "not": {"enum": list(RESERVED_ENGINE_KWARGS)}},
        "properties": {name: _argument([table[name] for table in tables if name in table]) for name in names},
    }


def _argument(versions: list[Argument]) -> dict[str, Any]:
    """What an argument may be in any of the versions that have it."""
    choices = list(dict.fromkeys(choice for each in versions for choice in each.choices))
    if choices and all(each.choices for each in versions):
        kinds: list[dict[str, Any]] = [{"enum": choices}]
    else:
        kinds = [_TYPES[kind] for kind in dict.fromkeys(kind for each in versions for kind in each.kinds)]
    if any(each.optional for each in versions):
        kinds.append({"type": "null"})
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
