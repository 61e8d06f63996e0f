"""The budget: its figures, and what is refused because it does not fit."""

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from diptych.check import (
    Facts,
    Finding,
    Installed,
    Machine,
    ModelFacts,
    PhaseMemory,
    Subject,
    Unsized,
    memory_of,
    transfer_of,
)
from diptych.check.find_config import find_model
from diptych.models import shipped_config
from diptych.spec import load_with_provenance

Codes = Callable[..., set[str]]
Check = Callable[..., list[Finding]]
GIB, MIB = 2**30, 2**20

WALK_THROUGH = """\
on: eks
model: Qwen/Qwen3.5-9B
engine_kwargs: {max_model_len: 4096, dtype: bfloat16, gpu_memory_utilization: 0.90, enforce_eager: true}
nodes: {instance_type: g6.8xlarge, count: 1}
"""


def subject(tmp_path: Path, text: str, config: dict[str, Any] | None = None) -> Subject:
    file = tmp_path / "diptych.yaml"
    file.write_text(text)
    loaded = load_with_provenance(file, environ={})
    found = find_model(loaded.document, offline=True, environ={})
    model = found if config is None else ModelFacts(config)
    here = Installed("2.60.0", "0.29.0", "1.3.2")
    return Subject(loaded, Facts(date(2026, 11, 29), model, installed=here, machine=Machine(24 * GIB)))


def sized(tmp_path: Path, text: str) -> list[PhaseMemory]:
    found = [memory_of(view) for view in subject(tmp_path, text).phases]
    assert all(isinstance(each, PhaseMemory) for each in found), found
    return found  # type: ignore[return-value]


def test_the_walk_through_has_the_figures_of_the_facts(tmp_path: Path) -> None:
    """Qwen3.5-9B on one L4: 5 to 10 sequences of 4096 tokens, 128 MiB of KV and about 49 MiB of state each."""
    prefill, decode = sized(tmp_path, WALK_THROUGH)
    assert prefill.budget == decode.budget
    assert (prefill.phase, prefill.device) == ("prefill", "one l4 of g6.8xlarge")
    assert prefill.budget.requested / GIB == pytest.approx(0.9 * 22.03, rel=0.001)
    assert prefill.budget.weights / GIB == pytest.approx(17.5, rel=0.05)
    assert 5 <= prefill.budget.sequences <= 10
    transfer = transfer_of(subject(tmp_path, WALK_THROUGH))
    assert transfer is not None
    assert transfer.size_bytes / MIB == pytest.approx(128 + 49, rel=0.05)
    assert transfer.link == "EFA of g6.8xlarge, 25 Gbit/s"
    assert transfer.seconds == pytest.approx(transfer.size_bytes * 8 / 25e9)


def test_a_transfer_over_tcp_takes_ten_times_as_long(tmp_path: Path) -> None:
    over_efa = transfer_of(subject(tmp_path, WALK_THROUGH))
    over_tcp = transfer_of(subject(tmp_path, WALK_THROUGH + "kv_transfer: {backend: UCX}\n"))
    assert over_efa is not None and over_tcp is not None
    assert over_efa.size_bytes == over_tcp.size_bytes
    assert over_tcp.seconds / over_efa.seconds == pytest.approx(25 / 2.4)  # type: ignore[operator]


def test_here_a_transfer_has_no_link(tmp_path: Path) -> None:
    transfer = transfer_of(subject(tmp_path, ""))
    assert transfer is not None
    assert (transfer.seconds, transfer.link) == (None, "this machine's memory")
    assert transfer_of(subject(tmp_path, "topology: aggregated\n")) is None


def test_ranks_share_the_weights(tmp_path: Path) -> None:
    text = "on: eks\nmodel: Qwen/Qwen3-8B\nnodes: {instance_type: g6.12xlarge}\n%s"
    ranks = "engine_kwargs: {tensor_parallel_size: 4}\n"
    alone, shared = sized(tmp_path, text % "")[0], sized(tmp_path, text % ranks)[0]
    assert shared.budget.weights == pytest.approx(alone.budget.weights / 4, rel=0.02)
    assert shared.budget.sequences > 4 * alone.budget.sequences


def test_a_smaller_kv_dtype_holds_twice_the_tokens(tmp_path: Path) -> None:
    text = "on: eks\nmodel: Qwen/Qwen3-8B\nengine_kwargs: {kv_cache_dtype: %s}\n"
    plain, small = sized(tmp_path, text % "auto")[0], sized(tmp_path, text % "fp8")[0]
    assert small.budget.tokens == pytest.approx(2 * plain.budget.tokens, rel=0.01)


