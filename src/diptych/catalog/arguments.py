"""What an engine understands: vLLM's engine arguments, `kv_transfer_config`'s fields, environment variables.

`data/engine-args-<minor version>.json` is made by `scripts/engine_args.py` out of vLLM's own sources.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from diptych.catalog.engines import minor

# Minor versions that have a table, oldest first.
VERSIONS = ("0.26", "0.29")


@dataclass(frozen=True)
class Argument:
    """One argument of the engine.

    Args:
        name: as in `engine_kwargs` ("max_model_len").
        kind: "bool", "int", "float", "str", "list", "json" (a mapping), or "any".
        choices: the values it may take, where the engine lists them; else empty.
        default: JSON-ready; None also where it depends on model or hardware.
        optional: null is a value it may take.
    """

    name: str
    kind: str
    choices: tuple[str | int | float | bool, ...] = ()
    default: Any = None
    optional: bool = False


def engine_arguments(vllm_version: str) -> Mapping[str, Argument] | None:
    """Every engine argument by name; None for a minor version of vLLM that has no table."""
    return _arguments(minor(vllm_version), "engine")


def kv_transfer_arguments(vllm_version: str) -> Mapping[str, Argument] | None:
    """The fields of `kv_transfer_config` by name; None for a minor version that has no table."""
    return _arguments(minor(vllm_version), "kv_transfer")


def environment_variables(vllm_version: str) -> frozenset[str] | None:
    """The environment variables that version reads by name; None for one that has no table."""
    raise NotImplementedError


def removed_in(name: str, vllm_version: str) -> str | None:
    """Where else an argument that this version lacks is known, in words; None if it is known nowhere else."""
    raise NotImplementedError


@cache
def _arguments(version: str, table: str) -> Mapping[str, Argument] | None:
    raise NotImplementedError
