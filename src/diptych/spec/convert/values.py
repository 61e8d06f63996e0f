"""Nested mappings: what several have in common, and what is left of them without empty and wrong values."""

from collections.abc import Mapping
from typing import Any, TypeVar

from diptych.spec.document import Document
from diptych.spec.problems import FieldPath

Key = TypeVar("Key", bound=str)

_FREE = frozenset({"engine_kwargs", "kv_connector_extra_config"})


def hoisted(own: Mapping[Key, Mapping[str, Any]]) -> tuple[dict[str, Any], dict[Key, dict[str, Any]]]:
    """What is the same in all of `own`, and what is left of each.

    >>> hoisted({"prefill": {"a": 1, "b": 2}, "decode": {"a": 1, "b": True}})
    ({'a': 1}, {'prefill': {'b': 2}, 'decode': {'b': True}})
    """
    first, *others = own.values()
    shared = {
        name: value
        for name, value in first.items()
        if all(name in each and type(each[name]) is type(value) and each[name] == value for each in others)
    }
    rest = {
        key: {name: value for name, value in each.items() if name not in shared} for key, each in own.items()
    }
    return shared, rest


def pruned(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a document, in its order, without empty ones; in free mappings an empty value is a value."""
    without = {name: _pruned(value, name) for name, value in values.items()}
    return {name: without[name] for name in Document.model_fields if without.get(name) not in (None, {}, [])}


def drop(values: dict[str, Any], path: FieldPath) -> bool:
    """Remove what stands at `path`, or the nearest thing around it; whether there was anything."""
    holder: Any = values
    for step in path[:-1]:
        inner = holder.get(step)
        if not isinstance(inner, dict):
            return holder.pop(step, None) is not None
        holder = inner
    return holder.pop(path[-1], None) is not None


def _pruned(value: Any, name: str) -> Any:
    if not isinstance(value, dict) or name in _FREE:
        return value
    without = {key: _pruned(each, key) for key, each in value.items()}
    return {key: each for key, each in without.items() if each not in (None, {}, [])}
