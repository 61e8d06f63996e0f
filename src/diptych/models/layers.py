"""A model's layers as its config describes them, and what each attention layer keeps for a token.

A token keeps, in each attention layer that has a KV cache of its own,

    full or sliding attention   KV heads x (head size of K + head size of V)   elements
    latent attention (MLA)      kv_lora_rank + qk_rope_head_dim                elements, K and V in one
    an indexer (DSA)            index_head_dim + 4 for each 128 of it          bytes, whatever the KV dtype

as vLLM's KV-cache specifications count it. Layers with recurrent state (Mamba, gated delta nets, short
convolutions) keep none. Chunked attention counts as full attention: an upper bound. A layout that is not
known here is an error and never a guess.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diptych.errors import ModelError

DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}

FULL, SLIDING, RECURRENT, OTHER = "full", "sliding", "recurrent", "other"

_LAYER_TYPES = {
    "full_attention": FULL,
    "attention": FULL,
    "chunked_attention": FULL,
    "sliding_attention": SLIDING,
    "linear_attention": RECURRENT,
    "mamba": RECURRENT,
    "mamba2": RECURRENT,
    "conv": RECURRENT,
    "moe": OTHER,
    "mlp": OTHER,
}
_PATTERN_LETTERS = {"*": FULL, "M": RECURRENT, "E": OTHER, "-": OTHER}

_FULL_EVERY = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}
"""Model types whose older configs leave it to the code that every n-th layer is full and the others slide."""

_LATENT_TYPES = frozenset(
    {"deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2"}
)

_UNKNOWN_LAYOUTS = (
    "attn_layer_indices",
    "attn_layer_period",
    "attn_type_list",
    "compress_ratios",
    "hybrid_layer_ids",
    "is_encoder_decoder",
    "layers_block_type",
    "linear_attn_config",
    "mamba_d_ssm",
    "mamba_d_state",
    "multi_query",
    "multi_query_group_num",
    "ssm_cfg",
    "state_size",
)
"""Fields that lay layers or heads out in a way this module doesn't know."""

_OWN_HEADS = {
    FULL: ("num_global_key_value_heads", "global_head_dim"),
    SLIDING: ("swa_num_key_value_heads", "swa_head_dim"),
}
"""Fields for KV heads and head size where full and sliding layers differ."""

_NAMES = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "vocab_size": ("vocab_size",),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_seq_len"),
}
"""Numbers without which nothing can be said, and the names that configs use for them."""

_INNER = ("text_config", "language_config", "llm_config")

_SIZE_IT_YOURSELF = "size the KV cache yourself: prefill.kv_cache_memory, decode.kv_cache_memory"


@dataclass(frozen=True)
class KVGroup:
    """Attention layers that keep the same amount of KV cache for a token.

    Args:
        layers: how many there are.
        elements: numbers kept per token and layer, each of the KV cache's dtype.
        fixed_bytes: bytes kept per token and layer besides, whatever that dtype.
        window: the last tokens that are kept, None for all.
        heads: KV heads that tensor parallelism can divide; 1 with latent attention.
        kind: of its layers, `FULL` or `SLIDING`.
    """

    layers: int
    elements: int
    fixed_bytes: int = 0
    window: int | None = None
    heads: int = 1
    kind: str = FULL

    def bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes for one token in all layers of the group."""
        return self.layers * (self.elements * dtype_bytes + self.fixed_bytes)

    def page_bytes(self, dtype_bytes: int, tensor_parallel: int = 1) -> int:
        """Bytes for one token in one layer on one of `tensor_parallel` GPUs, each with one KV head at least."""
        heads = max(1, self.heads // tensor_parallel)
        return self.elements // self.heads * heads * dtype_bytes + self.fixed_bytes


class Fields:
    """The fields of one config, checked as they are read; those of its text part win over those of the whole.

    Args:
        config: the content of a `config.json`.
        file: its name, for errors.
    """

    def __init__(self, config: Mapping[str, Any], file: str) -> None:
        inner: Mapping[str, Any] = next(
            (config[name] for name in _INNER if isinstance(config.get(name), Mapping)), {}
        )
        self._values: dict[str, Any] = {**config, **{k: v for k, v in inner.items() if v is not None}}
        self.file = file

    def get(self, name: str) -> Any:
        """The field as it is, None without it."""
        return self._values.get(name)

    def lacking(self) -> list[str]:
        """The required numbers that are not there."""
        return [name for name, names in _NAMES.items() if all(self.get(known) is None for known in names)]

    def required(self, name: str) -> int:
        """A number that every config has, under whichever name.

        Raises:
            ModelError: it is no whole number above 0.
        """
        return self.number(next(known for known in _NAMES[name] if self.get(known) is not None))

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number above 0; where there is a default, 0 will do as well.

        Raises:
            ModelError: it is none, or it is missing and there is no default.
        """
        value = self.get(name)
        if value is None and default is not None:
            return default
        if type(value) is not int or value < 0 or (value == 0 and default is None):
            problem = "lacks" if value is None else f"has {str(value)[:40]!r}, no number above 0, as"
            raise ModelError(f"{self.file}: it {problem} {name}", "use the config.json of a whole checkpoint")
        return value

    def unknown(self, what: str, hint: str = _SIZE_IT_YOURSELF) -> ModelError:
        """The error for a layout that is not known here."""
        message = f"{self.file}: it describes {what}, and this version of Diptych can't size that"
        return ModelError(message, hint)

    def unknown_weights(self, what: str) -> ModelError:
        """The error for weights that are not known here."""
        return self.unknown(what, "fetch the model: the size of its weight files is used where they are")


