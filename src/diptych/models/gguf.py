"""An ordinary Hugging Face checkpoint out of a GGUF file of the Llama family, without torch.

transformers can do the same (`GgufConfig(dequantize=True)`) but parses the file three times in pure Python
and loads torch: 29 s of processor time for 135 M parameters, against 3 s here for the same
`model.safetensors`, bit for bit.

The format (version 3, little endian): magic, version, tensor count, key count; the keys, each a name, a
type and a value; the tensors' names, shapes, types and offsets; then, aligned, the tensors. Quantised types
come in blocks of 32 values: `Q4_1` is scale, minimum (float16 each) and 16 bytes of nibbles; `Q8_0` is
scale and 32 signed bytes. Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

Run as a program, so that its memory and imports are not the caller's: `python gguf.py FILE.gguf DIRECTORY`.
"""

import json
import math
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
CONTROL_TOKEN = 3
BLOCK = 32

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class UnreadableError(ValueError):
    """The file is not a GGUF file that this module reads."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of the file: its shape in rows first, its quantisation and where its bytes begin."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class GgufFile:
    """The keys and the tensors' places of a GGUF file; `data` is the whole file, mapped."""

    keys: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data: "Array"

    @property
    def architecture(self) -> str:
        return str(self.keys["general.architecture"])

    def of_model(self, key: str) -> Any:
        """The architecture's own key, such as `llama.block_count` for `block_count`."""
        return self.keys[f"{self.architecture}.{key}"]

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Map the file and read everything but the tensors.

        Raises:
            UnreadableError: not a GGUF file of version 3, or cut short.
        """
        import numpy as np

        data = np.memmap(path, mode="r")
        try:
            keys, tensors = _Header(data.data).read()
        except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
            raise UnreadableError(f"{path} is cut short or damaged ({error})") from error
        return cls(keys, tensors, data)

    def read(self, tensor: Tensor) -> "Array":
        """The tensor's values as float32, in its shape."""
        if tensor.kind not in DEQUANTISE:
            raise UnreadableError(
                f"{tensor.name} has quantisation type {tensor.kind}; known: F32, Q4_1, Q8_0"
            )
        block_bytes, values_per_block, dequantise = DEQUANTISE[tensor.kind]
        size = math.prod(tensor.shape) // values_per_block * block_bytes
        raw = self.data[tensor.offset : tensor.offset + size]
        if raw.size < size:
            raise UnreadableError(f"the file ends before {tensor.name} does")
        return dequantise(raw.reshape(-1, block_bytes)).reshape(tensor.shape)


