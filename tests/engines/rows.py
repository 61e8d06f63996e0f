"""How the request models' fields become requests: each field names the values that are sent in it, or why none is."""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Body = dict[str, Any]

PAIRS = ("0.26", "0.29")
"""vLLM of the version pairs that Diptych serves with, oldest first."""
ABSENT = "\0absent"
"""As a value: the field is not sent at all."""


class Shape(NamedTuple):
    """One request: what it is called, where it goes, and its body (the model is put in); without one it is a GET."""

    name: str
    route: str
    body: Body | None


@dataclass(frozen=True)
class Field:
    """The rows of one field.

    Args:
        values: what is sent in the field, each with what is sent beside it.
        reason: why there is no row.
        since, until: the first and the last vLLM of `PAIRS` that has the field.
    """

    values: tuple[tuple[Any, Body], ...] = ()
    reason: str = ""
    since: str = PAIRS[0]
    until: str = PAIRS[-1]

    def __add__(self, other: "Field") -> "Field":
        return Field(self.values + other.values, self.reason, self.since, self.until)

    def is_in(self, version: str) -> bool:
        return _number(self.since) <= _number(version) <= _number(self.until)


def sent(*values: Any, since: str = PAIRS[0], **beside: Any) -> Field:
    """A row for each of the values, with `beside` in the same body."""
    return Field(tuple((value, beside) for value in values), since=since)


def unsent(reason: str) -> Field:
    return Field(reason=reason)


@dataclass(frozen=True)
class Model:
    """A request model of vLLM's: the route that takes it, a plain body, and its fields."""

    name: str
    route: str
    base: Body
    fields: Mapping[str, Field]

    def shapes(self) -> Iterator[Shape]:
        for field, rows in self.fields.items():
            for value, beside in rows.values:
                others = "".join(f" {name}={_short(other)}" for name, other in beside.items())
                name = f"{self.name}: {field}={_short(value)}{others}"
                yield Shape(name, self.route, self.base | beside | {field: value})


def paths_in(body: Any) -> set[str]:
    """The paths of all that is said in a body, through lists: `tools.function.name`."""
    if isinstance(body, list):
        return set().union(*map(paths_in, body))
    if not isinstance(body, dict):
        return set()
    return {*body} | {f"{name}.{path}" for name, value in body.items() for path in paths_in(value)}


def _short(value: Any) -> str:
    text = "absent" if value == ABSENT else repr(value)
    return text if len(text) <= 40 else f"{text[:36]}…{zlib.crc32(text.encode()):08x}"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
