"""What this machine has, and how the phases share it."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Hardware:
    """The processor cores this process may use, the memory in bytes, and the GPUs' memory in bytes."""

    cores: tuple[int, ...]
    memory_total: int
    memory_available: int
    gpus: tuple[int, ...] = ()


def detect() -> Hardware:
    """Look at this machine. Memory is bounded by the control group where there is one."""
    memory = psutil.virtual_memory()
    limit, used = _cgroup_memory()
    total = min(memory.total, limit)
    return Hardware(
        cores=tuple(sorted(_allowed_cores())),
        memory_total=total,
        memory_available=min(memory.available, total - used if limit < memory.total else memory.available),
        gpus=_gpu_memory(),
    )


def share_cores(cores: Sequence[int], wanted: Sequence[int | None]) -> list[tuple[int, ...]]:
    """Deal the cores out to replicas, each core to one replica where there are enough.

    Args:
        cores: the cores there are.
        wanted: cores per replica, in order; None for an equal share of what is left.

    >>> share_cores((0, 1), (None, None))
    [(0,), (1,)]
    >>> share_cores((0, 1, 2, 3), (1, None))
    [(0,), (1, 2, 3)]
    >>> share_cores((0,), (None, None))
    [(0,), (0,)]
    """
    asked = sum(count or 0 for count in wanted)
    open_replicas = sum(count is None for count in wanted)
    spare, extra = divmod(max(len(cores) - asked, 0), open_replicas) if open_replicas else (0, 0)
    shares, start = [], 0
    for count in wanted:
        size = count if count is not None else spare + (extra > 0)
        extra -= count is None and extra > 0
        size = max(size, 1)
        shares.append(tuple(cores[(start + i) % len(cores)] for i in range(min(size, len(cores)))))
        start += size
    return shares


def _allowed_cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _cgroup_memory() -> tuple[int, int]:
    """The memory limit and use of the control group in bytes; no limit reads as a very large one."""
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            with open(limit) as limit_file, open(used) as used_file:  # noqa: PTH123
                return int(limit_file.read()), int(used_file.read())
        except (OSError, ValueError):
            continue
    return 2**62, 0


def _gpu_memory() -> tuple[int, ...]:
    """The memory of each visible NVIDIA GPU in bytes; empty without a driver."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    sizes = tuple(int(line) * 2**20 for line in answer.stdout.split())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return sizes if visible is None else tuple(sizes[: len([v for v in visible.split(",") if v.strip()])])
