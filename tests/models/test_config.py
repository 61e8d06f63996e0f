import json
from pathlib import Path
from typing import Any

import pytest

from diptych.errors import ModelError
from diptych.models import ModelShape, read_model_shape, weight_bytes

CONFIGS = Path(__file__).parents[3] / "shared" / "model-configs"

SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "head_dim": 64,
    "hidden_size": 576,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "torch_dtype": "bfloat16",
    "vocab_size": 49152,
}


def shape_of(model: str) -> ModelShape:
    file = CONFIGS / f"{model.replace('/', '--')}_config.json"
    if not file.is_file():
        pytest.skip(f"{file} is not here")
    return ModelShape.from_config(json.loads(file.read_text()), file.name)


def shape_with(**changes: Any) -> ModelShape:
    return ModelShape.from_config({**SMOLLM2, **changes})


def test_smollm2_needs_46080_bytes_per_token_in_float32() -> None:
    shape = ModelShape.from_config(SMOLLM2)
    assert (shape.architecture, shape.num_layers, shape.num_attention_layers) == ("LlamaForCausalLM", 30, 30)
    assert (shape.num_kv_heads, shape.head_dim, shape.dtype) == (3, 64, "bfloat16")
    assert shape.kv_bytes_per_token(4) == 46080
    assert shape.kv_bytes_per_token() == 23040


@pytest.mark.parametrize(
    ("model", "layers", "per_token"),
    [
        ("Qwen/Qwen3-0.6B", 28, 112 * 1024),
        ("Qwen/Qwen3-8B", 36, 36 * 8 * 128 * 2 * 2),
        ("Qwen/Qwen3-32B-FP8", 64, 256 * 1024),
        ("Qwen/Qwen3-VL-8B-Instruct", 36, 144 * 1024),
        ("Qwen/Qwen3-235B-A22B", 94, 188 * 1024),
        ("meta-llama/Meta-Llama-3.1-70B", 80, 320 * 1024),
        ("mistralai/Mixtral-8x7B-v0.1", 32, 128 * 1024),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 48, 192 * 1024),
    ],
)
def test_full_attention_counts_every_layer(model: str, layers: int, per_token: int) -> None:
    shape = shape_of(model)
    assert shape.num_layers == shape.num_attention_layers == layers
    assert shape.kv_bytes_per_token() == per_token
    assert shape.sliding_window is None
    assert not shape.is_mla
    assert not shape.has_recurrent_state


@pytest.mark.parametrize(
    ("model", "layers", "indexer"),
    [
        ("deepseek-ai/DeepSeek-V3", 61, 0),
        ("moonshotai/Kimi-K2-Instruct", 61, 0),
        ("deepseek-ai/DeepSeek-V3.2", 61, 132),
        ("zai-org/GLM-5", 78, 132),
    ],
)
def test_latent_attention_counts_one_vector_per_layer_and_the_indexer(
    model: str, layers: int, indexer: int
) -> None:
    shape = shape_of(model)
    assert shape.is_mla
    assert (shape.num_kv_heads, shape.head_dim) == (1, 576)
    assert shape.kv_bytes_per_token() == layers * ((512 + 64) * 2 + indexer)


@pytest.mark.parametrize(
    ("model", "layers", "attention", "per_token"),
    [
        ("Qwen/Qwen3.5-27B", 64, 16, 64 * 1024),
        ("Qwen/Qwen3.5-35B-A3B", 40, 10, 20 * 1024),
        ("Qwen/Qwen3.5-122B-A10B", 48, 12, 24 * 1024),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 52, 6, 6 * 1024),
    ],
)
def test_hybrids_count_their_attention_layers_only(
    model: str, layers: int, attention: int, per_token: int
) -> None:
    shape = shape_of(model)
    assert shape.has_recurrent_state
    assert (shape.num_layers, shape.num_attention_layers) == (layers, attention)
    assert shape.kv_bytes_per_token() == per_token


@pytest.mark.parametrize(
    ("model", "window", "per_token", "full_per_token"),
    [
        ("openai/gpt-oss-20b", 128, 48 * 1024, 24 * 1024),
        ("openai/gpt-oss-120b", 128, 72 * 1024, 36 * 1024),
        ("google/gemma-4-26B-A4B", 1024, 220 * 1024, 5 * 2 * (512 + 512) * 2),
        ("XiaomiMiMo/MiMo-V2-Flash", 128, 222_720, 9 * 4 * (192 + 128) * 2),
    ],
)
def test_sliding_layers_stop_growing_at_their_window(
    model: str, window: int, per_token: int, full_per_token: int
) -> None:
    shape = shape_of(model)
    assert shape.sliding_window == window
    assert shape.kv_bytes_per_token(2) == per_token
    growing = [group for group in shape.kv_groups if group.window is None]
    assert sum(group.bytes_per_token(2) for group in growing) == full_per_token


