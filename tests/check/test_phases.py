"""Prefill and decode against each other: what fits passes, what doesn't is told, by version of the engine."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from diptych.catalog.arguments import VERSIONS, engine_arguments
from diptych.catalog.engines import PAIRS
from diptych.check import Finding, ModelFacts
from diptych.check.compatibility import EQUAL, LIMITS, limits

Codes = Callable[..., set[str]]
Check = Callable[..., list[Finding]]

EKS = "on: eks\nmodel: Qwen/Qwen3-8B\nnodes: {instance_type: g6.48xlarge}\n"
NEW_IMAGE = "image: {name: registry.example.com/llm:1.0, ray_version: 2.60.0, vllm_version: 0.29.0}\n"


def phases(argument: str, prefill: object, decode: object) -> str:
    """A document whose phases have an argument each; "-" gives a phase none."""
    given = {"prefill": prefill, "decode": decode}
    lines = [f"{p}: {{engine_kwargs: {{{argument}: {v}}}}}\n" for p, v in given.items() if v != "-"]
    return EKS + "".join(lines)


@pytest.mark.parametrize(
    ("argument", "prefill", "decode", "code"),
    [
        ("max_model_len", 4096, 4096, None),
        ("max_model_len", 8192, "-", None),  # the default is 8192
        ("max_model_len", "-", 4096, "P201"),
        ("dtype", "bfloat16", "-", None),  # the model's own
        ("dtype", "bfloat16", "auto", None),
        ("dtype", "half", "float16", None),
        ("dtype", "float16", "-", "P202"),
        ("block_size", 16, "-", None),  # vLLM's default on GPUs
        ("block_size", 16, 64, None),
        ("block_size", "-", 48, None),
        ("block_size", 32, "-", "P203"),
        ("block_size", 64, 16, "P203"),
        ("block_size", 48, 64, "P203"),
        ("kv_cache_dtype", "auto", "-", None),
        ("kv_cache_dtype", "fp8", "fp8_e4m3", "P204"),
        ("tensor_parallel_size", 4, 8, None),
        ("tensor_parallel_size", 8, 4, None),
        ("tensor_parallel_size", 16, 8, "P205"),  # 8 KV heads
        ("enforce_eager", "true", "false", None),
        ("gpu_memory_utilization", 0.8, 0.9, None),
        ("max_num_seqs", 8, 256, None),
        ("tokenizer_mode", "auto", "-", None),
        ("tokenizer_mode", "slow", "-", "P210"),
        ("tool_call_parser", "-", "hermes", None),
        ("chat_template_content_format", "openai", "-", "P211"),
        ("attention_backend", "-", "FLASHINFER", "P214"),
        ("attention_backend", "-", "FLASH_ATTN", None),  # what vLLM chooses on an L4
        ("attention_backend", "flash_attn", "FLASH_ATTN", None),
        ("tokenizer", "Qwen/Qwen3-8B", "-", None),
        ("tokenizer", "Qwen/Qwen3-4B", "-", "P210"),
        ("kv_offloading_size", "-", 10, "P231"),
        ("kv_offloading_size", "-", "null", None),
        ("load_format", "dummy", "-", "P232"),
        ("load_format", "dummy", "dummy", None),
        ("load_format", "auto", "safetensors", None),
        ("max_lora_rank", 16, "-", None),
        ("max_lora_rank", 32, "-", "P222"),
        ("code_revision", "abc", "abd", "P223"),
        ("decode_context_parallel_size", 2, 4, None),
        ("decode_context_parallel_size", 2, 3, "P224"),
        ("speculative_config", "{method: ngram, num_speculative_tokens: 2}", "-", None),
        ("speculative_config", "{method: eagle3, model: a/b, num_speculative_tokens: 2}", "-", "P209"),
        ("speculative_config", "{model: '[ngram]', num_speculative_tokens: 2}", "-", None),
        ("speculative_config", "{method: medusa, model: a/b, num_speculative_tokens: 2}", "-", None),
        ("speculative_config", "{method: mlp_speculator, model: a/b, num_speculative_tokens: 2}", "-", None),
        ("speculative_config", "{method: mtp}", "{method: qwen3_next_mtp}", None),
        ("speculative_config", "{method: eagle3, model: a/b-eagle3}", "{model: a/b-eagle3}", None),
        ("speculative_config", "{method: mtp}", "{method: eagle3, model: a/b}", "P209"),
    ],
)
def test_two_values_of_an_argument_fit_or_are_told(
    codes: Codes, argument: str, prefill: object, decode: object, code: str | None
) -> None:
    found = {each for each in codes(phases(argument, prefill, decode)) if each.startswith("P2")}
    assert found == ({code} if code else set())


def test_the_hybrid_manager_is_compared_as_the_engines_have_it(codes: Codes) -> None:
    named = phases("disable_hybrid_kv_cache_manager", "-", "%s")
    hybrid = named.replace("Qwen/Qwen3-8B", "Qwen/Qwen3.5-9B")
    assert "P216" not in codes(hybrid % "false")  # Diptych sets it on both sides
    assert "P216" not in codes(named % "false" + NEW_IMAGE)  # and so does vLLM 0.29
    assert "P216" in codes(named % "true" + NEW_IMAGE)
    assert "P216" in codes(named % "true")


def test_a_branch_is_no_revision_to_stage_or_to_fetch(check: Check) -> None:
    text = "on: eks\nmodel: {source: Qwen/Qwen3-8B%s}\n"
    commit = f", revision: {'0123456789abcdef' * 2}01234567"

    def told(text: str, **facts: Any) -> list[Finding]:
        return [each for each in check(text, pinning=True, **facts) if each.code in ("P226", "P230")]

    assert [each.code for each in told(text % "")] == ["P230"]
    assert [each.code for each in told(text % ", revision: main")] == ["P230"]
    assert "0123456789abcdef" in told(text % "")[0].do  # the hub said which commit it is
    assert "page on the hub" in told(text % "", model=ModelFacts(why="nobody asked"))[0].do
    assert told(text % commit) == []
    assert [each.code for each in told(text % "" + "staging: {enabled: false}\n")] == ["P226"]
    assert told("on: eks\nmodel: s3://bucket/folder\n") == []
    assert told("model: Qwen/Qwen3-0.6B\n") == []


def test_offloading_is_for_one_engine_alone(codes: Codes) -> None:
    assert "P231" not in codes(f"topology: aggregated\n{EKS}engine_kwargs: {{kv_offloading_size: 10}}\n")


def test_ranks_of_which_neither_number_divides_the_other_are_told(codes: Codes) -> None:
    assert "P205" in codes(phases("tensor_parallel_size", 4, 6))


def test_only_the_number_of_speculated_tokens_may_differ(codes: Codes) -> None:
    config = "{{engine_kwargs: {{speculative_config: {{method: mtp, num_speculative_tokens: {}}}}}}}"
    assert "P209" not in codes(f"{EKS}prefill: {config.format(1)}\ndecode: {config.format(3)}\n")


def two_values(argument: str) -> tuple[str, str]:
    """Two values that vLLM takes, in YAML."""
    known = next(
        table[argument] for version in VERSIONS if argument in (table := engine_arguments(version) or {})
    )
    if known.choices:
        return json.dumps(known.choices[0]), json.dumps(known.choices[-1])
    by_kind = {
        "bool": ("true", "false"),
        "int": ("1", "2"),
        "str": ("one", "other"),
        "list": ("[one]", "[other]"),
        "json": ("{a: 1}", "{a: 2}"),
        "any": ("one", "other"),
    }
    return by_kind[known.kinds[0]]


def test_every_argument_that_must_be_equal_is_compared(codes: Codes) -> None:
    for each in EQUAL:
        for argument in each.arguments:
            found = codes(phases(argument, *two_values(argument)))
            assert each.code in found, argument


def test_nothing_is_compared_where_one_engine_does_both_phases(codes: Codes) -> None:
    text = "topology: aggregated\n" + phases("max_model_len", 4096, 8192)
    assert not {code for code in codes(text) if code.startswith("P2")}


def test_a_finding_is_at_the_line_of_the_phase_that_departs(check: Check) -> None:
    text = f"{EKS}engine_kwargs:\n  block_size: 16\nprefill:\n  engine_kwargs:\n    block_size: 32\n"
    found = next(each for each in check(text) if each.code == "P203")
    assert (found.field, found.line) == ("prefill.engine_kwargs.block_size", 8)
    assert found.where.endswith("diptych.yaml:8")


def test_a_finding_about_an_override_names_the_override(check: Check) -> None:
    found = next(each for each in check(EKS, ("prefill.engine_kwargs.block_size=32",)) if each.code == "P203")
    assert (found.where, found.line) == ("--set", None)


def test_block_sizes_that_only_some_engines_know_are_told(codes: Codes) -> None:
    mla = (
        "on: eks\nmodel: deepseek-ai/DeepSeek-V3\nnodes: {instance_type: p5en.48xlarge}\n"
        "engine_kwargs: {tensor_parallel_size: 8}\n"
    )
    assert "P203" in codes(f"{mla}decode: {{engine_kwargs: {{block_size: 64}}}}\n")


def test_more_ranks_for_prefill_need_equal_blocks(codes: Codes) -> None:
    text = (
        f"{EKS}prefill: {{engine_kwargs: {{tensor_parallel_size: 8, block_size: 16}}}}\n"
        "decode: {engine_kwargs: {tensor_parallel_size: 4, block_size: 32}}\n"
    )
    assert "P203" in codes(text)


def test_host_memory_needs_equal_blocks(codes: Codes) -> None:
    text = phases("block_size", 16, 64)
    assert "P203" in codes(f"{text}kv_transfer: {{kv_buffer_device: cpu}}\n")


def test_latent_attention_knows_no_limit_of_kv_heads(codes: Codes) -> None:
    text = (
        "on: eks\nmodel: deepseek-ai/DeepSeek-V3\nnodes: {instance_type: p5en.48xlarge}\n"
        "prefill: {engine_kwargs: {tensor_parallel_size: 8}}\ndecode: {engine_kwargs: {tensor_parallel_size: 4}}\n"
    )
    assert "P205" not in codes(text)


def test_an_old_engine_can_not_read_from_more_ranks(codes: Codes) -> None:
    old = "image: {name: registry.example.com/llm:1.0, ray_version: 2.55.0, vllm_version: 0.11.0}\n"
    assert "P205" in codes(phases("tensor_parallel_size", 8, 4) + old)


def test_hybrids_may_differ_less_in_blocks_the_newer_the_engine(codes: Codes) -> None:
    hybrid = phases("block_size", 16, 32).replace("Qwen/Qwen3-8B", "Qwen/Qwen3.5-9B")
    assert {"P203"} == codes(hybrid) & {"P203", "P228"}
    assert {"P228"} == codes(hybrid + NEW_IMAGE) & {"P203", "P228"}


def test_context_parallel_prefill_is_known_since_0_29(codes: Codes) -> None:
    text = phases("prefill_context_parallel_size", 2, "-")
    assert "P224" in codes(text)
    assert "P224" not in codes(text + NEW_IMAGE)


def test_blocks_across_layers_are_a_thing_of_0_26(check: Check) -> None:
    text = f"{EKS}kv_transfer: {{kv_connector_extra_config: {{enable_cross_layers_blocks: true}}}}\n"

    def told(**facts: object) -> str:
        found = [each.what for each in check(text + NEW_IMAGE * bool(facts.pop("new", False)), **facts)]
        return next((what for what in found if "is true" in what), "")

    assert "first model runner" in told()
    assert "any more" in told(new=True)
    assert told(environ={"VLLM_USE_V2_MODEL_RUNNER": "0"}) == ""


def test_a_model_without_bfloat16_on_one_side_is_another_dtype(codes: Codes) -> None:
    text = "on: eks\nmodel: Qwen/Qwen3-0.6B\nprefill: {nodes: {instance_type: g4dn.8xlarge}}\n"
    assert "P202" in codes(text)
    assert "P202" not in codes(text + "engine_kwargs: {dtype: float16}\n")


def test_the_same_generation_of_gpus_chooses_the_same_backend(codes: Codes) -> None:
    text = "on: eks\nmodel: Qwen/Qwen3-8B\nprefill: {nodes: {instance_type: g6e.8xlarge}}\n"
    assert "P215" not in codes(text)


def test_a_text_only_model_may_cache_prefixes_whatever_else_it_could_read(codes: Codes) -> None:
    text = "on: eks\nmodel: Qwen/Qwen3-VL-8B-Instruct\nnodes: {instance_type: g6e.8xlarge}\n"
    assert "P220" in codes(text)
    assert "P220" not in codes(text + "engine_kwargs: {language_model_only: true}\n")
    assert "P220" not in codes(text + "engine_kwargs: {limit_mm_per_prompt: {image: 0, video: 0}}\n")


def test_every_version_finds_its_line_in_the_table() -> None:
    assert [each.since for each in LIMITS] == sorted(each.since for each in LIMITS)
    assert limits("0.11.2") is LIMITS[0]
    assert limits("0.27.1") is limits("0.26.0")
    assert limits("1.0.0") is LIMITS[-1]
    assert limits(None) is LIMITS[-1]
    assert all(limits(pair.vllm).lease for pair in PAIRS)


def test_scales_that_are_computed_while_serving_do_not_travel(codes: Codes) -> None:
    assert "P213" in codes(f"{EKS}engine_kwargs: {{calculate_kv_scales: true}}\n")
    assert "P213" not in codes(f"topology: aggregated\n{EKS}engine_kwargs: {{calculate_kv_scales: true}}\n")


def test_no_hybrid_has_blocks_across_layers(check: Check) -> None:
    text = EKS.replace("Qwen/Qwen3-8B", "Qwen/Qwen3.5-9B")
    extra = "kv_transfer: {kv_connector_extra_config: {enable_cross_layers_blocks: true}}\n"
    told = next(
        each for each in check(text + extra, environ={"VLLM_USE_V2_MODEL_RUNNER": "0"}) if each.code == "P217"
    )
    assert "hybrid" in told.what
