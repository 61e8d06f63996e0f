"""Attention backends: what vLLM takes where nobody names one."""

from typing import Any

from diptych.check.subject import WITHOUT_BFLOAT16, PhaseView, Subject

DEFAULT_BACKENDS = {
    "v100": ("TRITON_ATTN", "TRITON_MLA"),
    "t4": ("FLASHINFER", "TRITON_MLA"),
    "a10g": ("FLASH_ATTN", "TRITON_MLA"),
    "l4": ("FLASH_ATTN", "TRITON_MLA"),
    "l40s": ("FLASH_ATTN", "TRITON_MLA"),
    "a100": ("FLASH_ATTN", "TRITON_MLA"),
    "h100": ("FLASH_ATTN", "FLASH_ATTN_MLA"),
    "h200": ("FLASH_ATTN", "FLASH_ATTN_MLA"),
    "b200": ("FLASHINFER", "FLASHINFER_MLA"),
    "b300": ("FLASHINFER", "FLASHINFER_MLA"),
    "rtx-pro-4500": ("FLASH_ATTN", "TRITON_MLA"),
    "rtx-pro-server-6000": ("FLASH_ATTN", "TRITON_MLA"),
}
"""What vLLM 0.26 and 0.29 choose by GPU (`platforms/cuda.py`): for attention with heads, and for latent attention."""

ON_CPU = "CPU_ATTN"


def default_backend(view: PhaseView) -> str | None:
    """The backend that vLLM chooses for a phase; None where its GPU is not known."""
    if not view.subject.on_gpu:
        return ON_CPU
    instance = view.group.instance if view.group else None
    backends = DEFAULT_BACKENDS.get(instance.gpu or "") if instance else None
    return backends[view.subject.is_mla] if backends else None


def common_backends(subject: Subject) -> str:
    """Backends that the GPUs of all phases have, in words. T4 and V100 are older than FlashAttention 2."""
    if subject.is_mla:
        return "TRITON_MLA"
    instances = [view.group.instance for view in subject.phases if view.group]
    old = any(each is not None and each.gpu in WITHOUT_BFLOAT16 for each in instances)
    return "TRITON_ATTN" if old else "FLASH_ATTN or TRITON_ATTN"


def backend(view: PhaseView) -> Any:
    """The backend that a phase has: the one it names, in capitals as vLLM reads it, else the default one."""
    named = view.kwargs.get("attention_backend")
    if named is None or str(named).lower() == "auto":
        return default_backend(view)
    return named.upper() if isinstance(named, str) else named
