import json
from dataclasses import replace
from pathlib import Path

import pytest

from diptych.models import ModelShape, memory_budget, shipped_config, shipped_ids

CONFIGS = Path(__file__).parents[3] / "shared" / "model-configs"


@pytest.mark.parametrize("name", shipped_ids())
def test_a_shipped_config_can_be_sized(name: str) -> None:
    config = shipped_config(name)
    assert config is not None
    shape = ModelShape.from_config(config, name)
    assert memory_budget(shape, gpu_bytes=1 << 41, utilization=0.9, max_model_len=4096).fits


def test_every_config_at_hand_is_shipped_and_says_the_same() -> None:
    if not CONFIGS.is_dir():
        pytest.skip(f"{CONFIGS} is not here")
    for file in CONFIGS.glob("*_config.json"):
        name = file.name.removesuffix("_config.json").replace("--", "/")
        whole, ours = json.loads(file.read_text()), shipped_config(name)
        assert ours is not None, name
        shape = ModelShape.from_config(whole)
        assert replace(ModelShape.from_config(ours), fields=shape.fields) == shape, name
        if ours.keys() <= whole.keys():  # else it holds more: what lies beside the config, a tower cut off
            assert ModelShape.from_config(ours).weights() == ModelShape.from_config(whole).weights(), name


def test_an_id_is_found_whatever_its_case() -> None:
    assert shipped_config("qwen/QWEN3-8b") == shipped_config("Qwen/Qwen3-8B") is not None
    assert shipped_config("meta-llama/Llama-3.1-8B-Instruct") == shipped_config(
        "meta-llama/Meta-Llama-3.1-8B"
    )
    assert shipped_config("Qwen/Qwen3-9B") is None
    assert shipped_config("../Qwen--Qwen3-8B") is None


def test_ids_are_sorted_and_name_the_models_that_matter() -> None:
    assert list(shipped_ids()) == sorted(shipped_ids())
    assert {"Qwen/Qwen3.5-9B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-20b"} <= set(shipped_ids())


def test_a_caller_may_change_what_it_gets() -> None:
    config = shipped_config("Qwen/Qwen3-8B")
    assert config is not None
    config.clear()
    assert shipped_config("Qwen/Qwen3-8B")
