"""The tensors of a model's text part, layer by layer, and of the draft layers that its checkpoint adds.

Which families are known is the table `_NORMS`; all others are an error and never a guess.
"""

from collections.abc import Iterator, Sequence

from diptych.models.layers import FULL, OTHER, Fields
from diptych.models.mixers import mixer
from diptych.models.mlps import dense_mlp, experts, has_experts, moe
from diptych.models.tensors import DRAFT, EMBEDDING, HEAD, LAYERS, Tensor, placed, replicated

_NORMS = {
    "deepseek_v2": 2,
    "deepseek_v3": 2,
    "deepseek_v32": 2,
    "gemma3_text": 4,
    "gemma4_text": 4,
    "glm4_moe": 2,
    "glm_moe_dsa": 2,
    "gpt_oss": 2,
    "kimi_k2": 2,
    "llama": 2,
    "llama4_text": 2,
    "mimo_v2_flash": 2,
    "mistral": 2,
    "mixtral": 2,
    "nemotron_h": 1,
    "phi3": 2,
    "qwen2": 2,
    "qwen2_moe": 2,
    "qwen3": 2,
    "qwen3_5_moe_text": 2,
    "qwen3_5_text": 2,
    "qwen3_moe": 2,
    "qwen3_next": 2,
    "qwen3_vl_moe_text": 2,
    "qwen3_vl_text": 2,
}
"""Model types whose weights are known here, and the norms of the hidden state in each of their layers."""

_TIED = frozenset({"gemma3_text", "gemma4_text"})
"""Model types whose embedding is also the head where the config is silent."""

_MLP_NAMES = {"llama4_text": "feed_forward", "mixtral": "block_sparse_moe", "nemotron_h": "mixer"}

_UNKNOWN = ("hidden_size_per_layer_input", "num_kv_shared_layers", "use_double_wide_mlp")
"""Fields that change the tensors of a known family in a way that isn't known here."""

_DRAFTS_JOINED_ONCE = {"qwen3_5_moe_text": 0, "qwen3_5_text": 0, "qwen3_next": 1}
"""Model types whose draft layers share one joint, and how many there are where the config is silent."""

_DRAFTS_WHOLE = frozenset({"deepseek_v3", "deepseek_v32", "glm4_moe", "glm_moe_dsa", "kimi_k2"})
"""Model types whose draft layers each have a joint, an embedding and a head of their own."""

_DRAFTS_UNSTATED = frozenset({"mimo_v2_flash"})
"""Model types whose checkpoints hold draft layers that their configs don't mention."""


def text_tensors(fields: Fields, kinds: Sequence[str]) -> list[Tensor]:
    """The tensors of the text part: embedding, layers, head.

    Args:
        kinds: what each layer keeps, from `layer_kinds`.

    Raises:
        ModelError: the family is not known here, or a number is missing or none.
    """
    family = str(fields.get("model_type"))
    if family not in _NORMS:
        raise fields.unknown_weights(f"the weights of a model of type {family}")
    strange = [name for name in _UNKNOWN if fields.get(name)]
    if strange:
        raise fields.unknown_weights(f"{', '.join(strange)} in a model of type {family}")
    hidden, vocabulary = fields.required("hidden_size"), fields.required("vocab_size")
    tensors = [Tensor("embed_tokens", vocabulary, hidden, part=EMBEDDING)]
    for layer, kind in enumerate(kinds):
        tensors += placed(_layer(fields, layer, kind), f"layers.{layer}", LAYERS, layer)
    tensors.append(Tensor("norm", hidden, shards=1, part=HEAD))
    tied = fields.get("tie_word_embeddings")
    if not (family in _TIED if tied is None else tied):
        tensors.append(Tensor("lm_head", vocabulary, hidden, part=HEAD))
    return tensors


def draft_tensors(fields: Fields) -> Iterator[Tensor]:
    """The tensors of the layers for speculation (MTP), which vLLM leaves on the disk unless told to use them.

    None for families of which that isn't known; `drafts_unknown` tells.

    Raises:
        ModelError: a number is missing or none.
    """
    family = str(fields.get("model_type"))
    layer, own = _draft_layer(fields), _draft_joint(fields)
    if family in _DRAFTS_JOINED_ONCE:
        count = fields.number("mtp_num_hidden_layers", default=_DRAFTS_JOINED_ONCE[family])
        yield from placed(own if count else [], "mtp", DRAFT)
    elif family in _DRAFTS_WHOLE:
        count = fields.number("num_nextn_predict_layers", default=0)
        layer += [*own, *_draft_tables(fields)]
    else:
        return
    for index in range(count):
        yield from placed(layer, f"mtp.layers.{index}", DRAFT)


def drafts_unknown(fields: Fields) -> bool:
    """Whether the checkpoint holds draft layers that `draft_tensors` doesn't count."""
    family = str(fields.get("model_type"))
    if family in _DRAFTS_JOINED_ONCE or family in _DRAFTS_WHOLE:
        return False
    return family in _DRAFTS_UNSTATED or bool(fields.get("num_nextn_predict_layers"))


def _draft_layer(fields: Fields) -> list[Tensor]:
    """A draft layer is made like the last one, with full attention."""
    return _layer(fields, fields.required("num_hidden_layers") - 1, FULL)


def _draft_joint(fields: Fields) -> list[Tensor]:
    """What joins the hidden state and the next token's embedding."""
    hidden = fields.required("hidden_size")
    return [replicated("fc", hidden, 2 * hidden), replicated("norms", hidden, 3)]


def _draft_tables(fields: Fields) -> list[Tensor]:
    """Copies of the embedding and the head."""
    hidden, vocabulary = fields.required("hidden_size"), fields.required("vocab_size")
    return [Tensor("embed_tokens", vocabulary, hidden), Tensor("shared_head", vocabulary, hidden)]


def _layer(fields: Fields, layer: int, kind: str) -> list[Tensor]:
    """All tensors of one layer."""
    family, hidden = str(fields.get("model_type")), fields.required("hidden_size")
    norms = [replicated("norms", hidden, _NORMS[family])]
    if family == "nemotron_h":  # one thing in each layer: a mixer or an MLP
        return norms + (_lone_mlp(fields, layer) if kind == OTHER else mixer(fields, kind))
    name, has = _MLP_NAMES.get(family, "mlp"), experts(fields)
    tensors = norms + mixer(fields, kind)
    if family == "gemma4_text" and has:  # a dense MLP beside the experts, both in every layer
        extra = [replicated("norms", hidden, 3), replicated("router.scale", hidden + has.count)]
        return [*tensors, *extra, *moe(fields, has, "moe"), *dense_mlp(fields, _dense_width(fields))]
    if has and has_experts(fields, layer):
        return tensors + moe(fields, has, name)
    return tensors + dense_mlp(fields, _dense_width(fields), name)


def _lone_mlp(fields: Fields, layer: int) -> list[Tensor]:
    pattern, has = str(fields.get("hybrid_override_pattern") or ""), experts(fields)
    if layer < len(pattern) and pattern[layer] == "E" and has:
        return moe(fields, has, "mixer")
    return dense_mlp(fields, fields.number("intermediate_size"), "mixer")


def _dense_width(fields: Fields) -> int:
    """Elements of a dense MLP's intermediate state; Llama 4 has another width in its MoE layers."""
    return fields.number("intermediate_size_mlp", default=fields.number("intermediate_size"))
