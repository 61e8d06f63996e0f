"""What this machine has, and how the phases share it."""

import contextlib
import math
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
        cores=tuple(sorted(_allowed_cores()))[: _core_quota()],
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
                return int(limit_file.read()), int(used_file.read()) - _reclaimable(limit)
        except (OSError, ValueError):
            continue
    return 2**62, 0


def _reclaimable(limit_path: str) -> int:
    """The control group's page cache that the kernel gives up when memory is asked for, in bytes."""
    statistics = Path(limit_path).with_name("memory.stat")
    with contextlib.suppress(OSError, ValueError):
        for line in statistics.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    return 0


def _core_quota() -> int | None:
    """How many cores the control group's quota is worth, rounded up; None without one."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(math.ceil(int(quota) / int(period)), 1)
    return None


def _gpu_memory() -> tuple[int, ...]:
    """The memory of each visible NVIDIA GPU in bytes; empty without a driver."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    sizes = [int(line) * 2**20 for line in answer.stdout.split("\n") if line.strip().isdecimal()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(sizes) if visible is None else tuple(_visible(sizes, visible))


def _visible(sizes: list[int], visible: str) -> list[int]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves; like CUDA, stops at the first entry that names none."""
    chosen = []
    for entry in visible.split(","):
        index = entry.strip()
        if index.isdecimal() and int(index) < len(sizes):
            chosen.append(sizes[int(index)])
        elif index.startswith("GPU-") and len(chosen) < len(sizes):
            chosen.append(min(sizes))
        else:
            break
    return chosen
