"""What an engine understands: the arguments that `engine_kwargs` may hold.

Ray Serve LLM hands `engine_kwargs` to two of vLLM's dataclasses, `AsyncEngineArgs` and `FrontendArgs`, and refuses
what neither has, after the node is up and paid for. `data/engine-args-<minor>.json` is made by
`scripts/engine_args.py` out of vLLM itself.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from diptych.catalog.engines import minor

# Minor versions of vLLM that have a table, oldest first.
VERSIONS = ("0.26", "0.29")

_TYPES: Mapping[str, type | tuple[type, ...]] = MappingProxyType(
    {
        "bool": bool,
        "int": int,
        "float": (int, float),
        "str": str,
        "list": (list, tuple),
        "json": Mapping,
        "any": object,
    }
)


@dataclass(frozen=True)
class Argument:
    """One argument of the engine.

    Args:
        name: as in `engine_kwargs` ("max_model_len").
        kinds: what it may be, one or several of "bool", "int", "float", "str", "list", "json" (a mapping), "any".
        choices: its only values; empty where there are others.
        default: None also where the engine works it out at start.
        optional: null is a value it may take.
    """

    name: str
    kinds: tuple[str, ...]
    choices: tuple[str | int | float | bool, ...] = ()
    default: Any = None
    optional: bool = False

    @property
    def kind(self) -> str:
        """All its kinds in one word: "int", "str|list"."""
        return "|".join(self.kinds)

    def accepts(self, value: Any) -> bool:
        """Whether the engine declares this value to be one it takes, as it comes out of YAML.

        >>> Argument("block_size", ("int",)).accepts("16")
        False
        """
        if value is None:
            return self.optional
        if self.choices:
            return any(value == each and type(value) is type(each) for each in self.choices)
        return any(_is_of(kind, value) for kind in self.kinds)


def engine_arguments(vllm_version: str) -> Mapping[str, Argument] | None:
    """Every argument that `engine_kwargs` may hold, by name; None for a minor version of vLLM without a table.

    >>> engine_arguments("0.26.0")["kv_cache_dtype"].default
    'auto'
    """
    table = _table(minor(vllm_version))
    return None if table is None else table.arguments


def config_arguments(vllm_version: str, argument: str) -> Mapping[str, Argument] | None:
    """The fields of an argument that is a mapping with fixed fields, such as `kv_transfer_config`, by name.

    None for a minor version of vLLM without a table, and for an argument that is no such mapping.
    """
    table = _table(minor(vllm_version))
    return None if table is None else table.configs.get(argument)


def known_in(name: str) -> tuple[str, ...]:
    """The minor versions, of those that have a table, whose engine takes this argument; oldest first."""
    return tuple(version for version in VERSIONS if name in (engine_arguments(version) or {}))


def added_in(name: str) -> str | None:
    """The minor version that has this argument where the table before has not; None if there is none."""
    known = known_in(name)
    return known[0] if known and known[0] != VERSIONS[0] else None


def removed_in(name: str) -> str | None:
    """The minor version that lacks this argument where the table before has it; None if there is none.

    >>> removed_in("calculate_kv_scales")
    '0.29'
    """
    known = known_in(name)
    return VERSIONS[VERSIONS.index(known[-1]) + 1] if known and known[-1] != VERSIONS[-1] else None


@dataclass(frozen=True)
class _Table:
    arguments: Mapping[str, Argument]
    configs: Mapping[str, Mapping[str, Argument]]


@cache
def _table(version: str) -> _Table | None:
    if version not in VERSIONS:
        return None
    file = files("diptych.catalog").joinpath(f"data/engine-args-{version}.json")
    content = json.loads(file.read_text(encoding="utf-8"))
    return _Table(
        # Where both have a name, Ray takes the frontend's.
        arguments=_arguments(content["engine"] | content["frontend"]),
        configs={name: _arguments(fields) for name, fields in content["configs"].items()},
    )


def _arguments(facts: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Argument]:
    return MappingProxyType(
        {
            name: Argument(
                name=name,
                kinds=tuple(each["kinds"]),
                choices=tuple(each.get("choices", ())),
                default=each.get("default"),
                optional=each.get("optional", False),
            )
            for name, each in facts.items()
        }
    )


def _is_of(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return kind in ("bool", "any")
    return isinstance(value, _TYPES[kind])
