"""Values from all sources in one tree, each with its origin, before the document's models check them."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin

from diptych.spec.document import SHORTHANDS, Document
from diptych.spec.fields import Section, is_path
from diptych.spec.problems import FieldPath, Origin


class NotAMappingError(Exception):
    """A value stands where a mapping would have to be; `path` is where."""

    def __init__(self, path: FieldPath) -> None:
        super().__init__(path)
        self.path = path


@dataclass
class Tree:
    """Plain values, and the origin of every one of them (mappings and lists as well)."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[FieldPath, Origin] = field(default_factory=dict)

    def put(self, path: FieldPath, value: Any, origin: Callable[[FieldPath], Origin]) -> None:
        """Put `value` at `path`, in place of all that was there; an empty value on the way becomes a mapping.

        Raises:
            NotAMappingError: on the way to `path` stands a text, a number or a list.
        """
        holder: Any = self.values
        for depth, step in enumerate(path[:-1], start=1):
            if holder.get(step) is None:
                holder[step] = {}
                self.origins[path[:depth]] = origin(path[:depth])
            holder = holder[step]
            if not isinstance(holder, dict):
                raise NotAMappingError(path[:depth])
        self._forget(path)
        if len(path) == 1 and path[0] in SHORTHANDS and isinstance(value, str):
            value = {SHORTHANDS[str(path[0])]: value}
        holder[path[-1]] = value
        self._record(path, value, origin)

    def move(self, old: FieldPath, new: FieldPath) -> None:
        """Move what stands at `old`, if anything does, to `new`; it keeps where it was written.

        Raises:
            NotAMappingError: on the way to `new` stands a text, a number or a list.
        """
        holder: Any = self.values
        for step in old[:-1]:
            holder = holder.get(step) if isinstance(holder, dict) else None
        if not isinstance(holder, dict) or old[-1] not in holder:
            return
        value = holder[old[-1]]
        origins = {known[len(old) :]: at for known, at in self.origins.items() if known[: len(old)] == old}
        self.put(new, value, lambda path: origins.get(path[len(new) :], origins[()]))
        del holder[old[-1]]
        self._forget(old)

    def drop(self, path: FieldPath) -> None:
        """Remove what stands at `path`; of a list, the whole list."""
        holders: list[Any] = [self.values]
        for step in path[:-1]:
            inner = holders[-1].get(step) if isinstance(holders[-1], dict) else None
            holders.append(inner)
        depth = max(n for n, holder in enumerate(holders) if isinstance(holder, dict))
        holders[depth].pop(path[depth], None)
        self._forget(path[: depth + 1])

    def drop_empty(self) -> None:
        """Remove the fields of the document that were left empty: they keep their defaults.

        Inside free mappings (`engine_kwargs`) an empty value is a value.
        """
        self._drop_empty(self.values, Document, ())

    def make_paths_absolute(self, base: Callable[[Origin], Path]) -> None:
        """Make the paths in `PATH_FIELDS` absolute, from the folder that `base` gives for their origin.

        What can't be resolved (`~` of nobody, a current folder that is gone) stays as written.
        """
        for path, is_a_path in PATH_FIELDS.items():
            holder = self.values.get(path[0])
            value = holder.get(path[1]) if isinstance(holder, dict) else None
            if isinstance(holder, dict) and isinstance(value, str) and is_a_path(value):
                with suppress(OSError, RuntimeError, ValueError):
                    folder = base(self.origins[path]).absolute()
                    holder[path[1]] = os.path.normpath(folder / Path(value).expanduser())

    def origin(self, path: FieldPath) -> Origin | None:
        """Where `path`, or the nearest thing around it, was written."""
        return next(
            (self.origins[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.origins), None
        )

    def _record(self, path: FieldPath, value: Any, origin: Callable[[FieldPath], Origin]) -> None:
        self.origins[path] = origin(path)
        for step, child in _children(value):
            self._record((*path, step), child, origin)

    def _forget(self, path: FieldPath) -> None:
        for known in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[known]

    def _drop_empty(self, values: dict[str, Any], section: type[Section], path: FieldPath) -> None:
        for name in [name for name in values if name in section.model_fields]:
            inner = section_at(section, name)
            if values[name] is None:
                del values[name]
                self._forget((*path, name))
            elif inner is not None and isinstance(values[name], dict):
                self._drop_empty(values[name], inner, (*path, name))


PATH_FIELDS: dict[tuple[str, str], Callable[[str], bool]] = {
    ("model", "source"): is_path,
    ("model", "token_file"): lambda value: bool(value),
    ("access", "api_key_file"): lambda value: bool(value),
}
"""Fields that hold a path in the file system, and when they do."""


def section_at(section: type[Section], name: str) -> type[Section] | None:
    """The section that field `name` of `section` holds; None if it is a plain field, or none at all."""
    known = section.model_fields.get(name)
    kinds = () if known is None else (known.annotation, *get_args(known.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def item_section_at(section: type[Section], name: str) -> type[Section] | None:
    """The section that each value of the list in field `name` holds; None if that is no list of sections."""
    known = section.model_fields.get(name)
    kinds = () if known is None else (known.annotation, *get_args(known.annotation))
    items = (item for kind in kinds if get_origin(kind) is list for item in get_args(kind))
    return next((item for item in items if isinstance(item, type) and issubclass(item, Section)), None)


def _children(value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()
