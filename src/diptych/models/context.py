"""The longest sequence that a model takes, as vLLM derives it from the config (`_get_and_verify_max_len`).

    the config says                                  tokens
    nothing of RoPE, or type default                 max_position_embeddings
    yarn                                             original_max_position_embeddings x factor
    linear, dynamic, and what else has a factor      max_position_embeddings x factor
    llama3, longrope (su); any with Gemma 3          max_position_embeddings: it is scaled already

`model_max_length` of a config takes the place of its max_position_embeddings. That of a tokenizer's config, which
vLLM reads as well, is not known here. The same from vLLM 0.26 to 0.29.
"""

from collections.abc import Mapping
from typing import Any

from diptych.models.layers import Fields

_SCALED_ALREADY = frozenset({"su", "longrope", "llama3"})


def context_length(fields: Fields) -> int:
    """Tokens of the longest sequence.

    Raises:
        ModelError: the config has no number for it.
    """
    length: float = fields.required("max_position_embeddings")
    if fields.get("model_max_length"):
        length = fields.number("model_max_length")
    if "gemma3" in str(fields.get("model_type")):
        return int(length)
    factor = 1.0
    for rope in _ropes(fields):
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind in _SCALED_ALREADY:
            continue
        factor = _number(rope.get("factor")) or factor
        if kind == "yarn":
            length = _original(fields, rope)
    return int(length * factor)


def _ropes(fields: Fields) -> list[Mapping[str, Any]]:
    """What the config says of RoPE: once, or for each type of layer."""
    stated = fields.get("rope_scaling") or fields.get("rope_parameters")
    if not isinstance(stated, Mapping):
        return []
    nested = [rope for rope in stated.values() if isinstance(rope, Mapping)]
    return nested or [stated]


def _original(fields: Fields, rope: Mapping[str, Any]) -> float:
    """Tokens before scaling; a field beside the others wins, as Phi-3 has it."""
    name = "original_max_position_embeddings"
    stated = _number(fields.get(name)) or _number(rope.get(name))
    return stated or fields.required("max_position_embeddings")


def _number(value: object) -> float:
    """`value` where it is a number above 0, else 0."""
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0