def test_every_config_at_hand_can_be_sized() -> None:
    if not CONFIGS.is_dir():
        pytest.skip(f"{CONFIGS} is not here")
    for file in CONFIGS.glob("*.json"):
        assert ModelShape.from_config(json.loads(file.read_text()), file.name).kv_bytes_per_token(2) > 0


def test_a_window_that_is_switched_off_is_none() -> None:
    assert shape_with(sliding_window=4096, use_sliding_window=False).sliding_window is None
    assert shape_with(sliding_window=4096).sliding_window == 4096


def test_older_configs_leave_the_full_layers_to_their_model_type() -> None:
    shape = shape_with(sliding_window=4096, model_type="gemma2")
    assert [(group.layers, group.window) for group in shape.kv_groups] == [(15, None), (15, 4096)]
    shape = shape_with(sliding_window=4096, sliding_window_pattern=6)
    assert [(group.layers, group.window) for group in shape.kv_groups] == [(5, None), (25, 4096)]


def test_layers_that_share_the_cache_of_others_count_nothing() -> None:
    assert shape_with(num_kv_shared_layers=10).num_attention_layers == 20


def test_a_linear_layer_between_full_ones_may_be_given_as_an_interval() -> None:
    shape = shape_with(full_attention_interval=5)
    assert (shape.num_attention_layers, shape.has_recurrent_state) == (6, True)


def test_heads_and_their_size_follow_from_the_rest_where_a_config_is_silent() -> None:
    shape = shape_with(head_dim=None, num_key_value_heads=None)
    assert (shape.num_kv_heads, shape.head_dim) == (9, 64)


def test_a_config_without_dtype_is_sized_only_with_one() -> None:
    shape = shape_with(torch_dtype=None)
    assert shape.dtype is None
    assert shape.kv_bytes_per_token(2) == 23040
    with pytest.raises(ModelError, match="states no dtype"):
        shape.kv_bytes_per_token()


def test_all_that_a_config_lacks_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 2, "hidden_size": 8}))
    with pytest.raises(ModelError) as caught:
        read_model_shape(tmp_path)
    lacking = "architectures, num_attention_heads, vocab_size, max_position_embeddings"
    assert caught.value.message == f"{tmp_path}/config.json: it lacks {lacking}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attn_layer_period": 8}, "attn_layer_period"),
        ({"layer_types": ["full_attention", "novel_attention"]}, "layers of type 'novel_attention'"),
        ({"layer_types": ["full_attention"] * 29}, "30 layers of which 29 are described"),
        ({"kv_lora_rank": 512, "model_type": "minicpm3"}, "latent attention in a model of type minicpm3"),
        ({"linear_attn_config": {"kda_layers": [1]}}, "linear_attn_config"),
        ({"num_key_value_heads": 0}, "KV heads of no size"),
    ],
)
def test_a_layout_that_is_not_known_is_an_error_and_no_guess(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match="can't size that") as caught:
        shape_with(**changes)
    assert words in caught.value.message


@pytest.mark.parametrize("value", ["30", 0, -1, 30.0, True, [30]])
def test_a_number_that_is_none_is_named_with_its_field(value: object) -> None:
    with pytest.raises(ModelError, match="no number above 0, as num_hidden_layers"):
        shape_with(num_hidden_layers=value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no such file"),
        (b"{", "it is not valid JSON"),
        (b"\xff\xfe\xff", "it is not valid JSON"),
        (b"[1]", "it holds no JSON object"),
    ],
)
def test_a_config_that_can_not_be_read_says_why(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_model_shape(tmp_path)
    assert caught.value.message.startswith(f"{tmp_path}/config.json: {words}")


def test_weights_are_the_files_of_the_index_and_no_others(tmp_path: Path) -> None:
    for name, size in {
        "model-1.safetensors": 100,
        "model-2.safetensors": 50,
        "consolidated.safetensors": 150,
    }.items():
        (tmp_path / name).write_bytes(b"x" * size)
    index = {
        "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weight_bytes(tmp_path) == 150


def test_weights_without_an_index_are_the_models_files_and_not_a_second_copy(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    (tmp_path / "consolidated.safetensors").write_bytes(b"x" * 100)
    assert weight_bytes(tmp_path) == 100


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no safetensors file lies here"):
        weight_bytes(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    with pytest.raises(ModelError, match=r"lacks model-1\.safetensors"):
        weight_bytes(tmp_path)


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 8192),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 8192),
        ({"rope_scaling": {"type": "linear", "factor": 2.5}}, 20480),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, 32768),
        ({"rope_scaling": {"rope_type": "linear", "factor": None}}, 8192),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
            131072,
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 32768),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 8192),
        (
            {"rope_scaling": {"type": "longrope", "factor": 32.0}, "original_max_position_embeddings": 4096},
            8192,
        ),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "model_type": "gemma3_text"}, 8192),
        ({"model_max_length": 131072}, 131072),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 2.0},
                    "sliding_attention": {"rope_type": "default"},
                }
            },
            16384,
        ),
    ],
)
def test_rope_scaling_lengthens_the_context(changes: dict[str, Any], tokens: int) -> None:
    assert shape_with(**changes).context_length == tokens
