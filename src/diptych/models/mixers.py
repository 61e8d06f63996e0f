"""The tensors of what mixes tokens in a layer: attention, latent attention, gated delta nets, Mamba.

Shapes as vLLM 0.29 builds them (`vllm/model_executor/models/`), checked against it in `tests/models`.
"""

from diptych.models.layers import FULL, RECURRENT, SLIDING, Fields, is_latent, kv_heads
from diptych.models.state import delta_net, is_delta_net, mamba2
from diptych.models.tensors import Tensor, linear, replicated

_QKV_BIAS_ALWAYS = frozenset({"qwen2", "qwen2_moe"})
_QKV_BIAS_ONLY = frozenset({"glm4_moe", "mimo_v2_flash"})
"""Model types whose `attention_bias` leaves the output projection without one."""
_QK_NORM = frozenset(
    {
        "gemma3_text",
        "gemma4_text",
        "qwen3",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_vl_moe_text",
        "qwen3_vl_text",
    }
)
_GATED_QUERY = frozenset({"qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"})
_VALUE_SIZE = {FULL: "v_head_dim", SLIDING: "swa_v_head_dim"}


def mixer(fields: Fields, kind: str) -> list[Tensor]:
    """The tensors of one layer's mixer.

    Args:
        kind: `FULL`, `SLIDING` or `RECURRENT`.

    Raises:
        ModelError: a number is missing or none, or the recurrent layer is not known here.
    """
    if kind == RECURRENT:
        return _delta_net(fields) if is_delta_net(fields) else _mamba2(fields)
    if is_latent(fields):
        return _latent_attention(fields)
    return _attention(fields, kind)


def _attention(fields: Fields, kind: str) -> list[Tensor]:
    family, hidden = str(fields.get("model_type")), fields.required("hidden_size")
    heads, (groups, size) = _query_heads(fields, kind), kv_heads(fields, kind)
    value = fields.number(_VALUE_SIZE[kind], default=size)
    bias = bool(fields.get("attention_bias"))
    qkv_bias, out_bias = bias or family in _QKV_BIAS_ALWAYS, bias and family not in _QKV_BIAS_ONLY
    query = heads * size * (2 if family in _GATED_QUERY else 1)
    tensors = [
        *linear("self_attn.q_proj", query, hidden, bias=qkv_bias),
        *linear("self_attn.k_proj", groups * size, hidden, bias=qkv_bias, shards=groups),
        *_value_projection(fields, kind, groups, groups * value, hidden, qkv_bias),
        *linear("self_attn.o_proj", hidden, heads * value, bias=out_bias),
    ]
    if family in _QK_NORM or (family == "glm4_moe" and fields.get("use_qk_norm")):
        tensors += [replicated("self_attn.q_norm", size), replicated("self_attn.k_norm", size)]
    if family == "gpt_oss" or (kind == SLIDING and fields.get("add_swa_attention_sink_bias")):
        tensors.append(Tensor("self_attn.sinks", heads))
    return tensors


def _query_heads(fields: Fields, kind: str) -> int:
    heads = fields.required("num_attention_heads")
    return fields.number("swa_num_attention_heads", default=heads) if kind == SLIDING else heads


def _value_projection(
    fields: Fields, kind: str, groups: int, rows: int, hidden: int, bias: bool
) -> list[Tensor]:
    """V's projection; where K is also V, vLLM loads K's a second time (`attention_k_eq_v` in gemma4.py)."""
    if kind == FULL and fields.get("attention_k_eq_v"):
        return [Tensor("self_attn.k_proj", rows, hidden, linear=True, shards=groups, stored=False)]
    return linear("self_attn.v_proj", rows, hidden, bias=bias, shards=groups)


def _latent_attention(fields: Fields) -> list[Tensor]:
    hidden, heads = fields.required("hidden_size"), fields.required("num_attention_heads")
    latent, rope = fields.number("kv_lora_rank"), fields.number("qk_rope_head_dim")
    nope, value = fields.number("qk_nope_head_dim"), fields.number("v_head_dim")
    rank = fields.number("q_lora_rank", default=0)
    query = linear("self_attn.q_b_proj", heads * (nope + rope), rank or hidden)
    if rank:
        query += [
            *linear("self_attn.q_a_proj", rank, hidden, shards=1),
            replicated("self_attn.q_a_layernorm", rank),
        ]
    return [
        *query,
        *linear("self_attn.kv_a_proj_with_mqa", latent + rope, hidden, shards=1),
        replicated("self_attn.kv_a_layernorm", latent),
        *linear("self_attn.kv_b_proj", heads * (nope + value), latent),
        # vLLM keeps a second, unquantised kv_b_proj to decode with (W_UK_T and W_UV in mla_attention.py).
        Tensor("self_attn.kv_b_proj", heads * (nope + value), latent, stored=False),
        *linear("self_attn.o_proj", hidden, heads * value),
        *_indexer(fields, hidden, rank),
    ]


def _indexer(fields: Fields, hidden: int, rank: int) -> list[Tensor]:
    """What picks the tokens that sparse attention attends to (DeepSeek V3.2); none in other models."""
    heads, size = fields.number("index_n_heads", default=0), fields.number("index_head_dim", default=0)
    if not heads:
        return []
    return [
        *linear("self_attn.indexer.wq_b", heads * size, rank, shards=1),
        *linear("self_attn.indexer.wk", size, hidden, shards=1),
        replicated("self_attn.indexer.weights_proj", heads, hidden),
        replicated("self_attn.indexer.k_norm", size, 2),
    ]


def _delta_net(fields: Fields) -> list[Tensor]:
    net, hidden = delta_net(fields), fields.required("hidden_size")
    values = net.heads * net.head_size
    return [
        *linear("linear_attn.in_proj_qkv", net.convolved, hidden),
        *linear("linear_attn.in_proj_z", values, hidden),
        *linear("linear_attn.in_proj_b", net.heads, hidden),
        *linear("linear_attn.in_proj_a", net.heads, hidden),
        Tensor("linear_attn.conv1d", net.convolved, net.kernel),
        Tensor("linear_attn.A_log", net.heads),
        Tensor("linear_attn.dt_bias", net.heads),
        replicated("linear_attn.norm", net.head_size),
        *linear("linear_attn.out_proj", hidden, values),
    ]


def _mamba2(fields: Fields) -> list[Tensor]:
    net, hidden = mamba2(fields), fields.required("hidden_size")
    inner, bias = net.heads * net.head_size, bool(fields.get("use_bias"))
    return [
        *linear("mixer.in_proj", inner + net.convolved + net.heads, hidden, bias=bias),
        Tensor("mixer.conv1d", net.convolved, net.kernel + (1 if fields.get("use_conv_bias") else 0)),
        Tensor("mixer.A", net.heads, 3),  # A, D and dt_bias
        Tensor("mixer.norm", inner),
        *linear("mixer.out_proj", hidden, inner, bias=bias),
    ]
