"""The tensors of a vision tower and of what joins it to the text part, by the tower's model type.

Counted from `vision_config`, so as exactly as the text part; checked against vLLM 0.29 in `tests/models`.
A tower of another type is an error: `vision=False` sizes the text part alone.
"""

from collections.abc import Callable, Mapping

from diptych.models.layers import Fields
from diptych.models.tensors import Tensor, linear, replicated


def vision_fields(fields: Fields) -> Fields | None:
    """The fields of the vision tower, None in a model without one."""
    config = fields.get("vision_config")
    return Fields(config, f"{fields.file}: vision_config") if isinstance(config, Mapping) and config else None


def vision_tensors(fields: Fields) -> list[Tensor]:
    """The tensors of the vision tower and its projector; none in a model without one.

    Raises:
        ModelError: the tower's type is not known here, the model listens as well, or a number is missing.
    """
    if any(isinstance(fields.get(name), Mapping) for name in ("audio_config", "thinker_config")):
        raise fields.unknown_weights("an audio tower")
    tower = vision_fields(fields)
    if tower is None:
        return []
    build = _TOWERS.get(str(tower.get("model_type")))
    if build is None:
        raise fields.unknown_weights(f"a vision tower of type {tower.get('model_type')}")
    return build(tower, fields)


def _norm(name: str, size: int) -> Tensor:
    """A layer norm: weight and bias."""
    return replicated(name, size, 2)


def _layers(count: int, tensors: list[Tensor]) -> list[Tensor]:
    return [tensor for _ in range(count) for tensor in tensors]


def _qwen3(tower: Fields, _: Fields) -> list[Tensor]:
    """Qwen3-VL and Qwen3.5: `Qwen3_VisionTransformer` in qwen3_vl.py."""
    hidden, inner = tower.number("hidden_size"), tower.number("intermediate_size")
    merged = hidden * tower.number("spatial_merge_size") ** 2
    patch = (
        tower.number("in_channels") * tower.number("temporal_patch_size") * tower.number("patch_size") ** 2
    )
    block = [
        *linear("visual.blocks.attn.qkv", 3 * hidden, hidden, bias=True),
        *linear("visual.blocks.attn.proj", hidden, hidden, bias=True),
        *linear("visual.blocks.mlp.linear_fc1", inner, hidden, bias=True),
        *linear("visual.blocks.mlp.linear_fc2", hidden, inner, bias=True),
        _norm("visual.blocks.norm1", hidden),
        _norm("visual.blocks.norm2", hidden),
    ]
    merger = [
        *linear("visual.merger.linear_fc1", merged, merged, bias=True),
        *linear("visual.merger.linear_fc2", tower.number("out_hidden_size"), merged, bias=True),
    ]
    deep = tower.get("deepstack_visual_indexes")
    return [
        replicated("visual.patch_embed.proj", hidden, patch + 1),
        replicated("visual.pos_embed", tower.number("num_position_embeddings"), hidden),
        *_layers(tower.number("depth"), block),
        *merger,
        _norm("visual.merger.norm", hidden),
        *_layers(
            len(deep) if isinstance(deep, list) else 0,
            [*merger, _norm("visual.deepstack_merger_list.norm", merged)],
        ),
    ]


def _gemma4(tower: Fields, fields: Fields) -> list[Tensor]:
    """Gemma 4's tower runs as Transformers builds it, whole on every GPU."""
    hidden, inner = tower.number("hidden_size"), tower.number("intermediate_size")
    size = tower.number("head_dim")
    heads, groups = tower.number("num_attention_heads"), tower.number("num_key_value_heads")
    block = [
        *linear("vision_tower.layers.self_attn.q_proj", heads * size, hidden, shards=1),
        *linear("vision_tower.layers.self_attn.k_proj", groups * size, hidden, shards=1),
        *linear("vision_tower.layers.self_attn.v_proj", groups * size, hidden, shards=1),
        *linear("vision_tower.layers.self_attn.o_proj", hidden, heads * size, shards=1),
        *linear("vision_tower.layers.mlp.gate_proj", inner, hidden, shards=1),
        *linear("vision_tower.layers.mlp.up_proj", inner, hidden, shards=1),
        *linear("vision_tower.layers.mlp.down_proj", hidden, inner, shards=1),
        replicated("vision_tower.layers.qk_norm", size, 2),
        replicated("vision_tower.layers.norms", hidden, 4),
    ]
    patch = 3 * tower.number("patch_size") ** 2
    return [
        replicated("vision_tower.patch_embedder.input_proj", hidden, patch),
        replicated(
            "vision_tower.patch_embedder.position_embedding_table",
            2 * tower.number("position_embedding_size"),
            hidden,
        ),
        *_layers(tower.number("num_hidden_layers"), block),
        *linear("embed_vision.embedding_projection", fields.required("hidden_size"), hidden, shards=1),
    ]


