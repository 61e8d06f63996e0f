"""Settings of vLLM that need another one; and what it refuses in itself, which is told once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from diptych.check import Finding, check_file

Check = Callable[..., list[Finding]]
Codes = Callable[..., set[str]]

EKS = "on: eks\nmodel: Qwen/Qwen3-0.6B\n"
GROUP = {"E611", "E612", "E613", "E614", "E615"}


@pytest.mark.parametrize(
    ("kwargs", "found"),
    [
        ("enable_auto_tool_choice: true", {"E611"}),
        ("enable_auto_tool_choice: true, tool_call_parser: hermes", set()),
        ("enable_auto_tool_choice: false", set()),
        ("limit_mm_per_prompt: {images: 1}", {"E612"}),
        ("limit_mm_per_prompt: {image: 1, video: {count: 0}, audio: 0}", set()),
        ("speculative_config: {method: ngarm, num_speculative_tokens: 3}", {"E613"}),
        ("speculative_config: {method: ngram, num_speculative_tokens: 3}", set()),
        ("speculative_config: {method: qwen3_next_mtp, num_speculative_tokens: 1}", set()),
        ("speculative_config: {method: mtp}", set()),  # the model's config may say how many
        ("speculative_config: {method: ngram}", {"E614"}),
        ("speculative_config: {model: ngram}", {"E614"}),
        ("speculative_config: {method: eagle, num_speculative_tokens: 3}", {"E614"}),
        ("speculative_config: {method: eagle3, model: a/b, num_speculative_tokens: 3}", set()),
        ("speculative_config: {model: a/b-eagle3}", set()),
        ("speculative_config: {method: suffix}", set()),
        ("speculative_config: {}", set()),
        ("spec_method: ngarm, spec_tokens: 3", {"E613"}),
        ("spec_method: ngram, spec_tokens: 3", set()),
        ("pipeline_parallel_size: 28", set()),
        ("pipeline_parallel_size: 29", {"E615"}),
    ],
)
def test_settings_that_need_another(codes: Codes, kwargs: str, found: set[str]) -> None:
    assert codes(f"topology: aggregated\n{EKS}engine_kwargs: {{{kwargs}}}\n") & GROUP == found


@pytest.mark.parametrize(
    ("argument", "code"),
    [
        ("dtype: bf16", "E602"),
        ('max_model_len: "8192"', "E602"),
        ("gpu_memory_utilization: 85", "M311"),
        ("kv_cache_dtype: fp9", "E602"),
    ],
)
def test_what_vllm_refuses_is_told_once_and_nothing_follows_from_it(
    check: Check, argument: str, code: str
) -> None:
    for text in (
        f"{EKS}engine_kwargs: {{{argument}}}\n",
        f"{EKS}decode: {{engine_kwargs: {{{argument}}}}}\n",
    ):
        found = [
            each.code for each in check(text) if each.severity == "error" or each.code in ("M303", "M312")
        ]
        assert found == [code]


def test_a_refused_argument_does_not_hide_another_error(codes: Codes) -> None:
    text = f"{EKS}engine_kwargs: {{dtype: bf16, max_model_len: 1000000, nonsense: 1}}\n"
    assert codes(text) >= {"E602", "M313", "E601"}


def test_memory_is_divided_without_what_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"{EKS}engine_kwargs: {{gpu_memory_utilization: 85}}\n")
    report = check_file(file, offline=True, environ={})
    assert report.refused == ("engine_kwargs.gpu_memory_utilization",)
    assert [each.budget.requested <= each.total_bytes for each in report.memory] == [True, True]
    assert ("engine_kwargs.gpu_memory_utilization", 85) in [row[:2] for row in report.rows()]


@pytest.mark.parametrize(
    ("share", "do"),
    [
        (85, "write 0.85"),
        (90, "write 0.9"),
        (1.2, "write 1 at most"),
        (2, "write 1 at most"),
        (0, "write 1 at most"),
    ],
)
def test_a_share_is_corrected_in_a_way_that_makes_sense(check: Check, share: float, do: str) -> None:
    [found] = [
        each
        for each in check(f"{EKS}engine_kwargs: {{gpu_memory_utilization: {share}}}\n")
        if each.code == "M311"
    ]
    assert found.do.startswith(do)


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_share_that_is_too_small_is_to_be_raised(check: Check, codes: Codes, share: float) -> None:
    text = "on: eks\nmodel: Qwen/Qwen3-4B\nengine_kwargs: {gpu_memory_utilization: %s, max_model_len: 4096}\n"
    [found] = [each for each in check(text % share) if each.code in ("M305", "M306")]
    enough = found.do.partition("raise gpu_memory_utilization to ")[2].split()[0]
    assert not codes(text % enough) & {"M305", "M306"}


def test_a_model_that_no_share_of_the_gpu_holds_needs_another_gpu(check: Check) -> None:
    text = (
        "on: eks\nmodel: Qwen/Qwen3-32B\nengine_kwargs: {gpu_memory_utilization: 0.3, max_model_len: 4096}\n"
    )
    [found] = [each for each in check(text) if each.code == "M305"]
    assert "gpu_memory_utilization to" not in found.do


def test_two_sizes_of_a_kv_cache_are_told_as_such(check: Check, codes: Codes) -> None:
    both = f"{EKS}engine_kwargs: {{kv_cache_memory_bytes: %d}}\ndecode: {{kv_cache_memory: 8GiB}}\n"
    found = [each for each in check(both % 2**27) if each.code in ("M321", "M306")]
    assert {each.code for each in found} == {"M321", "M306"}
    assert all("engine_kwargs.kv_cache_memory_bytes" in each.what + each.do for each in found)
    assert "M321" not in codes(both % 2**33)


@pytest.mark.parametrize("old", ["p3dn.24xlarge", "g4dn.xlarge"])
def test_an_attention_backend_is_proposed_that_both_gpus_have(check: Check, old: str) -> None:
    text = f"{EKS}prefill: {{nodes: {{instance_type: {old}}}}}\ndecode: {{nodes: {{instance_type: g6.8xlarge}}}}\n"
    [found] = [each for each in check(text) if each.code == "P215"]
    assert found.do.endswith("for example TRITON_ATTN")