def test_a_kv_cache_of_a_given_size_has_that_size(tmp_path: Path) -> None:
    for text in ("", "on: eks\nmodel: Qwen/Qwen3-8B\n"):
        decode = sized(tmp_path, f"{text}decode: {{kv_cache_memory: 1GiB}}\n")[1]
        assert decode.budget.kv_cache == GIB


def test_a_kv_cache_of_a_given_size_must_fit_beside_the_weights(check: Check) -> None:
    text = "on: eks\nmodel: Qwen/Qwen3-8B\n%s"
    fields = {
        "decode: {kv_cache_memory: 60GiB}\n": "decode.kv_cache_memory",
        "engine_kwargs: {kv_cache_memory_bytes: 64424509440}\n": "engine_kwargs.kv_cache_memory_bytes",
        "decode: {kv_cache_memory: 5GiB}\n": None,
    }
    for more, field in fields.items():
        found = [each for each in check(text % more) if each.code == "M305"]
        assert [each.field for each in found] == ([field] if field else [])
        assert all("give it 5." in each.do for each in found)


def test_more_memory_is_offered_where_a_node_has_it(check: Check) -> None:
    def do(code: str, text: str) -> str:
        return next(each.do for each in check(f"on: eks\nmodel: Qwen/Qwen3-8B\n{text}") if each.code == code)

    assert "prefill.resources.memory" in do("M308", "prefill: {resources: {memory: 12GiB}}\n")
    assert "prefill.resources.memory" not in do("M308", "nodes: {instance_type: g6.xlarge}\n")
    assert do("M309", "prefill: {resources: {shared_memory: 200GiB}}\n").startswith("lower it to ")


def test_a_refused_model_is_told_whether_its_config_is_known_or_not(check: Check) -> None:
    text = "on: eks\nmodel: {source: meta-llama/Meta-Llama-3.1-8B%s}\n"

    def told(model: ModelFacts, token: str = "") -> list[tuple[str, bool]]:
        found = [each for each in check(text % token, model=model) if each.code in ("M302", "M316")]
        return [(each.code, "name a token" in each.do) for each in found]

    config = shipped_config("meta-llama/Meta-Llama-3.1-8B")
    assert told(ModelFacts(config)) == []
    assert told(ModelFacts(config, refused="HTTP 401")) == [("M316", True)]
    assert told(ModelFacts(config, refused="HTTP 401"), ", token_secret: hub/token") == []
    assert told(ModelFacts(why="HTTP 401", refused="HTTP 401")) == [("M302", True)]
    assert told(ModelFacts(why="no network")) == [("M302", False)]


def test_one_engine_for_both_phases_is_one_column(tmp_path: Path) -> None:
    assert [each.phase for each in sized(tmp_path, "topology: aggregated\n")] == ["aggregated"]


@pytest.mark.parametrize(
    "kwargs",
    [
        "quantization: fp8",
        "cpu_offload_gb: 4",
        "kv_cache_dtype: nvfp4",
        "speculative_config: {method: draft_model, model: Qwen/Qwen3-4B, num_speculative_tokens: 3}",
        "enable_expert_parallel: true, data_parallel_size: 2",
        "decode_context_parallel_size: 2, tensor_parallel_size: 2",
    ],
)
def test_what_can_not_be_sized_is_told_once_and_not_guessed(
    tmp_path: Path, check: Check, kwargs: str
) -> None:
    text = (
        f"on: eks\nmodel: Qwen/Qwen3-8B\nnodes: {{instance_type: g6.12xlarge}}\nengine_kwargs: {{{kwargs}}}\n"
    )
    assert all(isinstance(memory_of(view), Unsized) for view in subject(tmp_path, text).phases)
    assert [each.code for each in check(text)].count("M303") == 1


def test_an_architecture_that_is_not_known_is_told(check: Check) -> None:
    config = {
        "architectures": ["NobodyKnowsForCausalLM"],
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_size": 64,
        "vocab_size": 10,
        "max_position_embeddings": 512,
        "layer_types": ["quantum_attention", "quantum_attention"],
    }
    found = [
        each for each in check("on: eks\nmodel: some/model\n", model_config=config) if each.code == "M303"
    ]
    assert len(found) == 1
    assert "quantum_attention" in found[0].what
    assert "M306" not in {each.code for each in check("on: eks\nmodel: some/model\n", model_config=config)}