def _siglip(tower: Fields, fields: Fields) -> list[Tensor]:
    """Gemma 3's tower: `SiglipVisionModel` in siglip.py, `Gemma3MultiModalProjector` in gemma3_mm.py."""
    hidden, inner = tower.number("hidden_size"), tower.number("intermediate_size")
    patch = tower.number("patch_size")
    places = (tower.number("image_size") // patch) ** 2
    block = [
        *linear("vision_tower.layers.self_attn.qkv_proj", 3 * hidden, hidden, bias=True),
        *linear("vision_tower.layers.self_attn.out_proj", hidden, hidden, bias=True),
        *linear("vision_tower.layers.mlp.fc1", inner, hidden, bias=True),
        *linear("vision_tower.layers.mlp.fc2", hidden, inner, bias=True),
        _norm("vision_tower.layers.layer_norm1", hidden),
        _norm("vision_tower.layers.layer_norm2", hidden),
    ]
    return [
        replicated("vision_tower.embeddings.patch_embedding", hidden, 3 * patch**2 + 1),
        replicated("vision_tower.embeddings.position_embedding", places, hidden),
        *_layers(tower.number("num_hidden_layers"), block),
        _norm("vision_tower.post_layernorm", hidden),
        replicated("multi_modal_projector.mm_input_projection", hidden, fields.required("hidden_size")),
        replicated("multi_modal_projector.mm_soft_emb_norm", hidden),
    ]


def _llama4(tower: Fields, fields: Fields) -> list[Tensor]:
    """Llama 4's tower: `Llama4VisionModel` in mllama4.py."""
    hidden, inner = tower.number("hidden_size"), tower.number("intermediate_size")
    patch = tower.number("patch_size")
    places = (tower.number("image_size") // patch) ** 2 + 1
    out, joined = tower.number("projector_output_dim"), tower.number("projector_input_dim")
    block = [
        *linear("vision_model.layers.self_attn.qkv_proj", 3 * hidden, hidden, bias=True),
        *linear("vision_model.layers.self_attn.o_proj", hidden, hidden, bias=True),
        *linear("vision_model.layers.mlp.fc1", inner, hidden, bias=True),
        *linear("vision_model.layers.mlp.fc2", hidden, inner, bias=True),
        _norm("vision_model.layers.input_layernorm", hidden),
        _norm("vision_model.layers.post_attention_layernorm", hidden),
    ]
    return [
        replicated("vision_model.patch_embedding.linear", hidden, 3 * patch**2),
        replicated("vision_model.positional_embedding_vlm", places + 1, hidden),
        _norm("vision_model.layernorm_pre", hidden),
        _norm("vision_model.layernorm_post", hidden),
        *_layers(tower.number("num_hidden_layers"), block),
        *linear("vision_model.vision_adapter.mlp.fc1", joined, inner),
        *linear("vision_model.vision_adapter.mlp.fc2", out, joined),
        *linear(
            "multi_modal_projector.linear_1",
            fields.required("hidden_size"),
            tower.number("vision_output_dim"),
        ),
    ]


_TOWERS: dict[str, Callable[[Fields, Fields], list[Tensor]]] = {
    "gemma4_vision": _gemma4,
    "llama4_vision_model": _llama4,
    "qwen3_5": _qwen3,
    "qwen3_5_moe": _qwen3,
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3,
    "siglip_vision_model": _siglip,
}


def described_without_tower(fields: Fields) -> bool:
    """Whether the architecture sees but the config, cut down, describes no tower."""
    names = fields.get("architectures")
    sees = isinstance(names, list) and any("ForConditionalGeneration" in str(name) for name in names)
    return sees and vision_fields(fields) is None
