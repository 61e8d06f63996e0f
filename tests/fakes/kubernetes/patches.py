"""The four kinds of patch: server-side apply, merge, strategic merge and JSON patch. Each returns a new object."""

import copy
import json
from typing import Any

from fakes.kubernetes.errors import Json, Refusal
from fakes.kubernetes.fields import Entry, Path, entries, keep, key_of, leaves, merge_keys, shown
from fakes.kubernetes.schemas import Schema


def apply(live: Json, wanted: Json, schema: Schema, writer: Entry, *, force: bool) -> Json:
    """Server-side apply of `wanted` over `live`: fields that others own and hold another value of are conflicts."""
    if wanted["metadata"].get("managedFields"):
        raise Refusal(400, "metadata.managedFields must be nil")
    asked, held = leaves(wanted, schema), leaves(live, schema)
    known = entries(live)
    mine = next((each for each in known if each.written_by(writer)), None)
    others = [each for each in known if each is not mine]
    disputed = {path for path, value in asked.items() if path in held and held[path] != value}
    conflicts = [(each, sorted(each.paths & disputed)) for each in others if each.paths & disputed]
    if conflicts and not force:
        raise _conflict(conflicts)
    merged = _merge(copy.deepcopy(live), wanted, schema.resolve(schema.raw), schema)
    owned_by_others = set().union(*(each.paths for each in others)) if others else set()
    kept = owned_by_others | asked.keys()
    for path in sorted((mine.paths if mine else set()) - kept, reverse=True):
        _remove(merged, path, schema.resolve(schema.raw), schema, kept)
    for each in others:
        each.paths -= disputed
    is_same = mine is not None and mine.paths == asked.keys() and merged == live
    time = mine.time if mine and is_same else writer.time
    applied = Entry(
        writer.manager, writer.operation, writer.subresource, writer.api_version, set(asked), time
    )
    keep(merged, [*others, applied])
    return merged


def _conflict(conflicts: list[tuple[Entry, list[Path]]]) -> Refusal:
    count = sum(len(paths) for _, paths in conflicts)
    causes, words = [], []
    for entry, paths in conflicts:
        who = f'"{entry.manager}" using {entry.api_version}'
        if entry.subresource:
            who = f'"{entry.manager}" with subresource "{entry.subresource}" using {entry.api_version}'
        causes += [
            {"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": shown(path)}
            for path in paths
        ]
        if len(paths) == 1:
            words.append(f"conflict with {who}: {shown(paths[0])}")
        else:
            words.append(f"conflicts with {who}:" + "".join(f"\n- {shown(path)}" for path in paths))
    title = f"Apply failed with {count} conflict{'s' if count > 1 else ''}: "
    return Refusal(409, title + "\n".join(words), causes=causes)


def _merge(live: Any, wanted: Any, node: Json, schema: Schema) -> Any:
    if isinstance(live, dict) and isinstance(wanted, dict) and node.get("x-kubernetes-map-type") != "atomic":
        for name, value in wanted.items():
            live[name] = (
                _merge(live[name], value, schema.child(node, name), schema)
                if name in live
                else copy.deepcopy(value)
            )
        return live
    if isinstance(live, list) and isinstance(wanted, list):
        if keys := merge_keys(node):
            item = schema.item(node)
            places = {key_of(each, keys, item): index for index, each in enumerate(live)}
            for each in wanted:
                place = places.get(key_of(each, keys, item))
                if place is None:
                    live.append(copy.deepcopy(each))
                else:
                    live[place] = _merge(live[place], each, item, schema)
            return live
        if node.get("x-kubernetes-list-type") == "set":
            return live + [each for each in wanted if each not in live]
    return copy.deepcopy(wanted)


def _remove(live: Any, path: Path, node: Json, schema: Schema, kept: set[Path], done: Path = ()) -> None:
    """Take the field at `path` out, and what then is empty around it and belongs to nobody."""
    element, rest = path[0], path[1:]
    here = (*done, element)
    if element.startswith("f:"):
        name = element[2:]
        if not isinstance(live, dict) or name not in live:
            return
        if rest:
            _remove(live[name], rest, schema.child(node, name), schema, kept, here)
        if not rest or (live[name] in ({}, []) and not _is_kept(here, kept)):
            del live[name]
    elif element.startswith("v:") and isinstance(live, list):
        live[:] = [each for each in live if _value(each) != element]
    elif isinstance(live, list) and (keys := merge_keys(node)):
        item = schema.item(node)
        for each in [each for each in live if key_of(each, keys, item) == element]:
            if rest:
                _remove(each, rest, item, schema, kept, here)
            if not _is_kept(here, kept):
                live.remove(each)


def _is_kept(path: Path, kept: set[Path]) -> bool:
    return any(each[: len(path)] == path for each in kept)


def _value(item: Any) -> str:
    return "v:" + json.dumps(item)


def merge_patch(live: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(live) if isinstance(live, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def strategic_merge(live: Any, patch: Any, node: Json, schema: Schema) -> Any:
    """As merge, but lists merge by the schema's keys; `$patch: delete` and `replace` are known."""
    if isinstance(patch, dict):
        if patch.get("$patch") == "replace":
            return {name: value for name, value in patch.items() if name != "$patch"}
        merged = dict(live) if isinstance(live, dict) else {}
        for name, value in patch.items():
            if name.startswith("$"):
                continue
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = strategic_merge(merged.get(name), value, schema.child(node, name), schema)
        return merged
    key = node.get("x-kubernetes-patch-merge-key")
    if isinstance(patch, list) and isinstance(live, list) and node.get("x-kubernetes-patch-strategy"):
        if key is None:
            return live + [each for each in patch if each not in live]
        return _merge_lists(live, patch, key, schema.item(node), schema)
    return copy.deepcopy(patch)


def _merge_lists(live: list[Json], patch: list[Json], key: str, item: Json, schema: Schema) -> list[Json]:
    merged = {each.get(key): each for each in live}
    for each in patch:
        if each.get("$patch") == "delete":
            merged.pop(each.get(key), None)
        else:
            merged[each.get(key)] = strategic_merge(merged.get(each.get(key)), each, item, schema)
    return list(merged.values())


def json_patch(live: Json, operations: list[Json]) -> Json:
    """RFC 6902: add, remove, replace and test."""
    patched = copy.deepcopy(live)
    for operation in operations:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        try:
            _operate(patched, parts, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            words = "the server rejected our request due to an error in our request"
            raise Refusal(422, words, causes=[{"message": str(error)}]) from error
    return patched


def _operate(target: Any, parts: list[str], operation: Json) -> None:
    for part in parts[:-1]:
        target = target[int(part)] if isinstance(target, list) else target[part]
    last: Any = parts[-1]
    if isinstance(target, list):
        last = len(target) if last == "-" else int(last)
    match operation["op"]:
        case "add" if isinstance(target, list):
            target.insert(last, operation["value"])
        case "add":
            target[last] = operation["value"]
        case "remove":
            del target[last]
        case "replace":
            target[last]  # must be there
            target[last] = operation["value"]
        case "test":
            if target[last] != operation["value"]:
                raise ValueError(f"test of {operation['path']} failed")
        case other:
            raise ValueError(f"unknown operation {other}")
