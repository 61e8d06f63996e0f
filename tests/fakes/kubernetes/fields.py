"""Who owns which field: the paths in an object, and `metadata.managedFields` as server-side apply keeps it.

A path is a tuple of the elements that Kubernetes writes in `fieldsV1`: `f:NAME` for a field, `k:{"KEY":…}` for an
item of a list that merges by keys, `v:VALUE` for an item of a set. Lists and maps that don't merge are owned whole.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fakes.kubernetes.errors import Json
from fakes.kubernetes.schemas import Schema

Path = tuple[str, ...]
# What the server itself sets, or what says which object is meant.
_SET_BY_SERVER = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_NOBODYS = {("f:apiVersion",), ("f:kind",), *(("f:metadata", f"f:{name}") for name in _SET_BY_SERVER)}


def merge_keys(node: Json) -> list[str] | None:
    """The keys by which a list with schema `node` merges; None where it does not."""
    if node.get("x-kubernetes-list-type") == "map":
        return list(node["x-kubernetes-list-map-keys"])
    return None


def key_of(item: Json, keys: list[str], node: Json) -> str:
    """The path element of an item of a list that merges; a key that is left out has its default."""
    defaults = node.get("properties", {})
    found = {key: item.get(key, defaults.get(key, {}).get("default")) for key in keys}
    return "k:" + json.dumps({key: value for key, value in found.items() if value is not None})


def leaves(thing: Json, schema: Schema) -> dict[Path, Any]:
    """The values of all fields of an object that somebody can own."""
    found = dict(_leaves(thing, schema.resolve(schema.raw), schema, ()))
    return {
        path: value for path, value in found.items() if path[:1] not in _NOBODYS and path[:2] not in _NOBODYS
    }


def _leaves(value: Any, node: Json, schema: Schema, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value and node.get("x-kubernetes-map-type") != "atomic":
        for name, each in value.items():
            yield from _leaves(each, schema.child(node, name), schema, (*path, f"f:{name}"))
    elif isinstance(value, list) and value and (keys := merge_keys(node)):
        item = schema.item(node)
        for each in value:
            yield from _leaves(each, item, schema, (*path, key_of(each, keys, item)))
    elif isinstance(value, list) and value and node.get("x-kubernetes-list-type") == "set":
        for each in value:
            yield (*path, "v:" + json.dumps(each)), each
    else:
        yield path, value


def shown(path: Path) -> str:
    """As conflicts name it: `.spec.template.spec.containers[name="a"].image`."""
    text = ""
    for element in path:
        kind, _, rest = element.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            keys = json.loads(rest)
            text += "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in keys.items()) + "]"
        else:
            text += f"[={rest}]"
    return text


@dataclass
class Entry:
    """What one manager owns, by one way of writing (`Apply` or `Update`) to one subresource."""

    manager: str
    operation: str
    subresource: str
    api_version: str
    paths: set[Path]
    time: str

    def written_by(self, other: "Entry") -> bool:
        return (self.manager, self.operation, self.subresource) == (
            other.manager,
            other.operation,
            other.subresource,
        )


def entries(thing: Json) -> list[Entry]:
    return [
        Entry(
            each["manager"],
            each["operation"],
            each.get("subresource", ""),
            each["apiVersion"],
            set(_paths(each["fieldsV1"], ())),
            each["time"],
        )
        for each in thing["metadata"].get("managedFields", ())
    ]


def keep(thing: Json, found: list[Entry]) -> None:
    """Write `found` into the object's `metadata.managedFields`."""
    thing["metadata"]["managedFields"] = [
        {
            "manager": each.manager,
            "operation": each.operation,
            "apiVersion": each.api_version,
            "time": each.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": _tree(each.paths),
            **({"subresource": each.subresource} if each.subresource else {}),
        }
        for each in found
        if each.paths
    ]


def track(before: Json, after: Json, schema: Schema, writer: Entry) -> None:
    """After an update (no apply): what changed belongs to its writer now, and what is gone to nobody."""
    old, new = leaves(before, schema), leaves(after, schema)
    changed = {path for path, value in new.items() if path not in old or old[path] != value}
    gone = old.keys() - new.keys()
    known = entries(before)
    mine = next((each for each in known if each.written_by(writer)), writer)
    for each in known:
        each.paths -= gone | (changed if each is not mine else set())
    if mine is writer:
        known.append(writer)
    if changed:
        mine.paths |= changed
        mine.time = writer.time
    keep(after, known)


def _tree(paths: set[Path]) -> Json:
    tree: Json = {}
    for path in sorted(paths):
        node = tree
        for element in path:
            node = node.setdefault(element, {})
    return tree


def _paths(tree: Json, path: Path) -> Iterator[Path]:
    for element, below in tree.items():
        if element == ".":
            continue
        yield from _paths(below, (*path, element)) if below else ((*path, element),)
