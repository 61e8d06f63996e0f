"""A checkpoint's files as they lie on this disk: its config, and how large its weights are."""

import json
from pathlib import Path
from typing import Any

from diptych.errors import ModelError
from diptych.models.quantization import from_hf_quant_config


def read_config(file: Path) -> dict[str, Any]:
    """The content of a `config.json`, with the quantisation that ModelOpt describes in a file beside it.

    Raises:
        ModelError: it is missing, can't be read or is no JSON object; names the file.
    """
    config = _read_json(file)
    beside = file.with_name("hf_quant_config.json")
    if "quantization_config" not in config and beside.is_file():
        config["quantization_config"] = from_hf_quant_config(_read_json(beside))
    return config


def weight_bytes(directory: Path) -> int:
    """Bytes of the checkpoint's safetensors files: those of its index if it has one, else all that lie there.

    Raises:
        ModelError: there are none, one that the index names is missing, or the index can't be read.
    """
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{index}: it has no weight_map", "download the model again")
        files = [directory / str(name) for name in sorted(set(weight_map.values()))]
    else:
        files = sorted(directory.glob("model*.safetensors")) or sorted(directory.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"{directory}: no safetensors file lies here", "give the folder of a whole checkpoint"
        )
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(
            f"{directory}: the checkpoint lacks {', '.join(missing)}", "download the model again"
        )
    return sum(file.stat().st_size for file in files)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{file}: there is no such file", "give the folder of a checkpoint") from None
    except OSError as error:
        raise ModelError(f"{file}: it can't be read: {error.strerror}", "check its permissions") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: it is not valid JSON: {error}", "download the model again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: it holds no JSON object", "download the model again")
    return content
