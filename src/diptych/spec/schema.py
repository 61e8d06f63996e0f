"""The document for editors, as a JSON schema, and for newcomers, as a short example."""

from typing import Any

from diptych.spec.document import SHORTHANDS, Document


def json_schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of the document, for editors."""
    schema = Document.model_json_schema()
    fields = schema["properties"]
    for name in SHORTHANDS:
        description = fields[name].pop("description")
        fields[name] = {"description": description, "anyOf": [fields[name], {"type": "string"}]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def example() -> str:
    """A short document with comments which says what the defaults say."""
    return _EXAMPLE


_EXAMPLE = """\
# What to serve, and where. Every field has a default.
version: 1
name: diptych
on: local
model: embedded      # or a Hugging Face id, or a folder: ./my-model
topology: split      # or aggregated: one engine does both phases
engine_kwargs: {}    # any argument of vLLM under its own name, for both phases
prefill:
  num_replicas: 1
decode:
  num_replicas: 1
"""
