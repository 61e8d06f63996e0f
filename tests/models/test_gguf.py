"""A GGUF file becomes the checkpoint that it was made of."""
# ruff: noqa: E402 - the imports below are of packages that are only there with the engines

import json
from pathlib import Path

import pytest

for module in ("numpy", "safetensors", "tokenizers"):
    pytest.importorskip(module, reason=f"the engine packages are absent ({module})")

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from diptych.models.gguf import GgufFile, UnreadableError, convert
from fakes.gguf_file import HEAD_DIM, HEADS, HIDDEN, write_tiny_llama


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.gguf"
    write_tiny_llama(file)
    return file


def test_every_quantisation_gives_the_values_that_were_stored(tmp_path: Path) -> None:
    stored = write_tiny_llama(tmp_path / "tiny.gguf")
    file = GgufFile.open(tmp_path / "tiny.gguf")
    assert {tensor.kind for tensor in file.tensors} == {0, 3, 8}
    for tensor in file.tensors:
        np.testing.assert_array_equal(file.read(tensor), stored[tensor.name])


def test_the_checkpoint_has_each_tensor_under_its_own_name_with_the_turning_of_heads_undone(
    tmp_path: Path,
) -> None:
    stored = write_tiny_llama(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(weights["model.layers.1.mlp.up_proj.weight"], stored["blk.1.ffn_up.weight"])
    in_file = stored["blk.0.attn_q.weight"].reshape(HEADS, HEAD_DIM, HIDDEN)
    in_checkpoint = weights["model.layers.0.self_attn.q_proj.weight"].reshape(HEADS, HEAD_DIM, HIDDEN)
    np.testing.assert_array_equal(in_checkpoint[:, : HEAD_DIM // 2], in_file[:, 0::2])
    np.testing.assert_array_equal(in_checkpoint[:, HEAD_DIM // 2 :], in_file[:, 1::2])
    assert len(weights) == len(stored)


def test_the_configuration_says_what_the_file_says(tiny: Path, tmp_path: Path) -> None:
    convert(tiny, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 16)
    assert (config["max_position_embeddings"], config["rms_norm_eps"]) == (128, 1e-05)
    assert config["tie_word_embeddings"], "the file has no output.weight"


def test_the_tokenizer_merges_keeps_control_tokens_whole_and_goes_back(tiny: Path, tmp_path: Path) -> None:
    convert(tiny, tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>hi 11<|im_end|>").ids == [1, 5, 6, 7, 7, 2]
    assert tokenizer.decode([5, 6, 7]) == "hi 1"


@pytest.mark.parametrize(
    ("keys", "says"),
    [({"general__architecture": "mamba"}, "mamba"), ({"tokenizer__ggml__pre": "llama-bpe"}, "llama-bpe")],
)
def test_another_family_is_refused_and_named(tmp_path: Path, keys: dict[str, str], says: str) -> None:
    write_tiny_llama(tmp_path / "tiny.gguf", **keys)
    with pytest.raises(UnreadableError, match=says):
        convert(tmp_path / "tiny.gguf", tmp_path)


@pytest.mark.parametrize("kept", [3, 60, 700, -40])
def test_a_file_cut_anywhere_is_refused(tiny: Path, tmp_path: Path, kept: int) -> None:
    tiny.write_bytes(tiny.read_bytes()[:kept])
    with pytest.raises(UnreadableError):
        convert(tiny, tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
