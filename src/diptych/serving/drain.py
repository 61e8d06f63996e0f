"""Ends things without cutting answers short: Ray in a pod, as the pod's preStop hook, and a prefill replica.

`ray start --block` drains its node when it is told to end (SIGTERM): Serve takes its replicas away, which finish
the answers they are writing, RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S at most. KubeRay starts it from a shell, and a
shell that is the first process of a container may take no notice of the signal. So this tells Ray itself, and waits.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

_LOOK_EVERY_S = 0.5


async def wait_until_fetched(held: Callable[[], float], lease_s: float) -> bool:
    """Wait until decode has fetched what a prefill engine holds for it; True when it has before the lease ended.

    Args:
        held: the share of the engine's KV cache that is in use.
        lease_s: seconds after which the engine itself gives up what nobody fetched.
    """
    ends_at = time.monotonic() + lease_s
    while held() > 0:
        if time.monotonic() >= ends_at:
            return False
        await asyncio.sleep(_LOOK_EVERY_S)
    return True


def ray_start_process(proc: Path = Path("/proc")) -> int | None:
    """The process that `ray start --block` runs in; None where there is none."""
    for entry in sorted(proc.glob("[0-9]*"), key=lambda each: int(each.name)):
        try:
            words = entry.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it ended meanwhile
            continue
        program = next((at for at, word in enumerate(words[:3]) if Path(word).name == "ray"), None)
        if program is not None and words[program + 1 : program + 2] == ["start"] and "--block" in words:
            return int(entry.name)
    return None


def is_running(process: int, proc: Path = Path("/proc")) -> bool:
    """Whether it runs still; a zombie does not."""
    try:
        return proc.joinpath(str(process), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def drain(proc: Path = Path("/proc")) -> int:
    """Tell Ray to end, wait until it has; the pod's grace period bounds the wait. 0 also where no Ray runs."""
    process = ray_start_process(proc)
    if process is None:
        return 0
    os.kill(process, signal.SIGTERM)
    while is_running(process, proc):
        time.sleep(_LOOK_EVERY_S)
    return 0


if __name__ == "__main__":
    sys.exit(drain())
