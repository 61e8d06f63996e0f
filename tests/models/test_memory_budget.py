"""What fits, beside what vLLM logged when others started the same model on the same GPU."""

from typing import Any

import pytest

from diptych.errors import ModelError
from diptych.models import (
    Budget,
    ModelShape,
    image_tokens_of,
    kv_transfer_bytes,
    memory_budget,
    shipped_config,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
L4, L40S, A100 = int(22.03 * GIB), int(44.39 * GIB), int(79.25 * GIB)


def shape_of(name: str) -> ModelShape:
    config = shipped_config(name)
    assert config is not None
    return ModelShape.from_config(config, name)


def budget(name: str, **options: Any) -> Budget:
    return memory_budget(shape_of(name), **{"utilization": 0.9, "max_model_len": 4096} | options)


class TestQwen35OnOneL4:
    def test_a_sequence_keeps_its_tokens_and_a_state(self) -> None:
        shape = shape_of("Qwen/Qwen3.5-9B")
        assert shape.kv_bytes_per_token() * 4096 == 128 * MIB
        assert shape.state_bytes() == pytest.approx(49 * MIB, rel=0.05)
        assert kv_transfer_bytes(shape, 4096) == pytest.approx((128 + 49) * MIB, rel=0.05)

    def test_its_blocks_hold_528_tokens_in_eight_layers(self) -> None:
        layout = shape_of("Qwen/Qwen3.5-9B").cache_layout()
        assert [group.block_size for group in layout.groups] == [528, 0, 0, 0]
        assert layout.block_bytes() == 16.5 * MIB
        assert layout.blocks_per_sequence(4096, in_flight=0) == 11

    @pytest.mark.parametrize("max_num_seqs", [16, 256])
    def test_between_five_and_ten_sequences_fit(self, max_num_seqs: int) -> None:
        found = budget("Qwen/Qwen3.5-9B", gpu_bytes=L4, eager=True, max_num_seqs=max_num_seqs)
        assert found.weights == pytest.approx(17.5 * GIB, rel=0.01)
        assert 0.5 * GIB <= found.activations + found.outside_torch <= 1.3 * GIB
        assert 5 <= found.sequences <= 10
        assert found.fits

    def test_without_the_vision_tower_it_is_ten_and_more(self) -> None:
        found = budget("Qwen/Qwen3.5-9B", gpu_bytes=L4, eager=True, max_num_seqs=16, vision=False)
        assert 10 <= found.sequences <= 15
        assert found.notes == ()

    def test_the_largest_image_leaves_no_room_for_4096_tokens(self) -> None:
        largest = image_tokens_of(shape_of("Qwen/Qwen3.5-9B"))
        found = budget("Qwen/Qwen3.5-9B", gpu_bytes=L4, eager=True, image_tokens=largest)
        assert not found.fits
        assert 0 < found.missing < 0.5 * GIB
        assert budget(
            "Qwen/Qwen3.5-9B", gpu_bytes=L4, eager=True, image_tokens=largest, max_model_len=1024
        ).fits

    def test_that_images_are_left_out_is_said(self) -> None:
        assert "takes up to 1.9 GiB" in budget("Qwen/Qwen3.5-9B", gpu_bytes=L4).notes[0]
        assert budget("Qwen/Qwen3-8B", gpu_bytes=L4).notes == ()


class TestWhatVllmLogged:
    def test_qwen35_9b_on_an_l40s(self) -> None:
        # vLLM 0.19, LLM(model="Qwen/Qwen3.5-9B"): "Model loading took 17.66 GiB memory", "Setting attention
        # block size to 528 tokens", "Padding mamba page size by 0.76%", "Available KV cache memory: 20.27 GiB",
        # "Maximum concurrency for 262,144 tokens per request: 2.52x"; graphs were not counted yet.
        found = budget(
            "Qwen/Qwen3.5-9B",
            gpu_bytes=L40S,
            max_model_len=262144,
            max_num_batched_tokens=8192,
            image_tokens=16384,
            eager=True,
        )
        assert found.weights == pytest.approx(17.66 * GIB, rel=0.01)
        assert found.kv_cache == pytest.approx(20.27 * GIB, rel=0.02)
        assert found.sequences == pytest.approx(2.52, rel=0.02)

    def test_llama_31_8b_on_an_a100(self) -> None:
        # vLLM 0.31, utilization 0.92: "Model loading took 15.0 GiB", "Available KV cache memory: 56.21 GiB",
        # "GPU KV cache size: 460,496 tokens, Maximum concurrency for 131,072 tokens per request: 3.51x".
        found = budget("meta-llama/Llama-3.1-8B", gpu_bytes=A100, utilization=0.92, max_model_len=131072)
        assert found.weights == pytest.approx(15.0 * GIB, rel=0.01)
        assert found.kv_cache == pytest.approx(56.21 * GIB, rel=0.02)
        assert found.tokens == pytest.approx(460_496, rel=0.02)
        assert found.sequences == pytest.approx(3.51, rel=0.02)

    def test_a_27b_hybrid_with_fp8_kv_cache_and_prefix_caching(self) -> None:
        # vLLM: "Setting attention block size to 1568 tokens", "Padding mamba page size by 0.13%", 6.67 GiB,
        # "Maximum concurrency for 32,768 tokens per request: 5.15x".
        layout = shape_of("Qwen/Qwen3.5-27B").cache_layout(kv_dtype_bytes=1)
        state = next(group for group in layout.groups if group.is_recurrent)
        assert layout.groups[0].block_size == 1568
        assert state.page_bytes / state.used_bytes == pytest.approx(1.0013, abs=0.0001)
        blocks = int(6.67 * GIB) // layout.block_bytes()
        assert blocks / layout.blocks_per_sequence(32768, 0, states=2) == pytest.approx(5.15, abs=0.01)


def test_a_model_that_is_too_large_leaves_less_than_nothing() -> None:
    found = budget("Qwen/Qwen3-14B", gpu_bytes=L4)
    assert found.kv_cache < 0
    assert (found.blocks, found.sequences, found.tokens, found.fits) == (0, 0, 0, False)
    assert found.missing == (found.blocks_per_sequence + 1) * found.block_bytes - found.kv_cache


def test_two_gpus_hold_half_of_everything_each() -> None:
    one = budget("Qwen/Qwen3-8B", gpu_bytes=L4)
    two = budget("Qwen/Qwen3-8B", gpu_bytes=L4, tensor_parallel=2)
    assert two.block_bytes == one.block_bytes / 2
    assert two.weights == pytest.approx(one.weights / 2, rel=0.01)
    assert two.sequences > 2 * one.sequences


def test_more_gpus_than_kv_heads_repeat_them_and_latent_attention_repeats_always() -> None:
    qwen, deepseek = shape_of("Qwen/Qwen3-235B-A22B"), shape_of("deepseek-ai/DeepSeek-V3")
    assert qwen.cache_layout(tensor_parallel=8).block_bytes() == qwen.cache_layout().block_bytes() / 4
    assert deepseek.cache_layout(tensor_parallel=8) == deepseek.cache_layout()


def test_pipeline_stages_keep_their_own_layers() -> None:
    found = budget("meta-llama/Llama-3.1-8B", gpu_bytes=L4, pipeline_parallel=2)
    assert found.block_bytes == budget("meta-llama/Llama-3.1-8B", gpu_bytes=L4).block_bytes / 2


def test_each_setting_moves_what_it_should() -> None:
    base = budget("Qwen/Qwen3-8B", gpu_bytes=L40S)
    assert budget("Qwen/Qwen3-8B", gpu_bytes=L40S, eager=True).cuda_graphs == 0 < base.cuda_graphs
    assert budget("Qwen/Qwen3-8B", gpu_bytes=L40S, kv_dtype_bytes=1).block_bytes == base.block_bytes / 2
    assert budget("Qwen/Qwen3-8B", gpu_bytes=L40S, max_num_seqs=16).activations < base.activations
    assert budget("Qwen/Qwen3-8B", gpu_bytes=L40S, max_num_batched_tokens=8192).activations > base.activations
    assert budget("Qwen/Qwen3-8B", gpu_bytes=L40S, weights=5 * GIB).weights == 5 * GIB
    assert budget("Qwen/Qwen3-8B", gpu_bytes=L40S, dtype="float32").weights == 2 * base.weights
    cached = budget("Qwen/Qwen3.5-9B", gpu_bytes=L40S, prefix_caching=True)
    assert cached.blocks_per_sequence == 14


def test_a_window_holds_what_is_in_flight_and_no_more() -> None:
    layout = shape_of("openai/gpt-oss-20b").cache_layout(dtype_bytes=2)
    assert [(len(group.layers), group.window) for group in layout.groups] == [(12, None), (12, 128)]
    assert layout.blocks_per_sequence(65536, in_flight=4096) == 4096 + 265
    assert layout.blocks_per_sequence(1024, in_flight=4096) == 64 + 65


def test_uneven_pages_are_made_equal() -> None:
    layout = shape_of("google/gemma-4-26B-A4B").cache_layout()
    assert {group.page_bytes for group in layout.groups} == {16 * 8 * (256 + 256) * 2}
    assert [group.block_size for group in layout.groups] == [32, 16, 16, 16, 16, 16]


def test_a_kv_transfer_sends_whole_blocks_and_of_a_window_what_it_touches() -> None:
    assert kv_transfer_bytes(shape_of("Qwen/Qwen3-8B"), 1000) == 1008 * 144 * KIB
    assert kv_transfer_bytes(shape_of("Qwen/Qwen3-8B"), 1000, kv_dtype_bytes=1) == 1008 * 72 * KIB
    assert kv_transfer_bytes(shape_of("openai/gpt-oss-20b"), 8192) == (8192 + 144) * 24 * KIB
    assert kv_transfer_bytes(shape_of("deepseek-ai/DeepSeek-V3"), 16) == 16 * 61 * 576 * 2


def test_images_are_known_by_the_tower() -> None:
    assert image_tokens_of(shape_of("Qwen/Qwen3-8B")) == 0
    assert image_tokens_of(shape_of("Qwen/Qwen3-VL-8B-Instruct")) == 16384
    assert image_tokens_of(shape_of("google/gemma-3-12b-it")) == 256
    assert image_tokens_of(shape_of("meta-llama/Llama-4-Scout-17B-16E-Instruct")) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"torch_dtype": "float8_e4m3fn"}, "the dtype float8_e4m3fn"),
        (
            {"layer_types": ["conv"] * 18 + ["full_attention"] * 18},
            "recurrent layers in a model of type qwen3",
        ),
    ],
)
def test_a_cache_that_is_not_known_is_an_error_and_no_guess(changes: dict[str, Any], words: str) -> None:
    config = (shipped_config("Qwen/Qwen3-8B") or {}) | changes
    with pytest.raises(ModelError, match="can't size that") as caught:
        memory_budget(
            ModelShape.from_config(config), gpu_bytes=L4, utilization=0.9, max_model_len=4096, weights=1
        )
    assert words in caught.value.message
