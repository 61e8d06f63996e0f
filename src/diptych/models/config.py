"""What a model's `config.json` implies: its numbers, and the KV cache that each token needs.

How layers are told apart, and what each of them keeps, is in `diptych.models.layers`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diptych.errors import ModelError
from diptych.models.checkpoint import read_config, weight_bytes
from diptych.models.context import context_length
from diptych.models.layers import (
    DTYPE_BYTES,
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
from diptych.models.paging import KERNEL_BLOCK, CacheLayout, cache_layout
from diptych.models.quantization import kv_cache_element_bytes
from diptych.models.state import recurrence
from diptych.models.vision import vision_fields
from diptych.models.weights import WeightEstimate, weights_of

__all__ = [
    "DTYPE_BYTES",
    "FULL",
    "OTHER",
    "RECURRENT",
    "SLIDING",
    "KVGroup",
    "ModelShape",
    "read_config",
    "read_model_shape",
    "weight_bytes",
]


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
        context_length: tokens of the longest sequence that vLLM takes; `diptych.models.context` says how.
        dtype: of the weights as loaded by default ("bfloat16"); None where the config is silent.
        is_mla: K and V share one latent vector per token.
        has_recurrent_state: some layers keep a state per sequence instead of, or beside, KV cache.
        kv_groups: its attention layers, by what they keep.
        layer_kinds: what each layer keeps, in order: `FULL`, `SLIDING`, `RECURRENT` or, for nothing, `OTHER`.
        fields: the config's fields, for what is worked out when asked for; shapes of other configs differ by it.
    """

    architecture: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    context_length: int
    dtype: str | None
    is_mla: bool
    has_recurrent_state: bool
    kv_groups: tuple[KVGroup, ...]
    layer_kinds: tuple[str, ...]
    fields: Fields = field(repr=False)

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

    @property
    def has_vision(self) -> bool:
        """Whether the config describes a vision tower."""
        return vision_fields(self.fields) is not None

    def weights(
        self,
        *,
        dtype: str | None = None,
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
        vision: bool = True,
    ) -> WeightEstimate:
        """The weights, estimated from the config alone; `diptych.models.weights` says how.

        Args:
            dtype: that they are loaded as ("bfloat16"); the config's own without.
            vision: False counts the text part only.

        Raises:
            ModelError: the architecture or its quantisation is not known here.
        """
        return weights_of(
            self.fields,
            dtype=dtype,
            tensor_parallel=tensor_parallel,
            pipeline_parallel=pipeline_parallel,
            vision=vision,
        )

    def state_bytes(self, dtype_bytes: int | None = None, tensor_parallel: int = 1) -> int:
        """Bytes that recurrent layers keep for one sequence on each of `tensor_parallel` GPUs; 0 without any.

        Args:
            dtype_bytes: of the dtype that the model is run in, which the KV cache's doesn't change; its own without.

        Raises:
            ModelError: their kind is not known here, or the config names no dtype that is.
        """
        return self._layer_state_bytes(dtype_bytes, tensor_parallel) * self.layer_kinds.count(RECURRENT)

    def cache_layout(
        self,
        *,
        kv_dtype_bytes: int | None = None,
        dtype_bytes: int | None = None,
        tensor_parallel: int = 1,
        block_size: int = 16,
        kernel_block: int = KERNEL_BLOCK,
    ) -> CacheLayout:
        """The cache's pages and groups on one GPU, as vLLM makes them; `diptych.models.paging` says how.

        Args:
            kv_dtype_bytes: bytes of one element of the KV cache (bfloat16: 2, fp8: 1); what the checkpoint's
                quantisation asks for without, else as `dtype_bytes`.
            dtype_bytes: of the dtype that the model is run in; its own without.

        Raises:
            ModelError: as `state_bytes`, or no layer keeps anything.
        """
        if not {FULL, SLIDING, RECURRENT} & set(self.layer_kinds):
            raise self.fields.unknown("no layer that keeps a cache")
        return cache_layout(
            self.layer_kinds,
            self.kv_groups,
            dtype_bytes=self._element_bytes(
                kv_dtype_bytes or kv_cache_element_bytes(self.fields) or dtype_bytes
            ),
            state_bytes=self._layer_state_bytes(dtype_bytes, tensor_parallel),
            tensor_parallel=tensor_parallel,
            block_size=block_size,
            kernel_block=kernel_block,
        )

    def _layer_state_bytes(self, dtype_bytes: int | None, tensor_parallel: int) -> int:
        """Bytes of state in one recurrent layer."""
        if RECURRENT not in self.layer_kinds:
            return 0
        return recurrence(self.fields).state_bytes(self._element_bytes(dtype_bytes), tensor_parallel)

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
    return ModelShape.from_config(read_config(file), str(file))


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
        context_length=context_length(fields),
        dtype=str(dtype).removeprefix("torch.") if dtype else None,
        is_mla=is_latent(fields),
        has_recurrent_state=RECURRENT in kinds,
        kv_groups=kv_groups(fields, kinds),
        layer_kinds=_keeping(fields, kinds),
        fields=fields,
    )


def _keeping(fields: Fields, kinds: list[str]) -> tuple[str, ...]:
    """The same, with nothing for the last layers if they use the cache of others."""
    borrowed = fields.number("num_kv_shared_layers", default=0)
    own = max(0, len(kinds) - borrowed)
    return (*kinds[:own], *[OTHER] * (len(kinds) - own))
