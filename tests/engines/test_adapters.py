"""LoRA adapters (`lora_modules`): the split answers with them as the engine alone does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diptych.models.hub import resolve_model
from engines.comparison import Answer, Body, answers, difference, engine_alone, split_with
from engines.rows import Shape
from engines.service import Service

pytestmark = [pytest.mark.engines, pytest.mark.long]

ADAPTERS = ("ada", "bob")
RANK = 8
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPT = "Once upon a time, in a village by the sea,"
GREEDY: Body = {"temperature": 0, "max_tokens": 16}


def shapes() -> Iterator[Shape]:
    """Each adapter on each route, the model itself on the same prompts before and after, and one that is none."""
    said = {"messages": [{"role": "user", "content": "Name three fruits."}]}
    for when, models in (("before", [{}]), ("", [{"model": name} for name in ADAPTERS]), ("after", [{}])):
        for model in models:
            who = model.get("model", f"the model {when}")
            yield Shape(f"{who}: completion", COMPLETIONS, {"prompt": PROMPT, **GREEDY, **model})
            yield Shape(f"{who}: chat, streamed", CHAT, {**said, **GREEDY, "stream": True, **model})
            yield Shape(f"{who}: logprobs", COMPLETIONS, {"prompt": PROMPT, **GREEDY, "logprobs": 2, **model})
    yield Shape("an adapter that is none", COMPLETIONS, {"prompt": PROMPT, **GREEDY, "model": "eve"})
    yield Shape("models", "/v1/models", None)


ALL = {shape.name: shape for shape in shapes()}


def make_adapter(folder: Path, seed: int) -> None:
    """Write a random adapter for the embedded model, large enough to change what it says."""
    import torch
    from safetensors.torch import save_file

    shape = json.loads((resolve_model("embedded") / "config.json").read_text())
    hidden, head = shape["hidden_size"], shape["hidden_size"] // shape["num_attention_heads"]
    wide = {"q_proj": shape["num_attention_heads"] * head, "v_proj": shape["num_key_value_heads"] * head}
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(shape["num_hidden_layers"]):
        for name, width in wide.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{place}.lora_A.weight"] = torch.randn(RANK, hidden, generator=random) / hidden**0.5
            weights[f"{place}.lora_B.weight"] = torch.randn(width, RANK, generator=random) / RANK**0.5
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": sorted(wide)}
    (folder / "adapter_config.json").write_text(
        json.dumps(config | {"bias": "none", "task_type": "CAUSAL_LM"})
    )


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What `up` is told, so that both phases have the adapters."""
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(ADAPTERS):
        make_adapter(folder / name, seed)
    modules = [{"name": name, "path": str(folder / name)} for name in ADAPTERS]
    told = {"enable_lora": "true", "max_lora_rank": RANK, "max_loras": len(ADAPTERS)}
    told["lora_modules"] = json.dumps(modules)
    return [word for name, value in told.items() for word in ("--set", f"engine_kwargs.{name}={value}")]


@pytest.fixture(scope="module")
def alone(reference: object, machine: Service, settings: list[str]) -> dict[str, Answer]:
    """What one engine that does both phases answers; it is up before the split, never beside it."""
    with engine_alone(machine, *settings) as one:
        return answers(one, ALL)


@pytest.fixture(scope="module")
def adapted(alone: object, machine: Service, settings: list[str]) -> Iterator[Service]:
    """The split with the adapters."""
    with split_with(machine, *settings) as service:
        yield service


@pytest.fixture(scope="module")
def split(adapted: Service) -> dict[str, Answer]:
    return answers(adapted, ALL)


@pytest.mark.parametrize("name", ALL)
def test_the_split_answers_with_an_adapter_what_the_engine_alone_does(
    alone: dict[str, Answer], split: dict[str, Answer], name: str
) -> None:
    expected, answer = alone[name], split[name]
    assert answer.status == expected.status, (expected, answer)
    assert difference(_comparable(expected.said), _comparable(answer.said)) is None, (expected, answer)


def _comparable(said: Any) -> Any:
    """Without what no two services have in common: vLLM's names of permissions."""
    models = said.get("data") if isinstance(said, dict) else None
    if not models:
        return said
    return [{name: value for name, value in each.items() if name != "permission"} for each in models]


def test_each_adapter_changes_the_answer(alone: dict[str, Answer]) -> None:
    """Else adapters that are left out would not be seen."""
    said = [alone[f"{who}: completion"].said["choices"][0]["text"] for who in ("the model before", *ADAPTERS)]
    assert len(set(said)) == 3


def test_the_models_are_the_model_and_its_adapters(split: dict[str, Answer], adapted: Service) -> None:
    models = {each["id"]: each["parent"] for each in split["models"].said["data"]}
    assert models == {adapted.model: None} | dict.fromkeys(ADAPTERS, adapted.model)


def test_an_adapters_prompt_runs_whole_on_decode_and_the_models_own_is_split(adapted: Service) -> None:
    told = adapted.complete(PROMPT, model=ADAPTERS[0])["diptych"]
    assert (told["path"], told["why"]) == ("local-whole", "LoRA adapter")
    assert adapted.complete("Another one begins like this:")["diptych"]["path"] == "remote"
