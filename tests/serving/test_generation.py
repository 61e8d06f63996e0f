"""What makes a generation, and what does not."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving.generation import IMAGE_ENV, generation_of, settings_digest
from diptych.serving.stage import MARKER

FILES = {"config.json": 700, "model-1.safetensors": 5000, "model-2.safetensors": 4000, "vocab.txt": 9}


def test_engine_settings_make_another_generation_and_the_number_of_replicas_does_not() -> None:
    def digest(**prefill: object) -> str:
        return settings_digest({"prefill_config": {"engine_kwargs": {"block_size": 16}, **prefill}})

    assert digest() == digest(deployment_config={"num_replicas": 2})
    assert digest() != digest(engine_kwargs={"block_size": 32})
    assert settings_digest({}) == settings_digest({})


def staged(folder: Path, **marker: Any) -> str:
    """The generation of a replica on a node whose staged model has this marker."""
    told = {"source": "Qwen/Qwen3-8B", "revision": "main", "commit": "b968826d", "files": FILES} | marker
    (folder / MARKER).write_text(json.dumps(told))
    return generation_of("settings", str(folder))


def test_nodes_whose_staged_weights_are_the_same_are_of_one_generation(tmp_path: Path) -> None:
    reference = staged(tmp_path)
    assert staged(tmp_path, files=dict(reversed(FILES.items()))) == reference
    assert staged(tmp_path, files=FILES | {"tokenizer.model": 5, "notes/old.json": 3}) == reference


@pytest.mark.parametrize(
    "marker",
    [
        {"source": "Qwen/Qwen3-8B-Base"},
        {"commit": "9c925d64"},
        {"commit": None, "revision": "v2"},
        {"files": FILES | {"model-2.safetensors": 4001}},
        {"files": FILES | {"model-3.safetensors": 10}},
        {"files": FILES | {"config.json": 701}},
        {"files": FILES | {"modeling_own.py": 10}},
    ],
    ids=lambda marker: json.dumps(marker)[:30],
)
def test_other_weights_are_another_generation(tmp_path: Path, marker: dict[str, Any]) -> None:
    assert staged(tmp_path, **marker) != staged(tmp_path)


@pytest.mark.parametrize(
    "text", [None, "{", "[]", '{"files": 1}'], ids=["none", "cut short", "a list", "odd"]
)
def test_a_model_without_a_marker_that_can_be_read_goes_by_its_name(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / MARKER).write_text(text)
    assert generation_of("settings", str(tmp_path)) == generation_of("settings", str(tmp_path))
    assert generation_of("settings", str(tmp_path)) != generation_of("settings", "Qwen/Qwen3-8B")


def test_another_image_is_another_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(IMAGE_ENV, raising=False)
    unknown = generation_of("settings", None)
    monkeypatch.setenv(IMAGE_ENV, "registry/llm@sha256:1")
    first = generation_of("settings", None)
    monkeypatch.setenv(IMAGE_ENV, "registry/llm@sha256:2")
    assert len({unknown, first, generation_of("settings", None)}) == 3
