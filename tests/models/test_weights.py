from typing import Any

import pytest

from diptych.errors import ModelError
from diptych.models import ModelShape, WeightEstimate, estimate_weights, shipped_config
from diptych.models.weights import stage_layers
from models.families import FAMILIES


def shipped(name: str, **changes: Any) -> dict[str, Any]:
    config = shipped_config(name)
    assert config is not None
    return config | changes


def estimate(name: str, **options: Any) -> WeightEstimate:
    return estimate_weights(shipped(name), name, **options)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        # Sizes of the checkpoints on the hub: total_size of model.safetensors.index.json, or what `facts` hold.
        ("HuggingFaceTB/SmolLM2-135M", 0.269),
        ("Qwen/Qwen3-4B", 8.045),
        ("Qwen/Qwen3-8B", 16.381),
        ("Qwen/Qwen3-14B", 29.537),
        ("Qwen/Qwen3-32B", 65.524),
        ("Qwen/Qwen3-30B-A3B", 61.064),
        ("Qwen/Qwen3-235B-A22B", 470.187),
        ("Qwen/Qwen3.5-9B", 19.306216416),
        ("Qwen/Qwen3.5-27B", 55.562855904),
        ("deepseek-ai/DeepSeek-V3", 688.587),
        ("google/gemma-3-12b-it", 24.375),
        ("google/gemma-3-27b-it", 54.865),
        ("meta-llama/Llama-3.1-8B", 16.061),
        ("meta-llama/Llama-3.3-70B-Instruct", 141.107),
        ("mistralai/Mixtral-8x7B-v0.1", 93.406),
        ("moonshotai/Kimi-K2-Instruct", 1029.173),
        ("openai/gpt-oss-120b", 65.249),
        ("openai/gpt-oss-20b", 13.761),
    ],
)
def test_a_checkpoint_is_as_large_as_on_the_hub(name: str, gigabytes: float) -> None:
    assert estimate(name).checkpoint_bytes == pytest.approx(gigabytes * 1e9, rel=0.001)


def test_draft_layers_lie_on_the_disk_and_are_not_loaded() -> None:
    both = estimate("deepseek-ai/DeepSeek-V3")
    assert both.parameters == pytest.approx(671.03e9, rel=1e-4)
    assert both.checkpoint_bytes - both.loaded_bytes > 13e9
    without = estimate_weights(shipped("deepseek-ai/DeepSeek-V3", num_nextn_predict_layers=0))
    assert without.loaded_bytes == both.loaded_bytes
    assert without.checkpoint_bytes < without.loaded_bytes  # vLLM keeps a second, plain kv_b_proj


def test_a_vision_tower_is_counted_and_can_be_left_out() -> None:
    whole, text = estimate("Qwen/Qwen3.5-9B"), estimate("Qwen/Qwen3.5-9B", vision=False)
    assert whole.vision_bytes == pytest.approx(0.456e9 * 2, rel=0.001)
    assert text.loaded_bytes == whole.loaded_bytes - whole.vision_bytes
    assert text.vision_bytes == 0


def test_shared_embeddings_count_once() -> None:
    apart = estimate_weights(shipped("Qwen/Qwen3-4B", tie_word_embeddings=False))
    assert apart.loaded_bytes - estimate("Qwen/Qwen3-4B").loaded_bytes == 151936 * 2560 * 2


def test_draft_layers_of_an_unknown_shape_are_left_out_and_said() -> None:
    drafting = estimate_weights(shipped("Qwen/Qwen3-8B", num_nextn_predict_layers=1))
    assert drafting.checkpoint_bytes == estimate("Qwen/Qwen3-8B").checkpoint_bytes
    assert "draft layers" in drafting.notes[0]


def test_another_dtype_changes_what_is_loaded_and_not_what_is_stored() -> None:
    wide = estimate("Qwen/Qwen3-0.6B", dtype="float32")
    assert wide.loaded_bytes == 2 * wide.checkpoint_bytes
    assert estimate("Qwen/Qwen3-0.6B", dtype="auto").loaded_bytes == wide.checkpoint_bytes
    with pytest.raises(ModelError, match="weights of dtype int3"):
        estimate("Qwen/Qwen3-0.6B", dtype="int3")


