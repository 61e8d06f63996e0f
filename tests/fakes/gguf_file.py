"""A GGUF file of a tiny Llama, written as llama.cpp writes them: for tests that need one of a few kilobytes."""

import struct
from pathlib import Path
from typing import Any

import numpy as np

HEADS, KV_HEADS, HEAD_DIM, LAYERS, INTERMEDIATE = 4, 2, 16, 2, 64
HIDDEN = HEADS * HEAD_DIM
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "h", "i", "hi", "Ġ", "1"]
KEYS: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": LAYERS,
    "llama.context_length": 128,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INTERMEDIATE,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.vocab_size": len(TOKENS),
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 3, 1, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["h i"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.chat_template": "{{ messages[0]['content'] }}",
}
F32, Q4_1, Q8_0 = 0, 3, 8


def write_tiny_llama(path: Path, **keys: Any) -> dict[str, "np.ndarray[Any, Any]"]:
    """Write the file, some keys replaced (`__` for `.`), and return its tensors' values by their names in it."""
    changed = KEYS | {name.replace("__", "."): value for name, value in keys.items()}
    values, records = _tensors()
    header = b"GGUF" + struct.pack("<IQQ", 3, len(records), len(changed))
    header += b"".join(_string(name) + _value(value) for name, value in changed.items())
    body = b""
    for name, (kind, shape, raw) in records.items():
        header += _string(name) + struct.pack("<I", len(shape))
        header += b"".join(struct.pack("<Q", size) for size in reversed(shape)) + struct.pack(
            "<IQ", kind, len(body)
        )
        body += raw + b"\0" * (-len(raw) % 32)
    path.write_bytes(header + b"\0" * (-len(header) % 32) + body)
    return values


def _tensors() -> tuple[dict[str, Any], dict[str, tuple[int, tuple[int, ...], bytes]]]:
    random = np.random.default_rng(7)
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        parts = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INTERMEDIATE, HIDDEN),
            "ffn_up": (INTERMEDIATE, HIDDEN),
            "ffn_down": (HIDDEN, INTERMEDIATE),
        }
        shapes |= {f"blk.{layer}.{part}.weight": shape for part, shape in parts.items()}
    values, records = {}, {}
    for name, shape in shapes.items():
        kind = F32 if len(shape) == 1 else Q8_0 if name == "token_embd.weight" else Q4_1
        values[name], raw = _quantised(random, kind, shape)
        records[name] = (kind, shape, raw)
    return values, records


def _quantised(random: Any, kind: int, shape: tuple[int, ...]) -> tuple[Any, bytes]:
    """Random values that the type holds exactly, and their bytes."""
    if kind == F32:
        plain = random.standard_normal(shape).astype("<f4")
        return plain, plain.tobytes()
    blocks = int(np.prod(shape)) // 32
    scale = random.uniform(0.001, 0.1, (blocks, 1)).astype("<f2")
    if kind == Q8_0:
        whole = random.integers(-127, 128, (blocks, 32)).astype(np.int8)
        return (scale.astype("f4") * whole).reshape(shape), np.hstack(
            [scale.view("u1"), whole.view("u1")]
        ).tobytes()
    minimum = random.uniform(-1, 0, (blocks, 1)).astype("<f2")
    nibbles = random.integers(0, 16, (blocks, 32)).astype("u1")
    packed = nibbles[:, :16] | nibbles[:, 16:] << 4
    values = scale.astype("f4") * nibbles + minimum.astype("f4")
    return values.astype("f4").reshape(shape), np.hstack(
        [scale.view("u1"), minimum.view("u1"), packed]
    ).tobytes()


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, list) and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
    if isinstance(value, list):
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    return struct.pack("<II", 4, value)