def layer_kinds(fields: Fields) -> list[str]:
    """What each layer keeps (`FULL`, `SLIDING`, `RECURRENT`, `OTHER`), in order.

    Raises:
        ModelError: the layout is not known here.
    """
    total = fields.required("num_hidden_layers")
    kinds = _stated_kinds(fields, total)
    if len(kinds) != total:
        raise fields.unknown(f"{total} layers of which {len(kinds)} are described")
    return kinds


def is_latent(fields: Fields) -> bool:
    """Whether K and V share one latent vector per token.

    Raises:
        ModelError: they do, in a type of model of which that is not known here.
    """
    if not fields.get("kv_lora_rank"):
        return False
    if str(fields.get("model_type")) not in _LATENT_TYPES:
        raise fields.unknown(f"latent attention in a model of type {fields.get('model_type')}")
    return True


def kv_heads(fields: Fields, kind: str) -> tuple[int, int]:
    """KV heads and the elements of K in each, for layers of `kind`; latent attention has one head.

    Raises:
        ModelError: a number is missing or none.
    """
    if is_latent(fields):
        return 1, fields.number("kv_lora_rank") + fields.number("qk_rope_head_dim")
    attention_heads = fields.required("num_attention_heads")
    heads = fields.number("num_key_value_heads", default=attention_heads)
    size = fields.number("head_dim", default=fields.required("hidden_size") // attention_heads)
    own_heads, own_size = _OWN_HEADS[kind]
    heads, size = fields.number(own_heads, default=heads), fields.number(own_size, default=size)
    if not heads or not size:
        raise fields.unknown("attention layers with KV heads of no size")
    return heads, size


def kv_groups(fields: Fields, kinds: Sequence[str]) -> tuple[KVGroup, ...]:
    """The attention layers among `kinds`, by what they keep; those that share the cache of others left out.

    Raises:
        ModelError: a number is missing or none, or the layout is not known here.
    """
    borrowed = fields.number("num_kv_shared_layers", default=0)
    count = Counter(kinds[: max(0, len(kinds) - borrowed)])
    if is_latent(fields):
        if count[SLIDING]:
            raise fields.unknown("latent attention with sliding windows")
        _, latent_size = kv_heads(fields, FULL)
        indexer = fields.number("index_head_dim", default=0)
        return (KVGroup(count[FULL], latent_size, indexer + indexer // 128 * 4),)
    groups = []
    for kind, value_field in ((FULL, "v_head_dim"), (SLIDING, "swa_v_head_dim")):
        if count[kind]:
            heads, key_size = kv_heads(fields, kind)
            value_size = fields.number(value_field, default=key_size)
            window = fields.number("sliding_window") if kind == SLIDING else None
            elements = heads * (key_size + value_size)
            groups.append(KVGroup(count[kind], elements, window=window, heads=heads, kind=kind))
    return tuple(groups)


def _stated_kinds(fields: Fields, total: int) -> list[str]:
    types = fields.get("layer_types")
    if isinstance(types, list):
        return [_kind(fields, str(word), _LAYER_TYPES) for word in types]
    pattern = fields.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [_kind(fields, letter, _PATTERN_LETTERS) for letter in pattern]
    slides = fields.get("hybrid_layer_pattern")
    if isinstance(slides, list):
        return [SLIDING if slide else FULL for slide in slides]
    strange = [name for name in _UNKNOWN_LAYOUTS if fields.get(name)]
    if strange:
        raise fields.unknown(", ".join(strange))
    if fields.get("full_attention_interval"):
        return _every(fields.number("full_attention_interval"), total, RECURRENT)
    if not fields.get("sliding_window") or fields.get("use_sliding_window") is False:
        return [FULL] * total
    every = _FULL_EVERY.get(str(fields.get("model_type")), 0)
    return _every(fields.number("sliding_window_pattern", default=every), total, SLIDING)


def _kind(fields: Fields, word: str, known: Mapping[str, str]) -> str:
    if word not in known:
        raise fields.unknown(f"layers of type {word!r}")
    return known[word]


def _every(interval: int, total: int, otherwise: str) -> list[str]:
    """Full attention in every `interval`-th of `total` layers (in none for 0), `otherwise` in the others."""
    return [FULL if interval and layer % interval == 0 else otherwise for layer in range(1, total + 1)]
