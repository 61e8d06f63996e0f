"""Memory: how much each phase gets, and whether the machine has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diptych.errors import StartError
from diptych.local.hardware import Hardware

MIB = 2**20
GIB = 2**30

# Measured with vLLM 0.29 on CPU: replica and engine process without weights and KV cache; and Ray with Serve.
_PROCESSES_PER_REPLICA = 1.7 * GIB
_RAY = 0.9 * GIB
_CHUNK_ACTIVATIONS = 0.2 * GIB
_LEAST_KV_CACHE = 256 * MIB
_MOST_DEFAULT_KV_CACHE = 4 * GIB
_FULL_LENGTH_REQUESTS = 1.25
DEFAULT_MAX_MODEL_LEN = 8192


@dataclass(frozen=True)
class Demand:
    """What one replica of a phase needs, in bytes."""

    phase: str
    replicas: int
    weights: int
    kv_cache: int

    @property
    def each(self) -> int:
        return int(_PROCESSES_PER_REPLICA + _CHUNK_ACTIVATIONS) + self.weights + self.kv_cache


def default_kv_cache(kv_bytes_per_token: int, max_model_len: int) -> int:
    """Room for one request of full length and a quarter more, within sensible bounds; in bytes."""
    wanted = int(kv_bytes_per_token * max_model_len * _FULL_LENGTH_REQUESTS)
    return min(max(wanted, _LEAST_KV_CACHE), max(_MOST_DEFAULT_KV_CACHE, kv_bytes_per_token * max_model_len))


def default_max_model_len(model_limit: int | None, engine_kwargs: Mapping[str, Any]) -> int:
    """The context length in tokens: the user's, else the model's up to 8192."""
    asked = engine_kwargs.get("max_model_len")
    if isinstance(asked, int) and asked > 0:
        return asked
    return min(model_limit or DEFAULT_MAX_MODEL_LEN, DEFAULT_MAX_MODEL_LEN)


def check_memory(demands: list[Demand], hardware: Hardware) -> None:
    """Refuse what cannot fit, with the sum.

    Raises:
        StartError: the demands are larger than what is available now.
    """
    needed = sum(demand.each * demand.replicas for demand in demands) + int(_RAY)
    if needed <= hardware.memory_available:
        return
    rows = "; ".join(
        f"{d.replicas} × {d.phase}: {_gib(d.each)} (weights {_gib(d.weights)}, KV cache {_gib(d.kv_cache)})"
        for d in demands
    )
    raise StartError(
        f"Too little memory: {_gib(needed)} needed, {_gib(hardware.memory_available)} available of "
        f"{_gib(hardware.memory_total)}. {rows}; Ray: {_gib(_RAY)}.",
        "Free memory, choose a smaller model, or lower prefill.kv_cache_memory and decode.kv_cache_memory "
        "or engine_kwargs.max_model_len.",
    )


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
