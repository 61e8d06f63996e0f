"""What a model's `config.json` implies: its numbers, and the KV cache that each token needs.

How layers are told apart, and what each of them keeps, is in `diptych.models.layers`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diptych.errors import ModelError
from diptych.models.layers import (
    FULL,
    OTHER,
    RECURRENT,
    SLIDING,
    Fields,
    KVGroup,
    is_latent,
    kv_groups,
    kv_heads,
    layer_kinds,
)

__all__ = [
    "DTYPE_BYTES",
    "FULL",
    "OTHER",
    "RECURRENT",
    "SLIDING",
    "KVGroup",
    "ModelShape",
    "read_model_shape",
    "weight_bytes",
]

DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


@dataclass(frozen=True)
class ModelShape:
    """The numbers of one model, of its text part if it has several.

    Args:
        architecture: vLLM's name for the model's class.
        num_layers: layers in all, those of speculative heads not counted.
        num_kv_heads: KV heads of a full-attention layer; 1 with latent attention.
        head_dim: elements of K for one KV head of such a layer; of the latent vector with latent attention.
        hidden_size: elements of a token's hidden state.
        vocab_size: tokens in the vocabulary.
        max_position_embeddings: tokens of the longest sequence the model was made for.
        dtype: of the weights as loaded by default ("bfloat16"); None where the config is silent.
        is_mla: K and V share one latent vector per token.
        has_recurrent_state: some layers keep a state per sequence instead of, or beside, KV cache.
        kv_groups: its attention layers, by what they keep.
    """

    architecture: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    dtype: str | None
    is_mla: bool
    has_recurrent_state: bool
    kv_groups: tuple[KVGroup, ...]

    @classmethod
    def from_config(cls, config: Mapping[str, Any], file: str = "config.json") -> "ModelShape":
        """The shape that the content of a `config.json` describes.

        Raises:
            ModelError: a field is missing or no number, or the layout is not known; names `file` and field.
        """
        return _shape(Fields(config, file))

    @property
    def num_attention_layers(self) -> int:
        """Layers that keep KV cache of their own."""
        return sum(group.layers for group in self.kv_groups)

    @property
    def sliding_window(self) -> int | None:
        """Tokens that sliding-window layers keep; None without such layers."""
        return next((group.window for group in self.kv_groups if group.window is not None), None)

    def kv_bytes_per_token(self, dtype_bytes: int | None = None) -> int:
        """Bytes of KV cache that a new token adds, in all attention layers (sliding windows still open).

        Args:
            dtype_bytes: bytes of one element of the KV cache (bfloat16: 2, fp8: 1); the model's own without.

        Raises:
            ModelError: no size was given and the config names no dtype that is known here.
        """
        size = self._element_bytes(dtype_bytes)
        return sum(group.bytes_per_token(size) for group in self.kv_groups)

    def kv_bytes(self, tokens: int, dtype_bytes: int | None = None) -> int:
        """Bytes of KV cache for one sequence of `tokens`; sliding layers keep their window. No block padding.

        Raises:
            ModelError: as `kv_bytes_per_token`.
        """
        size = self._element_bytes(dtype_bytes)
        return sum(
            group.bytes_per_token(size) * min(tokens, group.window or tokens) for group in self.kv_groups
        )

    def _element_bytes(self, dtype_bytes: int | None) -> int:
        if dtype_bytes is not None:
            return dtype_bytes
        if self.dtype not in DTYPE_BYTES:
            stated = f"the dtype {self.dtype}, which is not known here" if self.dtype else "no dtype"
            raise ModelError(
                f"the config of {self.architecture} states {stated}", "name the dtype: engine_kwargs.dtype"
            )
        return DTYPE_BYTES[self.dtype]


def read_model_shape(directory: Path) -> ModelShape:
    """The shape of the checkpoint in `directory`.

    Raises:
        ModelError: its config.json is missing, no JSON, or lacks something; names the file and what.
    """
    file = directory / "config.json"
    return ModelShape.from_config(_read_json(file), str(file))


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


def _shape(fields: Fields) -> ModelShape:
    missing = fields.lacking()
    architectures = fields.get("architectures")
    if not isinstance(architectures, Sequence) or not architectures:
        missing.insert(0, "architectures")
    if missing:
        hint = "use the config.json of a whole checkpoint"
        raise ModelError(f"{fields.file}: it lacks {', '.join(missing)}", hint)
    kinds = layer_kinds(fields)
    heads, head_dim = kv_heads(fields, FULL)
    dtype = fields.get("dtype") or fields.get("torch_dtype")
    return ModelShape(
        architecture=str(fields.get("architectures")[0]),
        num_layers=len(kinds),
        num_kv_heads=heads,
        head_dim=head_dim,
        hidden_size=fields.required("hidden_size"),
        vocab_size=fields.required("vocab_size"),
        max_position_embeddings=fields.required("max_position_embeddings"),
        dtype=str(dtype).removeprefix("torch.") if dtype else None,
        is_mla=is_latent(fields),
        has_recurrent_state=RECURRENT in kinds,
        kv_groups=kv_groups(fields, kinds),
    )
