"""Values given beside the document: `--set a.b=c`, and variables `DIPTYCH_A__B=c`.

The value is YAML. A variable's name is the field's path, in capitals or small letters, with `__` for each dot; it
reaches fields in small letters only. A variable without a value counts as not set. Names with a dot or a slash in them
(labels, tags) have no path of their own: `--set 'nodes.selector={example.com/pool: gpu}'` sets the whole mapping.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diptych.spec.problems import FieldPath, Origin, Problem, dotted
from diptych.spec.source import parse

PREFIX = "DIPTYCH_"

RESERVED_VARIABLES = frozenset(
    {"DIPTYCH_STATE_DIR", "DIPTYCH_SERVICE", "DIPTYCH_PHASE", "DIPTYCH_TORCH_INDEX"}
)
"""Variables of Diptych that are no fields of the document."""
RESERVED_PREFIX = "DIPTYCH_TEST_"

SET = Origin("--set", "--set")

_IN_THE_DOCUMENT = "set it in the document, where it can be reviewed"
_ANOTHER_PLACE = "a stray variable must not change the place"
_MONEY = "a stray variable must not spend money elsewhere"
_NEVER_BY_SET: Mapping[FieldPath, str] = {
    ("version",): "it says how the document is to be read",
    ("on",): "no option may change the place",
}
_NEVER_BY_ENVIRONMENT: Mapping[FieldPath, str] = {
    **_NEVER_BY_SET,
    ("name",): "a stray variable must not name another service",
    ("kubernetes", "context"): _ANOTHER_PLACE,
    ("kubernetes", "namespace"): _ANOTHER_PLACE,
    ("eks",): _MONEY,
    **{
        (*holder, "nodes", field): _MONEY
        for holder in ((), ("prefill",), ("decode",))
        for field in ("zone", "capacity_reservation")
    },
}
"""Fields, with all that is in them, that are set in the document only: why."""


@dataclass(frozen=True)
class Override:
    """One value to put at `path`, over whatever stands there."""

    path: FieldPath
    value: Any
    origin: Origin


def from_options(options: Sequence[str]) -> tuple[list[Override], list[Problem]]:
    """What `--set` asks for, in its order (the last one wins), and what is wrong with it."""
    found: list[Override] = []
    problems: list[Problem] = []
    for option in options:
        name, equals, text = option.partition("=")
        path = tuple(name.strip().split("."))
        if not equals or not all(path):
            problems.append(
                Problem(
                    SET.where,
                    "",
                    f"{name[:60]!r} names no field and value",
                    "write --set a.b=value",
                    code="S111",
                )
            )
            continue
        _add(path, text, SET, _NEVER_BY_SET, found, problems)
    return found, problems


def from_environment(environ: Mapping[str, str]) -> tuple[list[Override], list[Problem]]:
    """What variables ask for, in the order of their names, and what is wrong with them."""
    found: list[Override] = []
    problems: list[Problem] = []
    for variable in sorted(_ours(environ)):
        origin = Origin(f"environment {variable}", f"environment {variable}")
        path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if not all(path):
            do = f"write {PREFIX}A__B for the field a.b, or unset it"
            problems.append(Problem(origin.where, "", "it names no field", do, code="S111"))
            continue
        _add(path, environ[variable], origin, _NEVER_BY_ENVIRONMENT, found, problems)
    return found, problems


def _ours(environ: Mapping[str, str]) -> Iterable[str]:
    for variable, text in environ.items():
        reserved = variable in RESERVED_VARIABLES or variable.startswith(RESERVED_PREFIX)
        if variable.startswith(PREFIX) and not reserved and text.strip():
            yield variable


def _add(
    path: FieldPath,
    text: str,
    origin: Origin,
    never: Mapping[FieldPath, str],
    found: list[Override],
    problems: list[Problem],
) -> None:
    reason = next((reason for field, reason in never.items() if path[: len(field)] == field), None)
    if reason is not None:
        what = f"it can't be set here: {reason}"
        problems.append(Problem(origin.where, dotted(path), what, _IN_THE_DOCUMENT, code="S105"))
        return
    inside = [field for field in never if field[: len(path)] == path]
    if inside:
        what = f"it can't be set here as a whole, for {dotted(inside[0])} is in it: {never[inside[0]]}"
        do = "set its other fields one by one"
        problems.append(Problem(origin.where, dotted(path), what, do, code="S105"))
        return
    parsed = parse(text)
    problems += [
        Problem(origin.where, dotted((*path, *f.path)), f.what, f.do, code=f.code) for f in parsed.faults
    ]
    if not parsed.faults:
        found.append(Override(path, parsed.value, origin))
