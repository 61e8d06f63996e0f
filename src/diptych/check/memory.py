"""What each phase's memory is divided into, and what one KV transfer carries: the budget that `check` prints.

On GPUs `diptych.models` divides one GPU of a replica as vLLM would. On CPUs the KV cache has the size that the
document gives it, or that `up` would, and one replica's whole memory is shown.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from diptych.catalog.instances import GIB
from diptych.check.speculation import draft_model
from diptych.check.subject import PhaseView, Subject, positive
from diptych.errors import ModelError
from diptych.models import (
    Budget,
    ModelShape,
    WeightEstimate,
    image_tokens_of,
    kv_transfer_bytes,
    memory_budget,
)
from diptych.models.on_cpu import CHUNK_ACTIVATIONS, PROCESSES_PER_REPLICA, default_kv_cache
from diptych.render.layout import wants_efa

_KV_DTYPE_BYTES = {"auto": None, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
_TCP_GBPS = 0.3 * 8
"""What UCX was seen to reach over TCP between EC2 instances: 0.3 GB/s."""


@dataclass(frozen=True)
class PhaseMemory:
    """One phase's memory.

    Args:
        phase: "prefill", "decode" or "aggregated".
        device: what is divided, in words: "one l4 of g6.8xlarge".
        total_bytes: of that device; on CPUs, what one replica takes.
        budget: how it is divided.
    """

    phase: str
    device: str
    total_bytes: int
    budget: Budget


@dataclass(frozen=True)
class Unsized:
    """A phase whose memory can't be divided.

    Args:
        phase: as in `PhaseMemory`.
        field: the field to point at.
        why: in words.
        gpu_unknown: the model could be sized, the GPU is not known.
    """

    phase: str
    field: str
    why: str
    gpu_unknown: bool = False


@dataclass(frozen=True)
class Transfer:
    """One KV transfer of a sequence of `tokens`.

    Args:
        link: in words: "EFA of g6.8xlarge, 25 Gbit/s".
        gbps: 10^9 bits per second; None on this machine.
    """

    tokens: int
    size_bytes: int
    link: str
    gbps: float | None

    @property
    def seconds(self) -> float | None:
        """At the link's full speed, so at least."""
        return None if self.gbps is None else self.size_bytes * 8 / (self.gbps * 1e9)


@lru_cache(maxsize=8)
def memory_of(view: PhaseView) -> PhaseMemory | Unsized | None:
    """The memory of one phase; None if there is no config to size it by."""
    subject, shape = view.subject, view.subject.shape
    if shape is None or view.max_model_len is None:
        return None
    name = "aggregated" if not subject.is_split else view.name
    reason = _not_sized(view)
    if reason is not None:
        return Unsized(name, *reason)
    try:
        if not subject.on_gpu:
            return _on_cpu(view, shape, name)
        gpu = _gpu(view)
        if gpu is None:
            field = view.nodes_path("instance_type")
            return Unsized(name, field, "the nodes' GPUs are not known", gpu_unknown=True)
        budget = _budget(view, shape, gpu[1])
    except ModelError as error:
        return Unsized(name, "model.source", error.message)
    return PhaseMemory(name, gpu[0], gpu[1], budget)


def image_budget(view: PhaseView) -> Budget | None:
    """The budget with the largest image, which vLLM encodes at its start; None where it encodes none.

    Less exact than the one without: what the vision tower needs meanwhile is estimated.
    """
    memory, shape = memory_of(view), view.subject.shape
    tokens = image_tokens_of(shape) if shape is not None else None
    skipped = text_only(view) or view.resolved.get("skip_mm_profiling") is True
    if (
        shape is None
        or not isinstance(memory, PhaseMemory)
        or not view.subject.on_gpu
        or not tokens
        or skipped
    ):
        return None
    return _budget(view, shape, memory.total_bytes, image_tokens=tokens)


def transfer_of(subject: Subject) -> Transfer | None:
    """A KV transfer of the longest sequence; None if the phases are not apart or the model can't be sized."""
    if not subject.is_split or subject.shape is None or subject.phases[0].max_model_len is None:
        return None
    prefill, tokens = subject.phases[0], subject.phases[0].max_model_len
    try:
        size = kv_transfer_bytes(
            subject.shape,
            tokens,
            dtype=prefill.dtype,
            kv_dtype_bytes=_kv_dtype_bytes(prefill),
            block_size=prefill.block_size or 16,
        )
    except ModelError:
        return None
    return Transfer(tokens, size, *_link(subject))


def utilization(view: PhaseView) -> float:
    """The share of a GPU that the engine takes."""
    asked = view.resolved.get("gpu_memory_utilization")
    if isinstance(asked, int | float) and not isinstance(asked, bool):
        return float(asked)
    machine = view.subject.machine
    if machine is None or not machine.gpus:
        return 1.0
    wanted = sum(each.gpus_per_replica * each.section.num_replicas for each in view.subject.phases)
    return 0.9 * min(1.0, len(machine.gpus) / wanted)


def kv_cache_bytes(view: PhaseView) -> int | None:
    """The size that the document gives each replica's KV cache."""
    return positive(view.resolved.get("kv_cache_memory_bytes")) or view.section.kv_cache_memory


def _gpu(view: PhaseView) -> tuple[str, int] | None:
    """One GPU of the phase in words, and the memory that torch sees on it."""
    instance = view.group.instance if view.group else None
    if instance is not None and instance.gpu is not None:
        return f"one {instance.gpu} of {instance.name}", instance.usable_gpu_memory_bytes
    machine = view.subject.machine
    return ("one GPU here", min(machine.gpus)) if machine and machine.gpus else None


