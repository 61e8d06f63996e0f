"""How many bytes a quantised checkpoint spends on a weight, as its config describes the scheme.

    bytes = numbers x bits / 8 + scales x bytes of a scale (+ zero points)

Covered are linear layers, never embeddings, heads, norms and routers, nor what the config excludes by name.
Formats: DeepSeek's and Qwen's FP8, ModelOpt's FP8 and NVFP4, MXFP4, AWQ, GPTQ, compressed-tensors.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import ceil
from typing import Any

from diptych.models.layers import Fields
from diptych.models.tensors import Tensor

PER_ROW, PER_TENSOR = -1, 0

_IGNORED = ("modules_to_not_convert", "ignored_layers", "exclude_modules", "ignore")
_SCALE_BYTES = {"group": 2, "tensor_group": 1, "channel": 2, "block": 4, "tensor": 4}
_GROUPS = {"channel": PER_ROW, "tensor": PER_TENSOR, "block": PER_TENSOR}
"""What compressed-tensors calls strategies: bytes of a scale, and what shares one where no size is stated."""

_PREFIXES = ("", "model.", "model.language_model.", "language_model.model.", "language_model.", "backbone.")
"""What checkpoints put before the names that are used here."""


@dataclass(frozen=True)
class Scheme:
    """A way to store a linear layer's matrix.

    Args:
        name: for people.
        bits: of one weight.
        group: weights of a row that share a scale; `PER_ROW` or `PER_TENSOR`.
        scale_bytes: of one scale.
        block: rows and columns that share a scale, in place of `group`.
        zero_bits: of one zero point per scale; 0 without.
        targets: names of the modules that are covered; all linear ones without.
        ignored: names of the modules that are not.
    """

    name: str
    bits: int
    group: int
    scale_bytes: int
    block: tuple[int, int] | None = None
    zero_bits: int = 0
    targets: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def covers(self, tensor: Tensor) -> bool:
        """Whether the tensor is stored this way."""
        if not tensor.linear or any(_matches(tensor.name, name) for name in self.ignored):
            return False
        return not self.targets or any(_matches(tensor.name, name) for name in self.targets)

    def matrix_bytes(self, tensor: Tensor) -> int:
        """Bytes of all copies of a tensor that is stored this way, scales included."""
        scales = self._scales(tensor)
        return (
            ceil(tensor.numbers * self.bits / 8)
            + scales * self.scale_bytes
            + ceil(scales * self.zero_bits / 8)
        )

    def _scales(self, tensor: Tensor) -> int:
        if self.block:
            return ceil(tensor.rows / self.block[0]) * ceil(tensor.columns / self.block[1]) * tensor.copies
        if self.group == PER_TENSOR:
            return tensor.copies
        groups = 1 if self.group == PER_ROW else ceil(tensor.columns / self.group)
        return tensor.rows * groups * tensor.copies


def schemes(fields: Fields) -> tuple[Scheme, ...]:
    """How the config says that linear layers are stored; nothing for plain weights. The first that covers wins.

    Raises:
        ModelError: the quantisation is not known here.
    """
    config = fields.get("quantization_config")
    if not config:
        return ()
    if not isinstance(config, Mapping):
        raise fields.unknown_weights("a quantization_config that is no object")
    method = str(config.get("quant_method") or config.get("quant_algo") or "").lower()
    ignored = tuple(name for field in _IGNORED for name in _module_names(fields, config.get(field)))
    groups = config.get("config_groups")
    if isinstance(groups, Mapping) and groups:
        return tuple(_compressed(fields, group, ignored) for group in groups.values())
    if method == "fp8":
        return (
            Scheme("FP8", 8, PER_TENSOR, 4, block=_block(config.get("weight_block_size")), ignored=ignored),
        )
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        return (Scheme("MXFP4", 4, 32, 1, ignored=ignored),)
    if method in ("awq", "awq_marlin", "gptq", "gptq_marlin"):
        return (_int4(fields, config, method, ignored),)
    if method.startswith("modelopt") or method in ("nvfp4", "fp8_pb_wo"):
        return (_modelopt(fields, config, ignored),)
    raise fields.unknown_weights(f"quantisation by {config.get('quant_method') or 'an unnamed method'}")


def kv_cache_element_bytes(fields: Fields) -> int | None:
    """Bytes of one element of KV cache where the checkpoint asks for a quantised one; None where it doesn't.

    vLLM follows it unless `kv_cache_dtype` says otherwise (`get_kv_cache_quant_algo_string` in torch_utils.py,
    `kv_cache_scheme` in attention.py).

    Raises:
        ModelError: it asks for one that is not known here.
    """
    config = fields.get("quantization_config")
    if not isinstance(config, Mapping):
        return None
    asked = config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")
    if not asked:
        return None
    bits = asked.get("num_bits") if isinstance(asked, Mapping) else {"fp8": 8}.get(str(asked).lower())
    if bits != 8:
        raise fields.unknown(f"a KV cache that is quantised as {asked}")
    return 1


def from_hf_quant_config(content: Mapping[str, Any]) -> dict[str, Any]:
    """A `quantization_config` out of ModelOpt's `hf_quant_config.json`, which lies beside a config.json.

    >>> from_hf_quant_config({"quantization": {"quant_algo": "NVFP4", "group_size": 16}})
    {'quant_algo': 'NVFP4', 'group_size': 16, 'quant_method': 'modelopt'}
    """
    inner = content.get("quantization")
    return {**(inner if isinstance(inner, Mapping) else content), "quant_method": "modelopt"}


def _module_names(fields: Fields, value: object) -> tuple[str, ...]:
    """A config's list of modules; those with `re:` hold a pattern that can be read."""
    names = tuple(str(name) for name in value) if isinstance(value, list | tuple) else ()
    for name in names:
        try:
            re.compile(name.removeprefix("re:") if name.startswith("re:") else "")
        except re.error:
            raise fields.unknown_weights(f"modules by the pattern {name!r}, which can't be read") from None
    return names