@pytest.mark.parametrize(
    ("name", "tensor_parallel", "fraction"),
    [("Qwen/Qwen3-8B", 2, 1 / 2), ("Qwen/Qwen3-235B-A22B", 8, 1 / 8), ("deepseek-ai/DeepSeek-V3", 8, 1 / 8)],
)
def test_tensor_parallelism_divides_nearly_all(name: str, tensor_parallel: int, fraction: float) -> None:
    shared = estimate(name, tensor_parallel=tensor_parallel)
    assert fraction < shared.gpu_bytes / shared.loaded_bytes < fraction * 1.03


def test_kv_heads_that_are_too_few_are_repeated() -> None:
    config = shipped("Qwen/Qwen3-235B-A22B")
    eight, four = (estimate_weights(config, tensor_parallel=gpus) for gpus in (8, 4))
    repeated = 94 * 2 * 128 * 4096 * 2  # each GPU still holds one head of K and V, in every layer
    assert four.gpu_bytes - 2 * eight.gpu_bytes < -repeated * 0.9


def test_pipeline_stages_share_the_layers_as_vllm_deals_them_out() -> None:
    assert stage_layers(61, 4) == [15, 15, 16, 15]
    assert sum(stage_layers(94, 8)) == 94
    one, two = estimate("Qwen/Qwen3-32B"), estimate("Qwen/Qwen3-32B", pipeline_parallel=2)
    assert one.gpu_bytes == one.loaded_bytes
    assert two.gpu_bytes == pytest.approx(one.gpu_bytes / 2, rel=0.01)


def test_a_tied_embedding_is_on_the_first_and_the_last_stage() -> None:
    one, two = estimate("Qwen/Qwen3-4B"), estimate("Qwen/Qwen3-4B", pipeline_parallel=2)
    assert two.gpu_bytes == pytest.approx((one.loaded_bytes + 151936 * 2560 * 2) / 2, rel=0.001)


def test_parameters_are_the_number_in_the_name() -> None:
    assert estimate("Qwen/Qwen3-0.6B").parameters == 596_049_920
    assert estimate("meta-llama/Llama-3.1-8B").parameters == 8_030_261_248
    assert estimate("openai/gpt-oss-120b").parameters == pytest.approx(116.8e9, rel=0.001)


def test_what_is_less_exact_is_said() -> None:
    assert estimate("Qwen/Qwen3-8B").notes == ()
    assert "no dtype: bfloat16 is assumed" in estimate("openai/gpt-oss-20b").notes[0]
    assert "pads MXFP4" in estimate("openai/gpt-oss-20b").notes[1]
    assert "draft layers" in estimate("XiaomiMiMo/MiMo-V2-Flash").notes[0]
    blind = shipped("meta-llama/Llama-4-Scout-17B-16E-Instruct", vision_config=None)
    assert "describes no vision tower" in estimate_weights(blind).notes[0]
    assert estimate_weights(blind, vision=False).notes == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mamba"}, "the weights of a model of type mamba"),
        ({"vision_config": {"model_type": "pixtral"}}, "a vision tower of type pixtral"),
        ({"audio_config": {"model_type": "whisper"}}, "an audio tower"),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers in a model of type qwen3"),
        ({"torch_dtype": "float8_e4m3fn"}, "weights of dtype float8_e4m3fn"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": [1]}, "experts in 1 layers of more"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantisation by bitsandbytes"),
    ],
)
def test_weights_that_are_not_known_are_an_error_and_no_guess(changes: dict[str, Any], words: str) -> None:
    config = shipped("Qwen/Qwen3-8B", **changes)
    with pytest.raises(ModelError, match="can't size that") as caught:
        estimate_weights(config)
    assert words in caught.value.message
    assert "weight files" in caught.value.hint


def test_a_number_that_is_missing_is_named_with_its_field() -> None:
    with pytest.raises(ModelError, match=r"Qwen/Qwen3-8B: it lacks intermediate_size"):
        estimate_weights(shipped("Qwen/Qwen3-8B", intermediate_size=None), "Qwen/Qwen3-8B")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_shape_and_its_config_say_the_same(name: str) -> None:
    assert ModelShape.from_config(FAMILIES[name]).weights() == estimate_weights(FAMILIES[name])
