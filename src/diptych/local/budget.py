"""Memory: how much each phase gets, and whether the machine has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diptych.catalog.instances import GIB
from diptych.errors import StartError
from diptych.local.hardware import Hardware
from diptych.models.on_cpu import CHUNK_ACTIVATIONS, PROCESSES_PER_REPLICA, RAY

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
        return PROCESSES_PER_REPLICA + CHUNK_ACTIVATIONS + self.weights + self.kv_cache


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
    needed = sum(demand.each * demand.replicas for demand in demands) + RAY
    if needed <= hardware.memory_available:
        return
    rows = "; ".join(
        f"{d.replicas} × {d.phase}: {_gib(d.each)} (weights {_gib(d.weights)}, KV cache {_gib(d.kv_cache)})"
        for d in demands
    )
    raise StartError(
        f"Too little memory: {_gib(needed)} needed, {_gib(hardware.memory_available)} available of "
        f"{_gib(hardware.memory_total)}. {rows}; Ray: {_gib(RAY)}.",
        "Free memory, choose a smaller model, or lower prefill.kv_cache_memory and decode.kv_cache_memory "
        "or engine_kwargs.max_model_len.",
    )


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
