"""Schemas of built-in kinds and of custom resources: what they refuse, and by which keys their lists merge.

Built-in kinds have those that `kubernetes-validate` carries; custom resources that of their CustomResourceDefinition.
Unknown fields are refused, as with `fieldValidation=Strict`, whatever the client asks for: otherwise the API server
drops them with no more than a warning.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import jsonschema

from fakes.kubernetes.errors import Json, Refusal

_METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


class Schema:
    """The schema of one version of one kind.

    Args:
        raw: as the API has it (OpenAPI), with `x-kubernetes-…`.
        definitions: what `$ref` refers to, by name.
    """

    def __init__(self, raw: Json, definitions: Mapping[str, Json]) -> None:
        self.raw = raw
        self._definitions = definitions
        self._known_good: set[str] = set()

    def resolve(self, node: Json | None) -> Json:
        """`node`, or what it refers to; {} where nothing is known."""
        while node and "$ref" in node:
            node = self._definitions[node["$ref"].rpartition("/")[2]]
        return node or {}

    def child(self, node: Json, name: str) -> Json:
        """The schema of the field `name` of an object with schema `node`."""
        found = node.get("properties", {}).get(name)
        if found is None and isinstance(node.get("additionalProperties"), dict):
            found = node["additionalProperties"]
        return self.resolve(found)

    def item(self, node: Json) -> Json:
        """The schema of the items of a list with schema `node`."""
        return self.resolve(node.get("items"))

    @cached_property
    def _validator(self) -> jsonschema.Draft202012Validator:
        return jsonschema.Draft202012Validator({**_strict(self.raw), "$defs": self._definitions})

    def refuse_invalid(self, thing: Json, what: str) -> None:
        """Raise what the API server answers to an object it can't take. `what` names it, like `Pod "a"`."""
        parts = self.raw.get("properties", {})
        errors = []
        for name, value in thing.items():
            text = f"{name}{json.dumps(value)}"
            digest = hashlib.sha256(text.encode()).hexdigest()
            if name not in parts:
                raise Refusal(400, f'strict decoding error: unknown field "{name}"')
            if digest not in self._known_good:
                found = list(
                    self._validator.descend(value, self._validator.schema["properties"][name], path=name)
                )
                errors += found
                if not found:
                    self._known_good.add(digest)
        absent = [name for name in self.raw.get("required", ()) if name not in thing]
        if absent:
            causes = [
                {"reason": "FieldValueRequired", "field": name, "message": "Required value"}
                for name in absent
            ]
            words = ", ".join(f"{each}: Required value" for each in absent)
            raise Refusal(422, f"{what} is invalid: {words}", causes=causes)
        unknown = [line for error in errors for line in _unknown_fields(error)]
        if unknown:
            raise Refusal(400, "strict decoding error: " + ", ".join(unknown))
        causes = [_cause(error) for error in errors]
        if causes:
            words = [f"{each['field']}: {each['message']}" for each in causes]
            text = words[0] if len(words) == 1 else f"[{', '.join(words)}]"
            raise Refusal(422, f"{what} is invalid: {text}", causes=causes)


def _unknown_fields(error: jsonschema.ValidationError) -> Iterator[str]:
    if error.validator == "additionalProperties":
        assert isinstance(error.schema, dict) and isinstance(error.instance, dict)
        for name in error.instance:
            if name not in error.schema.get("properties", {}):
                yield f'unknown field "{_path([*error.absolute_path, name])}"'


def _cause(error: jsonschema.ValidationError) -> Json:
    path = _path(error.absolute_path)
    if error.validator == "required":
        assert isinstance(error.instance, dict)
        missing = [name for name in error.validator_value if name not in error.instance]
        where = ", ".join(".".join(filter(None, (path, name))) for name in missing)
        return {"reason": "FieldValueRequired", "field": where, "message": "Required value"}
    shown = json.dumps(error.instance)[:80]
    return {
        "reason": "FieldValueInvalid",
        "field": path,
        "message": f"Invalid value: {shown}: {error.message[:200]}",
    }


def _path(parts: Any) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".")


def _strict(schema: Any) -> Any:
    """An OpenAPI schema as JSON Schema has it, closed to what it does not name."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    found = {name: value for name, value in schema.items() if not name.startswith("x-")}
    if found.pop("nullable", False) and "type" in found:
        found["type"] = [found["type"], "null"]
    if "properties" in found:
        found["properties"] = {name: _strict(value) for name, value in found["properties"].items()}
        if "additionalProperties" not in found and not schema.get("x-kubernetes-preserve-unknown-fields"):
            found["additionalProperties"] = False
    for word in ("items", "additionalProperties"):
        if word in found:
            found[word] = _strict(found[word])
    return found


@cache
def _definitions(version: str) -> dict[str, Json]:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    definitions: dict[str, Json] = json.loads((folder / "_definitions.json").read_text())["$defs"]
    return definitions


@cache
def _by_kind(version: str) -> dict[tuple[str, str, str], str]:
    return {
        (each["group"], each["version"], each["kind"]): name
        for name, schema in _definitions(version).items()
        for each in schema.get("x-kubernetes-group-version-kind", ())
        if len(schema["x-kubernetes-group-version-kind"]) == 1
    }


@cache
def built_in(kubernetes: str, group: str, version: str, kind: str) -> Schema:
    """The schema of a built-in kind in Kubernetes `kubernetes`, like "1.35"."""
    definitions = _definitions(kubernetes)
    return Schema(definitions[_by_kind(kubernetes)[group, version, kind]], definitions)


def custom(kubernetes: str, open_api: Json) -> Schema:
    """The schema of a version of a custom resource, from its definition's `openAPIV3Schema`."""
    return _custom(kubernetes, json.dumps(open_api))


@cache
def _custom(kubernetes: str, text: str) -> Schema:
    open_api: Json = json.loads(text)
    definitions = _definitions(kubernetes)
    properties = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        **open_api.get("properties", {}),
        "metadata": {"$ref": f"#/$defs/{_METADATA}"},
    }
    return Schema({**open_api, "properties": properties}, definitions)
