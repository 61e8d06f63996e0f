"""Arguments of vLLM against the tables of its versions."""

from collections.abc import Callable

import pytest

from diptych.check import Finding

Check = Callable[..., list[Finding]]
Codes = Callable[..., set[str]]

NEW_IMAGE = "image: {name: registry.example.com/llm:1.0, ray_version: 2.60.0, vllm_version: 0.29.0}\n"
EKS = "on: eks\nmodel: Qwen/Qwen3-0.6B\n"


def told(check: Check, code: str, text: str) -> Finding:
    found = [each for each in check(text) if each.code == code]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("argument", "do"),
    [
        ("max_modellen: 4096", "did you mean max_model_len?"),
        ("swap_space: 4", "remove it: vLLM has it no longer"),
        ("num_scheduler_steps: 8", "remove it: vLLM has it no longer"),
        ("guided_decoding_backend: xgrammar", "set structured_outputs_config"),
        ("nobody_ever_had_this: 1", "look it up"),
        ("dcp_q_replicate: true", "vLLM has it from 0.29 on"),
    ],
)
def test_an_unknown_argument_gets_the_nearest_name_or_the_version_that_has_it(
    check: Check, argument: str, do: str
) -> None:
    assert do in told(check, "E601", f"{EKS}engine_kwargs: {{{argument}}}\n").do


def test_an_argument_that_was_taken_away_is_told_as_such(check: Check) -> None:
    found = told(check, "E601", f"{EKS}{NEW_IMAGE}engine_kwargs: {{calculate_kv_scales: false}}\n")
    assert found.do == "remove it: vLLM 0.29 took it away"


@pytest.mark.parametrize(
    ("argument", "what", "do"),
    [
        ('max_num_seqs: "64"', "is '64', and must be a whole number", "without quotes"),
        ('enforce_eager: "yes"', "is 'yes', and must be true or false", "write true"),
        ("enforce_eager: 1", "is 1, and must be true or false", "correct it"),
        ("dtype: bfloat_16", "'bfloat16'", "did you mean bfloat16?"),
        ("speculative_config: eagle", "must be a mapping", "correct it"),
        ("tensor_parallel_size: 1.5", "must be a whole number", "correct it"),
        ("max_lora_rank: 7", "must be 1, 8,", "correct it"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_with_what_it_must_be(
    check: Check, argument: str, what: str, do: str
) -> None:
    found = told(check, "E602", f"{EKS}engine_kwargs: {{{argument}}}\n")
    assert what in found.what
    assert do in found.do


@pytest.mark.parametrize(
    "argument",
    ["max_model_len: null", "gpu_memory_utilization: 1", "quantization: null", "limit_mm_per_prompt: {}"],
)
def test_a_value_that_vllm_takes_passes(codes: Codes, argument: str) -> None:
    assert "E602" not in codes(f"{EKS}engine_kwargs: {{{argument}}}\n")


def test_a_shared_argument_is_told_once_and_not_where_both_phases_replace_it(check: Check) -> None:
    shared = "engine_kwargs: {max_num_seqs: many}\n"
    assert told(check, "E602", EKS + shared).field == "engine_kwargs.max_num_seqs"
    own = "prefill: {engine_kwargs: {max_num_seqs: 8}}\ndecode: {engine_kwargs: {max_num_seqs: 8}}\n"
    assert "E602" not in {each.code for each in check(EKS + shared + own)}


def test_arguments_of_a_phase_that_has_no_engine_are_not_checked(codes: Codes) -> None:
    text = f"topology: aggregated\n{EKS}prefill: {{engine_kwargs: {{nonsense: 1}}}}\n"
    assert "E601" not in codes(text)


def test_an_engine_without_a_table_is_checked_against_the_newest(codes: Codes) -> None:
    image = "image: {name: registry.example.com/llm:1.0, ray_version: 2.61.0, vllm_version: 0.31.0}\n"
    assert codes(f"{EKS}{image}engine_kwargs: {{nonsense: 1}}\n") >= {"E601", "E603"}


def test_steps(codes: Codes) -> None:
    def step(kwargs: str) -> bool:
        return "E605" in codes(f"{EKS}engine_kwargs: {{{kwargs}}}\n")

    assert not step("max_num_batched_tokens: 512")
    assert step("max_num_batched_tokens: 512, enable_chunked_prefill: false, max_model_len: 4096")
    assert not step("max_num_batched_tokens: 4096, enable_chunked_prefill: false, max_model_len: 4096")


def test_a_download_folder_matters_where_nothing_is_staged(codes: Codes) -> None:
    assert "E604" in codes(f"{EKS}engine_kwargs: {{download_dir: /x}}\n")
    assert "E604" not in codes("engine_kwargs: {download_dir: /x}\n")
