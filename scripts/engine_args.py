"""Make `src/diptych/catalog/data/engine-args-<minor>.json`: what one version of vLLM understands.

    python scripts/engine_args.py [FOLDER] [--print]

Reads the `vllm` package in FOLDER, say an unpacked wheel of that version, else the installed one. It is imported,
not parsed: most types and defaults are names of other modules. The torch installed need not be the one it wants.

Written down are the fields of `AsyncEngineArgs` and `FrontendArgs`, which Ray Serve LLM takes in `engine_kwargs`,
and those of every dataclass that such a field takes as a mapping.
"""

import argparse
import builtins
import dataclasses
import enum
import importlib
import json
import os
import sys
import textwrap
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "src/diptych/catalog/data"
# vLLM moved it between the two versions that we serve with.
FRONTEND = ("vllm.entrypoints.openai.cli_args", "vllm.entrypoints.launchers.cli_args")
SCALARS = {bool: "bool", int: "int", float: "float", str: "str", Any: "any"}
WIDTH = 110


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the catalog's table of one vLLM version's arguments.")
    parser.add_argument("folder", nargs="?", help="that holds the package `vllm`; default: the installed one")
    parser.add_argument("--print", action="store_true", help="print the table instead of writing it")
    arguments = parser.parse_args()
    if arguments.folder:
        sys.path.insert(0, arguments.folder)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its log goes to the standard output
    table = table_of_vllm()
    if arguments.print:
        print(as_text(table), end="")
        return
    version = ".".join(table["vllm"].split(".")[:2])
    file = DATA / f"engine-args-{version}.json"
    file.write_text(as_text(table), encoding="utf-8")
    print(f"{len(table['engine'])} arguments of vLLM {table['vllm']} in {file}")


def table_of_vllm() -> dict[str, Any]:
    vllm: Any = importlib.import_module("vllm")
    engine = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs
    frontend = frontend_arguments()
    return {
        "vllm": vllm.__version__.partition("+")[0],
        "engine": arguments_of(engine),
        "frontend": arguments_of(frontend),
        "configs": configs_of(engine),
    }


def frontend_arguments() -> type:
    for module in FRONTEND:
        try:
            return typing.cast(type, importlib.import_module(module).FrontendArgs)
        except ModuleNotFoundError:
            continue
    raise SystemExit(f"FrontendArgs is in none of {', '.join(FRONTEND)}: where is it in this version?")


def arguments_of(cls: type) -> dict[str, dict[str, Any]]:
    """The public fields of a dataclass that its constructor takes, by name."""
    public = (each for each in dataclasses.fields(cls) if each.init and not each.name.startswith("_"))
    return {each.name: described(each, cls) for each in sorted(public, key=lambda each: each.name)}


def configs_of(cls: type) -> dict[str, Any]:
    """The fields of each dataclass that a field of this one takes as a mapping, by that field's name."""
    nested = {}
    for field in dataclasses.fields(cls):
        inner = [hint for hint in alternatives(resolved(field, cls)) if dataclasses.is_dataclass(hint)]
        if inner:
            nested[field.name] = arguments_of(typing.cast(type, inner[0]))
    return dict(sorted(nested.items()))


def described(field: "dataclasses.Field[Any]", cls: type) -> dict[str, Any]:
    hints = list(alternatives(resolved(field, cls)))
    default = default_of(field)
    facts: dict[str, Any] = {"kinds": kinds_of(hints)}
    if choices := choices_of(hints):
        facts["choices"] = choices
    if default is not None:
        facts["default"] = default
    if types.NoneType in hints or default_is_none(field):
        facts["optional"] = True
    return facts


class Names(dict[str, Any]):
    """A module's names; one that it imports for type checkers only stands for a class of which nothing is known."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, None) or type(name, (), {})


def resolved(field: "dataclasses.Field[Any]", cls: type) -> Any:
    """A field's type, evaluated where it is written as text."""
    if not isinstance(field.type, str):
        return field.type
    return eval(field.type, {}, Names(vars(sys.modules[cls.__module__])))


def alternatives(hint: Any) -> Iterator[Any]:
    """The members of a union, those of unions inside it too; without what annotates them."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        yield from alternatives(typing.get_args(hint)[0])
    elif origin in (typing.Union, types.UnionType):
        for each in typing.get_args(hint):
            yield from alternatives(each)
    else:
        yield hint


def kinds_of(hints: Iterable[Any]) -> list[str]:
    """What a document may hold there. Classes and functions, which it can't, are left out where others are."""
    kinds = [kind for hint in hints for kind in kinds_of_one(hint)]
    return list(dict.fromkeys(kinds)) or ["any"]


def kinds_of_one(hint: Any) -> list[str]:
    if hint in SCALARS:
        return [SCALARS[hint]]
    if typing.get_origin(hint) is typing.Literal:
        return [SCALARS[type(option)] for option in typing.get_args(hint)]
    kind = typing.get_origin(hint) or hint
    if not isinstance(kind, type) or kind is type:
        return []
    if issubclass(kind, enum.Enum):
        return ["int", "str"] if issubclass(kind, int) else ["str"]
    if issubclass(kind, Path):
        return ["str"]
    if dataclasses.is_dataclass(kind) or issubclass(kind, Mapping):
        return ["json"]
    return ["list"] if issubclass(kind, Collection) else []


def choices_of(hints: list[Any]) -> list[Any]:
    """The only values it may take; none where it takes others beside them."""
    literals = [hint for hint in hints if typing.get_origin(hint) is typing.Literal]
    others = [hint for hint in hints if hint not in literals and hint is not types.NoneType]
    return [] if others else [option for hint in literals for option in typing.get_args(hint)]


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """The default as JSON. None where it is made at start, except for plain collections."""
    default, made = declared_default(field)
    if isinstance(default, enum.Enum):
        default = default.value
    if isinstance(default, set | tuple):
        default = sorted(default)
    if made and not isinstance(default, list | dict):
        return None
    return default if isinstance(default, bool | int | float | str | list | dict) else None


def default_is_none(field: "dataclasses.Field[Any]") -> bool:
    return declared_default(field) == (None, False)


def declared_default(field: "dataclasses.Field[Any]") -> tuple[Any, bool]:
    """The default, and whether a factory makes it. Pydantic keeps both in an object of its own."""
    default: Any = field.default
    factory: Any = field.default_factory
    if type(default).__name__ == "FieldInfo":
        default, factory = default.default, default.default_factory or dataclasses.MISSING
    if factory is not dataclasses.MISSING:
        return factory(), True
    return (None, True) if default is dataclasses.MISSING or default is ... else (default, False)


def as_text(table: Mapping[str, Any], indent: str = "") -> str:
    """JSON with one argument a line."""
    if not indent:
        return as_text(table, "  ") + "\n"
    lines = []
    for key, value in table.items():
        deep = isinstance(value, dict) and value and all(isinstance(each, dict) for each in value.values())
        text = as_text(value, indent + "  ") if deep else json.dumps(value)
        if isinstance(value, list):
            text = textwrap.fill(text, WIDTH, subsequent_indent=indent + "  ", break_on_hyphens=False)
        lines.append(f"{indent}{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n" + indent[2:] + "}"


if __name__ == "__main__":
    main()