def _block(value: object) -> tuple[int, int] | None:
    """Rows and columns that share a scale."""
    if (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(type(side) is int and side > 0 for side in value)
    ):
        return value[0], value[1]
    return None


def _int4(fields: Fields, config: Mapping[str, Any], method: str, ignored: tuple[str, ...]) -> Scheme:
    bits = config.get("bits", config.get("w_bit"))
    group = config.get("group_size", config.get("q_group_size"))
    if not isinstance(bits, int) or not isinstance(group, int):
        raise fields.unknown_weights(f"quantisation by {method} without bits and group_size")
    name = f"{method.partition('_')[0].upper()} {bits} bit"
    return Scheme(name, bits, group, 2, zero_bits=bits, ignored=ignored)


def _modelopt(fields: Fields, config: Mapping[str, Any], ignored: tuple[str, ...]) -> Scheme:
    algorithm = str(config.get("quant_algo") or "").upper()
    group = config.get("group_size")
    if algorithm == "NVFP4":
        return Scheme("NVFP4", 4, group if isinstance(group, int) else 16, 1, ignored=ignored)
    if algorithm == "FP8":
        return Scheme("FP8", 8, PER_TENSOR, 4, ignored=ignored)
    if algorithm == "FP8_PB_WO":
        return Scheme("FP8", 8, PER_TENSOR, 4, block=(128, 128), ignored=ignored)
    raise fields.unknown_weights(f"ModelOpt's quantisation {algorithm or 'without quant_algo'}")


def _compressed(fields: Fields, group: object, ignored: tuple[str, ...]) -> Scheme:
    """One of the `config_groups` of compressed-tensors (or of ModelOpt, which writes the same)."""
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(group, Mapping) or not isinstance(weights, Mapping):
        raise fields.unknown_weights("compressed-tensors that quantise no weights")
    bits, kind = weights.get("num_bits"), str(weights.get("type") or "int")
    if not isinstance(bits, int):
        raise fields.unknown_weights("compressed-tensors without num_bits")
    four_bit_float = bits == 4 and kind == "float"
    strategy = str(weights.get("strategy") or ("tensor_group" if four_bit_float else "tensor"))
    if strategy not in _SCALE_BYTES:
        raise fields.unknown_weights(f"compressed-tensors with one scale per {strategy}")
    size, names = weights.get("group_size"), _module_names(fields, group.get("targets"))
    return Scheme(
        f"{kind} {bits} bit",
        bits,
        _GROUPS.get(strategy, size if isinstance(size, int) else 16),
        1 if four_bit_float else _SCALE_BYTES[strategy],
        block=_block(weights.get("block_structure")) if strategy == "block" else None,
        zero_bits=bits if strategy == "group" and weights.get("symmetric") is False else 0,
        targets=() if {"Linear", "LinearBase"} & set(names) else names,
        ignored=ignored,
    )


def _matches(name: str, pattern: str) -> bool:
    """Whether a config's name for modules (exact, a part of it, with `*`, or `re:`) means this one."""
    names = [prefix + name for prefix in _PREFIXES]
    if pattern.startswith("re:"):
        return any(re.match(pattern[3:], one) for one in names)
    if "*" in pattern:
        return any(fnmatchcase(one, pattern) or fnmatchcase(one, f"{pattern}.*") for one in names)
    return any(f".{pattern}." in f".{one}." for one in names)