class _Header:
    """A cursor over the part of the file before the tensors."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def read(self) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
        if bytes(self.data[:4]) != b"GGUF":
            raise UnreadableError("not a GGUF file")
        self.at = 4
        version, tensor_count, key_count = self.scalar("I"), self.scalar("Q"), self.scalar("Q")
        if version != 3:
            raise UnreadableError(f"GGUF version {version}; this reads version 3")
        keys = {self.string(): self.value(self.scalar("I")) for _ in range(key_count)}
        places = [
            (self.string(), self.shape(), self.scalar("I"), self.scalar("Q")) for _ in range(tensor_count)
        ]
        alignment = keys.get("general.alignment", 32)
        start = -(-self.at // alignment) * alignment
        return keys, tuple(Tensor(name, shape, kind, start + offset) for name, shape, kind, offset in places)

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        (length,) = struct.unpack_from("<Q", self.data, self.at)
        start, self.at = self.at + 8, self.at + 8 + length
        if self.at > len(self.data):
            raise IndexError("a string runs past the end")
        return str(self.data[start : self.at], "utf-8")

    def shape(self) -> tuple[int, ...]:
        """Rows first; the file has the fastest-moving dimension first."""
        return tuple(reversed([self.scalar("Q") for _ in range(self.scalar("I"))]))

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.scalar(SCALARS[kind])
        item, count = self.scalar("I"), self.scalar("Q")
        if item in (STRING, ARRAY):
            return [self.value(item) for _ in range(count)]
        values = struct.unpack_from(f"<{count}{SCALARS[item]}", self.data, self.at)
        self.at += struct.calcsize(f"<{count}{SCALARS[item]}")
        return list(values)


def _float32(blocks: "Array") -> "Array":
    return blocks.view("<f4")


def _q4_1(blocks: "Array") -> "Array":
    import numpy as np

    scale = blocks[:, :2].view("<f2").astype(np.float32)
    minimum = blocks[:, 2:4].view("<f2").astype(np.float32)
    nibbles = np.concatenate([blocks[:, 4:] & 0x0F, blocks[:, 4:] >> 4], axis=1)
    values: Array = scale * nibbles.astype(np.float32) + minimum
    return values


def _q8_0(blocks: "Array") -> "Array":
    import numpy as np

    return blocks[:, :2].view("<f2").astype(np.float32) * blocks[:, 2:].view(np.int8).astype(np.float32)


# GGUF's number of the type: bytes per block, values per block, blocks of bytes to values.
DEQUANTISE: dict[int, tuple[int, int, Callable[["Array"], "Array"]]] = {
    0: (4, 1, _float32),
    3: (20, BLOCK, _q4_1),
    8: (34, BLOCK, _q8_0),
}


def checkpoint_name(name: str) -> str:
    """The tensor's name in a checkpoint.

    >>> checkpoint_name("blk.7.ffn_up.weight")
    'model.layers.7.mlp.up_proj.weight'
    """
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    _, layer, part, suffix = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{suffix}"


def weights(file: GgufFile) -> dict[str, "Array"]:
    """Every tensor in float32 under its checkpoint name.

    llama.cpp turns each head of Q and K by pairs of neighbours where the checkpoint turns by halves, so
    their rows are interleaved in the file and put back here.
    """
    import numpy as np

    heads = {
        "attn_q": file.of_model("attention.head_count"),
        "attn_k": file.of_model("attention.head_count_kv"),
    }
    found = {}
    for tensor in file.tensors:
        values = file.read(tensor)
        part = tensor.name.split(".")[-2]
        if part in heads:
            rows, columns = values.shape
            values = values.reshape(heads[part], rows // heads[part] // 2, 2, columns).swapaxes(1, 2)
        found[checkpoint_name(tensor.name)] = np.ascontiguousarray(values.reshape(tensor.shape))
    return found


def config(file: GgufFile) -> dict[str, Any]:
    """The checkpoint's `config.json`."""
    heads = file.of_model("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": file.keys["tokenizer.ggml.bos_token_id"],
        "dtype": "float32",
        "eos_token_id": file.keys["tokenizer.ggml.eos_token_id"],
        "head_dim": file.of_model("embedding_length") // heads,
        "hidden_act": "silu",
        "hidden_size": file.of_model("embedding_length"),
        "initializer_range": 0.02,
        "intermediate_size": file.of_model("feed_forward_length"),
        "max_position_embeddings": file.of_model("context_length"),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": file.of_model("block_count"),
        "num_key_value_heads": file.of_model("attention.head_count_kv"),
        "pad_token_id": file.keys["tokenizer.ggml.padding_token_id"],
        # Shortest decimal of a float32: 1e-05, not 9.999999747378752e-06.
        "rms_norm_eps": float(f"{file.of_model('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": file.of_model("rope.freq_base"),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in file.tensors),
        "use_cache": True,
        "vocab_size": file.of_model("vocab_size"),
    }


def save_tokenizer(file: GgufFile, directory: Path) -> None:
    """Write the tokenizer (byte-level BPE, digits one by one), its settings and the chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = file.keys["tokenizer.ggml.tokens"]
    kinds: list[int] = file.keys["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in file.keys["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(directory / "tokenizer.json"))

    special = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    settings = {
        f"{name}_token": tokens[file.keys[f"tokenizer.ggml.{key}_token_id"]] for name, key in special.items()
    }
    settings |= {
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.of_model("context_length"),
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    _write_json(directory / "tokenizer_config.json", settings)
    (directory / "chat_template.jinja").write_text(file.keys["tokenizer.chat_template"], encoding="utf-8")


def convert(source: Path, directory: Path) -> None:
    """Write the checkpoint into the directory, which exists.

    Raises:
        UnreadableError: another architecture, tokenizer or quantisation than this module knows.
    """
    from safetensors.numpy import save_file

    file = GgufFile.open(source)
    dialect = (file.architecture, file.keys.get("tokenizer.ggml.model"), file.keys.get("tokenizer.ggml.pre"))
    if dialect != ("llama", "gpt2", "smollm"):
        raise UnreadableError(f"architecture and tokenizer {dialect}; this reads ('llama', 'gpt2', 'smollm')")
    settings = config(file)
    _write_json(directory / "config.json", settings)
    tokens = {key: settings[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(directory / "generation_config.json", tokens)
    save_tokenizer(file, directory)
    save_file(weights(file), directory / "model.safetensors", metadata={"format": "pt"})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as error:  # the caller reads one line, whatever went wrong
        sys.exit(f"{type(error).__name__}: {error}")
