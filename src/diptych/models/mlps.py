"""The tensors of a layer's MLP: dense, or routed experts with what goes with them.

Field names differ by family, the numbers do not: how many experts, how wide, how many shared ones, and which
layers have none. Checked against vLLM 0.29 in `tests/models`.
"""

from dataclasses import dataclass

from diptych.models.layers import Fields
from diptych.models.tensors import Tensor, linear, replicated

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_UNGATED = frozenset({"nemotron_h"})
"""Model types with two matrices in an MLP (up, down) instead of three (gate, up, down)."""
_CORRECTED = frozenset(
    {"deepseek_v3", "deepseek_v32", "glm4_moe", "glm_moe_dsa", "kimi_k2", "mimo_v2_flash", "nemotron_h"}
)
"""Model types whose router has a correction per expert."""
_SHARED_GATE = frozenset({"qwen2_moe", "qwen3_5_moe_text", "qwen3_next"})
"""Model types that weigh the shared expert with a gate of its own."""


@dataclass(frozen=True)
class Experts:
    """The routed experts of a model's MoE layers.

    Args:
        count: of one layer.
        width: elements of one expert's intermediate state.
        per_token: that a token goes through.
        shared_width: elements of the intermediate state of the experts that all tokens go through, in sum.
    """

    count: int
    width: int
    per_token: int
    shared_width: int


def experts(fields: Fields) -> Experts | None:
    """The routed experts, None in a dense model.

    Raises:
        ModelError: a number is missing or none.
    """
    name = next((known for known in _EXPERTS if fields.get(known)), None)
    if name is None or fields.get("enable_moe_block") is False:
        return None
    own = "intermediate_size" if fields.get("moe_intermediate_size") is None else "moe_intermediate_size"
    per_token = "num_experts_per_tok" if fields.get("num_experts_per_tok") else "top_k_experts"
    return Experts(
        fields.number(name),
        fields.number(own),
        fields.number(per_token),
        _shared_width(fields, fields.number(own)),
    )


def _shared_width(fields: Fields, width: int) -> int:
    if str(fields.get("model_type")) == "llama4_text":
        return width
    if fields.get("shared_expert_intermediate_size"):
        return fields.number("shared_expert_intermediate_size")
    own = fields.number("moe_shared_expert_intermediate_size", default=width)
    return own * fields.number("n_shared_experts", default=0)


def has_experts(fields: Fields, layer: int) -> bool:
    """Whether `layer` (from 0) routes to experts, in a model that has some.

    Raises:
        ModelError: a number is missing or none, or layers are not all described.
    """
    frequency, dense = fields.get("moe_layer_freq"), fields.get("mlp_only_layers")
    if isinstance(frequency, list):
        if layer >= len(frequency):
            raise fields.unknown_weights(f"experts in {len(frequency)} layers of more")
        return bool(frequency[layer])
    if layer < fields.number("first_k_dense_replace", default=0):
        return False
    if isinstance(dense, list) and layer in dense:
        return False
    step = fields.number("decoder_sparse_step", default=fields.number("interleave_moe_layer_step", default=1))
    return bool(step) and (layer + 1) % step == 0


def dense_mlp(fields: Fields, width: int, name: str = "mlp") -> list[Tensor]:
    """An MLP that every token goes through.

    Raises:
        ModelError: a number is missing or none.
    """
    hidden, bias = fields.required("hidden_size"), bool(fields.get("mlp_bias"))
    matrices = [
        *linear(f"{name}.up_proj", width, hidden, bias=bias),
        *linear(f"{name}.down_proj", hidden, width, bias=bias),
    ]
    if str(fields.get("model_type")) not in _UNGATED:
        matrices += linear(f"{name}.gate_proj", width, hidden, bias=bias)
    return matrices


def moe(fields: Fields, has: Experts, name: str = "mlp") -> list[Tensor]:
    """A router, its experts and the shared ones.

    Raises:
        ModelError: a number is missing or none.
    """
    hidden, family = fields.required("hidden_size"), str(fields.get("model_type"))
    bias = family == "gpt_oss"
    gated = family not in _UNGATED
    routed = fields.number("moe_latent_size", default=hidden)
    router = "router" if family in ("gpt_oss", "gemma4_text", "llama4_text") else "gate"
    tensors = [
        replicated(f"{name}.{router}", has.count, hidden + (1 if bias else 0)),
        *linear(f"{name}.experts.*.up_proj", has.width, routed, bias=bias, copies=has.count),
        *linear(f"{name}.experts.*.down_proj", routed, has.width, bias=bias, copies=has.count),
    ]
    if gated:
        tensors += linear(f"{name}.experts.*.gate_proj", has.width, routed, bias=bias, copies=has.count)
    if routed != hidden:
        tensors += linear(f"{name}.fc1_latent_proj", routed, hidden, shards=1)
        tensors += linear(f"{name}.fc2_latent_proj", hidden, routed, shards=1)
    if has.shared_width:
        tensors += dense_mlp(fields, has.shared_width, f"{name}.shared_experts")
    if family in _CORRECTED:
        tensors.append(replicated(f"{name}.e_score_correction_bias", has.count))
    if family in _SHARED_GATE:
        tensors.append(replicated(f"{name}.shared_expert_gate", 1, hidden))
    return tensors
