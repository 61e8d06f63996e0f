"""Configs of well-known models that come with Diptych: enough to size them without a network.

Each file in `shapes/` is a model's `config.json` cut down to the fields that are read here.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any

_SAME_SHAPE = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": "HuggingFaceTB/SmolLM2-135M",
    "google/gemma-3-12b-pt": "google/gemma-3-12b-it",
    "google/gemma-3-27b-pt": "google/gemma-3-27b-it",
    "google/gemma-4-26B-A4B-it": "google/gemma-4-26B-A4B",
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.3-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Meta-Llama-3.1-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mistralai/Mixtral-8x7B-v0.1",
}
"""Ids whose numbers are those of another one."""


def shipped_ids() -> tuple[str, ...]:
    """Hugging Face ids of the configs that come with Diptych, sorted."""
    return tuple(sorted({*_files(), *_SAME_SHAPE}))


def shipped_config(source: str) -> dict[str, Any] | None:
    """The trimmed `config.json` of a Hugging Face id, whatever its case; None where none is shipped."""
    name = _by_lower_case().get(source.lower())
    if name is None:
        return None
    config: dict[str, Any] = json.loads((files("diptych.models") / "shapes" / _files()[name]).read_text())
    return config


@cache
def _files() -> dict[str, str]:
    """The files in `shapes/` by the id in their name."""
    names = (file.name for file in (files("diptych.models") / "shapes").iterdir())
    return {name.removesuffix(".json").replace("--", "/"): name for name in names if name.endswith(".json")}


@cache
def _by_lower_case() -> dict[str, str]:
    """The id of the file for every id that is known, in lower case."""
    own = {name.lower(): name for name in _files()}
    return own | {name.lower(): same for name, same in _SAME_SHAPE.items()}
