"""What an engine's worker processes use for KV transfers, as seen from inside: independent signals for the proof.

`WorkerSignals` is mixed into vLLM's worker class (`worker_extension_cls`), so that vLLM's own `collective_rpc` asks
all workers of an engine, whatever runs them: the engine process, further processes, or Ray on several nodes.
"""

import asyncio
import contextlib
import json
import logging
import os
import re
import socket
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from diptych.serving.nixl_log import own_log

logger = logging.getLogger(__name__)

_METHOD = "diptych_signals"
_ANSWERS_WITHIN_S = 30.0
_MODULE = "diptych.serving.signals"
_OURS, _BESIDE = "WorkerSignals", "Beside:"

_LIBRARIES = re.compile(
    r"lib(?:plugin_\w+|nixl\w*|uc[pstm]\w*|fabric|efa|ibverbs|rdmacm|mlx5|cxi)(?:-[0-9a-f]{8})?\.so[.\d]*"
)
_BUILD = re.compile(r"-[0-9a-f]{8}(?=\.so)")
_RDMA_DEVICES = ("/dev/infiniband/", "/dev/cxi")
_EFA_NAMES = re.compile(r"rdmap|efa")


class WorkerSignals:
    """Mixed into vLLM's worker."""

    rank: int

    def diptych_signals(self) -> str:
        """This worker's signals, as JSON: vLLM's messages carry no objects."""
        return json.dumps(worker_signals(self.rank))


async def ask_workers(client: Any) -> list[dict[str, Any]]:
    """The signals of all workers of an engine; none when they do not answer in time, between two steps.

    Args:
        client: vLLM's front end (`AsyncLLM`).
    """
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN_S):
            answers = await client.collective_rpc(_METHOD)
    except Exception as error:
        logger.warning("The engine's workers told no signals: %s: %s", type(error).__name__, error)
        return []
    return [json.loads(answer) for answer in answers]


@cache
def __getattr__(name: str) -> Any:
    """`Beside:their:module:Class`: their extension of vLLM's worker and ours in one."""
    if not name.startswith(_BESIDE):
        raise AttributeError(f"module {_MODULE!r} has no attribute {name!r}")
    *module, theirs = name.removeprefix(_BESIDE).split(":")
    return type(theirs, (WorkerSignals, getattr(import_module(".".join(module)), theirs)), {})


def extension(theirs: str) -> str:
    """The name of vLLM's worker extension with ours in it; vLLM takes one.

    >>> extension(""), extension("their.module.Class")
    ('diptych.serving.signals.WorkerSignals', 'diptych.serving.signals.Beside:their:module:Class')
    """
    if not theirs or theirs.startswith(f"{_MODULE}."):
        return theirs or f"{_MODULE}.{_OURS}"
    return f"{_MODULE}.{_BESIDE}{theirs.replace('.', ':')}"


def worker_signals(rank: int, proc: Path = Path("/proc/self"), sys: Path = Path("/sys")) -> dict[str, Any]:
    """The signals of this process.

    Returns:
        `rank`, `pid`, `host` (node or pod);
        `backends` that NIXL's agent made; `libraries` of NIXL and below it that are mapped to be
        executed; `devices` that are open; `rails` and `warnings` from NIXL's log; `side_channel` (`host:port`, where
        the engine's handshakes are answered); `device_counters` (bytes since the device is there).
    """
    own_log.look()
    connectors = list(_connectors())
    return {
        "rank": rank,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "backends": sorted({name for each in connectors for name in _backends(each)}),
        "libraries": libraries(proc),
        "devices": open_devices(proc),
        "rails": own_log.rails,
        "side_channel": _side_channel(connectors),
        "warnings": own_log.warnings(),
        "device_counters": device_counters(proc, sys),
    }


def libraries(proc: Path) -> list[str]:
    """Names of the libraries of NIXL, UCX, libfabric and EFA that a process has mapped to be executed.

    Wheels put eight digits of a build into names; those are left out.
    """
    found = set()
    with contextlib.suppress(OSError), proc.joinpath("maps").open() as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and "x" in fields[1]:
                name = fields[5].rpartition("/")[2].removesuffix(" (deleted)")
                if _LIBRARIES.fullmatch(name):
                    found.add(_BUILD.sub("", name))
    return sorted(found)


def open_devices(proc: Path) -> list[str]:
    """The RDMA devices that a process has open."""
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in proc.joinpath("fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                target = str(descriptor.readlink())
                if target.startswith(_RDMA_DEVICES):
                    found.add(target)
    return sorted(found)


def device_counters(proc: Path, sys: Path) -> dict[str, dict[str, int]]:
    """Byte counters of the RDMA devices and network interfaces that a process sees.

    Network interfaces are read from the process's own network namespace; /sys may show another's.
    """
    counters = {}
    with contextlib.suppress(OSError):
        for device in sorted((sys / "class/infiniband").iterdir()):
            kind = "efa" if _is_efa(device) else "ib"
            counters[f"{kind}:{device.name}"] = _hardware_counters(device)
    with contextlib.suppress(OSError):
        for line in proc.joinpath("net/dev").read_text().splitlines()[2:]:
            name, _, numbers = line.partition(":")
            fields = numbers.split()
            counters[f"net:{name.strip()}"] = {"tx_bytes": int(fields[8]), "rx_bytes": int(fields[0])}
    return counters


def _is_efa(device: Path) -> bool:
    driver = device / "device/driver"
    return driver.resolve().name == "efa" if driver.exists() else bool(_EFA_NAMES.match(device.name))


def _hardware_counters(device: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for folder in sorted(device.glob("ports/*/hw_counters")):
        for file in sorted(folder.iterdir()):
            if file.name.endswith("_bytes"):
                with contextlib.suppress(OSError, ValueError):
                    found[file.name] = found.get(file.name, 0) + int(file.read_text())
    return found


def _connectors() -> Iterator[Any]:
    """The connectors of this process, those inside of others included; none where there is no KV transfer."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    if has_kv_transfer_group():
        outer = get_kv_transfer_group()
        yield outer
        yield from getattr(outer, "_connectors", ())


def _backends(connector: Any) -> list[str]:
    """What NIXL's agent made, as against what it was asked for."""
    agent = getattr(getattr(connector, "connector_worker", None), "nixl_wrapper", None)
    return list(getattr(agent, "backends", ()))


def _side_channel(connectors: list[Any]) -> str | None:
    """Where the engine answers handshakes, as its scheduler reckons it."""
    from vllm import envs

    workers = [each.connector_worker for each in connectors if getattr(each, "connector_worker", None)]
    if not workers:
        return None
    index = workers[0].vllm_config.parallel_config.data_parallel_index
    return f"{envs.VLLM_NIXL_SIDE_CHANNEL_HOST}:{envs.VLLM_NIXL_SIDE_CHANNEL_PORT + index}"
