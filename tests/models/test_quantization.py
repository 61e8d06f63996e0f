import json
from pathlib import Path
from typing import Any

import pytest

from diptych.errors import ModelError
from diptych.models import ModelShape, estimate_weights, read_config, shipped_config
from models.families import FAMILIES


def stored(name: str, quantization: dict[str, Any]) -> float:
    """Gigabytes of the model's checkpoint in that format."""
    config = FAMILIES.get(name) or shipped_config(name) or {}
    return estimate_weights(config | {"quantization_config": quantization}).checkpoint_bytes / 1e9


def compressed(**weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


@pytest.mark.parametrize(
    ("name", "quantization", "gigabytes"),
    [
        # As the publishers' checkpoints are: Qwen's AWQ and GPTQ, Red Hat's and NVIDIA's FP8, NVIDIA's NVFP4.
        ("Qwen2.5-7B", {"quant_method": "awq", "bits": 4, "group_size": 128}, 5.57),
        ("Qwen2.5-7B", {"quant_method": "gptq", "bits": 4, "group_size": 128}, 5.57),
        ("meta-llama/Llama-3.1-8B", compressed(num_bits=8, type="float", strategy="channel"), 9.08),
        (
            "meta-llama/Llama-3.1-8B",
            compressed(num_bits=4, type="int", strategy="group", group_size=128),
            5.70,
        ),
        (
            "meta-llama/Llama-3.1-8B",
            compressed(num_bits=4, type="float", strategy="tensor_group", group_size=16),
            6.03,
        ),
        (
            "meta-llama/Llama-3.1-8B",
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]},
            6.03,
        ),
        ("meta-llama/Llama-3.1-8B", {"quant_method": "fp8"}, 9.08),
    ],
)
def test_a_format_takes_the_space_that_publishers_need(
    name: str, quantization: dict[str, Any], gigabytes: float
) -> None:
    assert stored(name, quantization) == pytest.approx(gigabytes, rel=0.01)


def test_blocks_of_fp8_have_a_scale_each() -> None:
    plain = stored("Qwen/Qwen3-32B", {"quant_method": "fp8"})
    blocks = stored("Qwen/Qwen3-32B", {"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert blocks - plain == pytest.approx(4 * 31.2 / 128**2, rel=0.01)


@pytest.mark.parametrize(
    "ignored",
    [
        "model.layers.*.self_attn*",
        "model.layers.*.self_attn",
        "re:.*self_attn.*",
        "re:model\\.layers\\.\\d+\\.self_attn",
        "self_attn",
    ],
)
def test_modules_are_left_alone_however_a_config_names_them(ignored: str) -> None:
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    attention = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096) / 1e9
    more = stored("Mistral-7B", awq | {"modules_to_not_convert": [ignored]}) - stored("Mistral-7B", awq)
    assert more == pytest.approx(attention * (2 - 0.5 - 2.5 / 128), rel=0.001)


def test_a_group_covers_its_targets_only() -> None:
    quantization = compressed(num_bits=8, type="float", strategy="tensor")
    quantization["config_groups"]["group_0"]["targets"] = ["re:.*mlp\\..*"]
    mlp = 32 * 3 * 4096 * 14336 / 1e9
    assert 16.061 - stored("meta-llama/Llama-3.1-8B", quantization) == pytest.approx(mlp, rel=0.001)


def test_modelopt_describes_it_in_a_file_beside_the_config(tmp_path: Path) -> None:
    config = shipped_config("meta-llama/Llama-3.1-8B") or {}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert estimate_weights(read_config(tmp_path / "config.json")).schemes == ()
    described = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(described))
    assert estimate_weights(read_config(tmp_path / "config.json")).schemes == ("NVFP4",)


@pytest.mark.parametrize(
    "asked", [{"kv_cache_quant_algo": "FP8"}, {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}]
)
def test_a_checkpoint_may_ask_for_a_quantised_kv_cache(asked: dict[str, Any]) -> None:
    modelopt = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    config = (shipped_config("Qwen/Qwen3-8B") or {}) | {"quantization_config": modelopt | asked}
    shape = ModelShape.from_config(config)
    assert shape.cache_layout().block_bytes() * 2 == shape.cache_layout(kv_dtype_bytes=2).block_bytes()
    nvfp4 = config | {"quantization_config": modelopt | {"kv_cache_quant_algo": "NVFP4"}}
    with pytest.raises(ModelError, match="a KV cache that is quantised as NVFP4"):
        ModelShape.from_config(nvfp4).cache_layout()


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({"quant_method": "gguf"}, "quantisation by gguf"),
        ({"bits": 4}, "quantisation by an unnamed method"),
        ({"quant_method": "awq"}, "awq without bits and group_size"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantisation MIXED_PRECISION"),
        (compressed(type="float"), "compressed-tensors without num_bits"),
        (compressed(num_bits=4, strategy="token"), "one scale per token"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {}}}, "that quantise no weights"),
        ({"quant_method": "compressed-tensors"}, "quantisation by compressed-tensors"),
        ({"quant_method": "fp8", "ignored_layers": ["re:*"]}, "the pattern 're:*', which can't be read"),
        ("fp8", "a quantization_config that is no object"),
    ],
)
def test_a_format_that_is_not_known_is_an_error_and_no_guess(quantization: Any, words: str) -> None:
    with pytest.raises(ModelError, match="can't size that") as caught:
        stored("meta-llama/Llama-3.1-8B", quantization)
    assert words in caught.value.message