def test_a_model_on_unknown_gpus_is_not_sized(check: Check) -> None:
    found = [each for each in check("on: kubernetes\nmodel: Qwen/Qwen3-8B\n") if each.code == "M304"]
    assert [each.field for each in found] == ["nodes.instance_type"]


def test_one_limit_for_both_phases_is_one_error(check: Check) -> None:
    text = "on: eks\nmodel: Qwen/Qwen3-8B\nengine_kwargs: {max_model_len: 32768}\n"
    found = [each for each in check(text) if each.code == "M306"]
    assert len(found) == 1
    assert "prefill and decode" in found[0].what
    apart = [f for f in check(text + "prefill: {nodes: {instance_type: g6e.8xlarge}}\n") if f.code == "M306"]
    assert len(apart) == 1
    assert "that of decode has" in apart[0].what


def test_the_length_that_would_fit_does(check: Check) -> None:
    text = "on: eks\nmodel: Qwen/Qwen3-8B\nengine_kwargs: {max_model_len: %d}\n"
    found = next(each for each in check(text % 40960) if each.code == "M306")
    fitting = int(found.do.split()[3])
    assert "M306" not in {each.code for each in check(text % fitting)}


def test_the_kv_cache_that_would_do_does(check: Check) -> None:
    text = "decode: {kv_cache_memory: %s}\n"
    found = next(each for each in check(text % "256MiB") if each.code == "M306")
    enough = found.do.rpartition(" to ")[2].replace(" ", "")
    assert "M306" not in {each.code for each in check(text % enough)}


def test_a_checkpoint_on_several_pods_takes_a_part_of_each(codes: Codes) -> None:
    text = (
        "on: eks\nmodel: Qwen/Qwen3-32B\nnodes: {instance_type: g6e.8xlarge}\n"
        "engine_kwargs: {tensor_parallel_size: %d}\nprefill: {resources: {memory: 40GiB}}\n"
    )
    assert "M308" in codes(text % 1)
    assert "M308" not in codes(text % 2)


def test_nvme_must_hold_the_checkpoint(codes: Codes) -> None:
    """Kimi K2 has a terabyte of weights, g6e.8xlarge 900 GB of disk."""
    text = "on: eks\nmodel: moonshotai/Kimi-K2-Instruct\nnodes: {instance_type: %s}\n"
    assert "M310" not in codes(text % "p5en.48xlarge")
    assert "M310" in codes(text % "g6e.8xlarge")
    assert "M310" not in codes(text % "g6e.8xlarge" + "staging: {enabled: false}\n")


def test_a_share_that_is_no_number_is_left_to_its_own_rule(codes: Codes) -> None:
    found = codes("engine_kwargs: {gpu_memory_utilization: much}\n")
    assert "E602" in found
    assert not found & {"M311", "M312"}


@pytest.mark.parametrize(
    ("share", "code"), [(0, "M311"), (1.5, "M311"), (0.96, "M312"), (1, "M312"), (0.95, None)]
)
def test_shares_of_gpu_memory(codes: Codes, share: float, code: str | None) -> None:
    text = f"on: eks\nmodel: Qwen/Qwen3-0.6B\nengine_kwargs: {{gpu_memory_utilization: {share}}}\n"
    assert codes(text) & {"M311", "M312"} == ({code} if code else set())


def test_a_config_with_rope_scaling_is_as_long_as_it_says(codes: Codes) -> None:
    config = shipped_config("Qwen/Qwen3-0.6B") or {}
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    text = (
        "on: eks\nmodel: some/model\nnodes: {instance_type: g6.8xlarge}\nengine_kwargs: {max_model_len: %d}\n"
    )
    longer = config | {"rope_scaling": rope}
    assert "M313" in codes(text % 131072, model_config=config)
    assert "M313" not in codes(text % 131072, model_config=longer)
    assert "M313" in codes(text % 131073, model_config=longer)


def test_rope_scaling_may_lengthen_a_model(codes: Codes) -> None:
    text = "on: eks\nmodel: Qwen/Qwen3-0.6B\nengine_kwargs: {max_model_len: 131072%s}\n"
    assert "M313" in codes(text % "")
    assert "M313" not in codes(text % ", hf_overrides: {rope_parameters: {rope_type: yarn, factor: 4.0}}")