def _budget(view: PhaseView, shape: ModelShape, gpu_bytes: int, *, image_tokens: int = 0) -> Budget:
    sequences, tokens = _batch(view, gpu_bytes)
    weights = _weights(shape, view.dtype, view.tensor_parallel, view.pipeline_parallel, not text_only(view))
    budget = memory_budget(
        shape,
        gpu_bytes=gpu_bytes,
        utilization=utilization(view),
        max_model_len=view.max_model_len or 0,
        tensor_parallel=view.tensor_parallel,
        pipeline_parallel=view.pipeline_parallel,
        dtype=view.dtype,
        kv_dtype_bytes=_kv_dtype_bytes(view),
        block_size=view.block_size or 16,
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens,
        eager=view.resolved.get("enforce_eager") is True,
        prefix_caching=view.resolved.get("enable_prefix_caching") is True,
        weights=weights.gpu_bytes,
        vision=not text_only(view),
        image_tokens=image_tokens,
    )
    budget = replace(budget, notes=(*weights.notes, *budget.notes))
    fixed = kv_cache_bytes(view)
    return budget if fixed is None else replace(budget, requested=budget.requested - budget.kv_cache + fixed)


@lru_cache(maxsize=32)
def _weights(
    shape: ModelShape, dtype: str | None, tensor_parallel: int, pipeline_parallel: int, vision: bool
) -> WeightEstimate:
    """Counted once for phases that are alike: it is most of what a check takes."""
    return shape.weights(
        dtype=dtype, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel, vision=vision
    )


def _on_cpu(view: PhaseView, shape: ModelShape, name: str) -> PhaseMemory:
    budget = replace(
        _budget(view, shape, 1),
        activations=CHUNK_ACTIVATIONS,
        outside_torch=PROCESSES_PER_REPLICA,
        cuda_graphs=0,
    )
    per_token = shape.kv_bytes_per_token(_kv_dtype_bytes(view) or _element_bytes(view))
    kv_cache = kv_cache_bytes(view) or default_kv_cache(per_token, budget.max_model_len)
    total = budget.weights + budget.activations + budget.outside_torch + kv_cache
    return PhaseMemory(name, "one replica, host memory", total, replace(budget, requested=total))


def _batch(view: PhaseView, gpu_bytes: int) -> tuple[int, int]:
    """Sequences and tokens of one step: the document's, else vLLM's defaults by the GPU's memory."""
    instance = view.group.instance if view.group else None
    sequences, tokens = 256, 2048
    if gpu_bytes >= 160 * GIB:
        sequences, tokens = 1024, 16384
    elif gpu_bytes >= 70 * GIB and not (instance and instance.gpu == "a100"):
        sequences, tokens = 1024, 8192
    sequences = positive(view.kwargs.get("max_num_seqs")) or sequences
    tokens = positive(view.kwargs.get("max_num_batched_tokens")) or tokens
    return sequences, max(sequences, tokens)


def _not_sized(view: PhaseView) -> tuple[str, str] | None:
    """The field that makes the phase's memory unknowable, and why; None if nothing does."""
    kwargs: dict[str, Any] = view.kwargs
    kv_dtype = str(kwargs.get("kv_cache_dtype") or "auto")
    if kv_dtype not in _KV_DTYPE_BYTES:
        return view.path("kv_cache_dtype"), f"the size of a KV cache in {kv_dtype} is not known here"
    if kwargs.get("quantization") and "quantization_config" not in view.subject.config:
        why = f"weights that are quantised on loading ({kwargs['quantization']}) can't be sized by the config"
        return view.path("quantization"), why
    if kwargs.get("cpu_offload_gb"):
        return view.path(
            "cpu_offload_gb"
        ), "how much of the weights stays on the GPU depends on what is offloaded"
    drafting = draft_model(view)
    if drafting is not None:
        given = "speculative_config" if kwargs.get("speculative_config") else "spec_model"
        return view.path(
            given
        ), f"{drafting}, which drafts, has weights of its own, and they are not known here"
    if kwargs.get("enable_expert_parallel") and kwargs.get("data_parallel_size", 1) != 1:
        return view.path("enable_expert_parallel"), "experts are dealt out over data parallel ranks"
    if kwargs.get("decode_context_parallel_size", 1) not in (1, None):
        return view.path("decode_context_parallel_size"), "KV cache is dealt out over context parallel ranks"
    return None


def text_only(view: PhaseView) -> bool:
    """The engine leaves a vision tower out: no images, or nothing but text."""
    limits = view.kwargs.get("limit_mm_per_prompt")
    no_media = isinstance(limits, dict) and bool(limits) and not any(limits.values())
    return view.kwargs.get("language_model_only") is True or no_media


def _kv_dtype_bytes(view: PhaseView) -> int | None:
    return _KV_DTYPE_BYTES.get(str(view.kwargs.get("kv_cache_dtype") or "auto"))


def _element_bytes(view: PhaseView) -> int:
    return 4 if view.dtype == "float32" else 2


def _link(subject: Subject) -> tuple[str, float | None]:
    if subject.is_local:
        return "this machine's memory", None
    instances = [view.group.instance for view in subject.phases if view.group]
    known = [each for each in instances if each is not None]
    backend = subject.document.kv_transfer.backend
    if len(known) < len(instances):
        return "a network that is not known", None
    slower = min(known, key=lambda each: each.network_gbps)
    if wants_efa(subject.document) and backend != "UCX":
        return f"EFA of {slower.name}, {slower.network_gbps:g} Gbit/s", slower.network_gbps
    return "TCP, 0.3 GB/s as measured", min(_TCP_GBPS, slower.network_gbps)
