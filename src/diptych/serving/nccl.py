"""NCCL's all-reduce over all GPUs of the cluster, measured from inside: `POST /diptych/v1/nccl`.

The engines hold every GPU and every EFA interface, and let others use them only from their own pods. So the image's
`all_reduce_perf` (nccl-tests, built with MPI) runs in those pods, beside the engines: mpirun in the one of this
replica, its daemons as Ray tasks in the others (`relay`). Nobody is answered well meanwhile. What comes of it is judged
outside.
"""

import asyncio
import contextlib
import logging
import os
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diptych.serving import children
from diptych.serving.relay import Relay

logger = logging.getLogger(__name__)

DEADLINE_S = 120.0
_LOOKED_WITHIN_S = 60.0
"""A node's first Ray task waits for a worker process."""
MPIRUN, PERF = "mpirun", "all_reduce_perf"
_PLACES = {MPIRUN: "/opt/amazon/openmpi/bin/mpirun", PERF: "/usr/local/bin/all_reduce_perf"}
_SIZES = ("-b", "8M", "-e", "128M", "-f", "2", "-g", "1", "-n", "10", "-c", "1")
_HANDED_ON = ("LD_LIBRARY_PATH", "FI_PROVIDER", "NCCL_DEBUG", "NCCL_DEBUG_FILE")
# NCCL's lines go beside the table: in between they would cut its rows in two.
_NCCL = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/dev/stderr"}
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_CLAIM, _NAMESPACE = "diptych-nccl", "diptych"
_INFO = "NCCL INFO"
_TELLS = re.compile(r"NET/|NET plugin|Using network|Selected provider")
_MOST_LINES = 300

BUSY = "NCCL is being measured in this cluster already. Wait for that run: it ends within three minutes."
Json = dict[str, Any]


class Busy(Exception):  # noqa: N818 - a refusal is no mishap
    """Another run is under way."""


@dataclass(frozen=True)
class GpuNode:
    """A Ray node with GPUs: its id, the address by which others reach it, and how many GPUs it has."""

    node_id: str
    host: str
    gpus: int

    @property
    def environment(self) -> dict[str, str]:
        """For what runs there: Ray hides the GPUs from processes that asked it for none."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(self.gpus)))}


class _Claim:
    """An actor whose name says that a run is under way; it ends with the replica that made it."""


async def measure(within_s: float = DEADLINE_S) -> Json:
    """What `/diptych/v1/nccl` answers: docs/json.md has its shape.

    Args:
        within_s: seconds after which the run is ended.

    Raises:
        Busy: another run is under way in this cluster.
    """
    import ray

    own = ray.get_runtime_context().get_node_id()
    nodes = gpu_nodes(await asyncio.to_thread(ray.nodes), own)
    programs = {name: _found(name) for name in _PLACES}
    lacking = [name for name, path in programs.items() if path is None]
    if why := _unmeasurable(nodes, lacking):
        return {"skipped": why}
    async with _claimed(own):
        paths = [path for path in programs.values() if path]
        lacks = await _lacking(nodes, paths)
        if lacks:
            return {"skipped": lacks}
        return await _measured(nodes, own, *paths, within_s=within_s)


def gpu_nodes(nodes: Sequence[Json], own: str) -> list[GpuNode]:
    """The nodes that are alive and have a GPU, out of what `ray.nodes()` tells; the one whose id is `own` first."""
    found = [
        GpuNode(each["NodeID"], each["NodeManagerAddress"], int(each["Resources"].get("GPU", 0)))
        for each in nodes
        if each["Alive"]
    ]
    return sorted(
        (each for each in found if each.gpus), key=lambda each: (each.node_id != own, each.host, each.node_id)
    )


def _unmeasurable(nodes: list[GpuNode], lacking: list[str]) -> str | None:
    """Why nothing can be measured, as far as it is seen from here; None: it can."""
    if len(nodes) < 2:
        return f"{'one node' if nodes else 'no node'} of the cluster has GPUs, and it takes two"
    if len({each.host for each in nodes}) < len(nodes):
        return "several of Ray's nodes have one address: mpirun can't tell them apart"
    return f"the image has no {' and no '.join(lacking)}" if lacking else None


def _found(name: str) -> str | None:
    return next((each for each in (_PLACES[name], shutil.which(name)) if each and _can_run(each)), None)


def _can_run(path: str) -> bool:
    return os.access(path, os.X_OK) and Path(path).is_file()


@contextlib.asynccontextmanager
async def _claimed(node_id: str) -> AsyncIterator[None]:
    """No other run in this cluster, whichever replica is asked for it.

    Raises:
        Busy: there is one.
    """
    import ray
    from ray.exceptions import ActorAlreadyExistsError

    make = ray.remote(num_cpus=0)(_Claim).options(
        name=_CLAIM, namespace=_NAMESPACE, scheduling_strategy=_on(node_id)
    )
    try:
        claim = await asyncio.to_thread(make.remote)
    except ActorAlreadyExistsError as error:
        raise Busy from error
    try:
        yield
    finally:
        ray.kill(claim)


def _on(node_id: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id, soft=False)


async def _lacking(nodes: list[GpuNode], paths: list[str]) -> str | None:
    """What a node lacks or why it can't be asked, in words; None where all have all."""
    told = await asyncio.gather(*(_asked(node, paths) for node in nodes))
    return next((f"node {node.host} {each}" for node, each in zip(nodes, told, strict=True) if each), None)


async def _asked(node: GpuNode, paths: list[str]) -> str | None:
    import ray

    call = _remote(missing, node).remote(paths)
    try:
        lacks = await asyncio.wait_for(call, _LOOKED_WITHIN_S)
    except Exception as error:
        return f"runs no task of ours: {str(error) or type(error).__name__}"
    finally:
        with contextlib.suppress(Exception):
            ray.cancel(call)
    return f"has no {' and no '.join(lacks)}" if lacks else None


def missing(paths: list[str]) -> list[str]:
    """Those of some programs that are not on this node."""
    return [path for path in paths if not _can_run(path)]


def daemon(command: str, environment: dict[str, str], mark: str, within_s: float) -> children.Ended:
    """Run a command of mpirun's on this node, until it and all that it started have ended."""
    shell = ["/bin/sh", "-c", command]
    return children.run(shell, environment, mark=mark, within_s=within_s, with_descendants=True)


def _remote(function: Any, node: GpuNode) -> Any:
    import ray

    return ray.remote(num_cpus=0, max_retries=0)(function).options(scheduling_strategy=_on(node.node_id))


async def _measured(nodes: list[GpuNode], own: str, mpirun: str, perf: str, *, within_s: float) -> Json:
    by_host = {node.host: node for node in nodes}
    run_id, began = uuid.uuid4().hex, time.monotonic()

    async def there(host: str, command: str) -> tuple[int, str]:
        node = by_host.get(host)
        if node is None:
            raise LookupError("none of Ray's nodes with GPUs has this address")
        left_s = max(1.0, within_s - (time.monotonic() - began))
        ended = await _awaited(node, command, f"{run_id}-{host}", left_s)
        return (255 if ended.code is None else ended.code), ended.output + ended.log

    stop = threading.Event()
    with tempfile.TemporaryDirectory(prefix="diptych-nccl-") as folder:
        relay = Relay(Path(folder), there)
        relaying = asyncio.create_task(relay.serve())
        environment = environment_of(next((each for each in nodes if each.node_id == own), None))
        command = mpi_command(mpirun, perf, nodes, relay.agent, within_s)
        running = asyncio.create_task(
            asyncio.to_thread(children.run, command, environment, mark=run_id, within_s=within_s, stop=stop)
        )
        try:
            ended = await asyncio.shield(running)
        finally:
            stop.set()
            relaying.cancel()
            _, of_relay = await asyncio.gather(running, relaying, return_exceptions=True)
            if isinstance(of_relay, Exception):
                logger.error("mpirun's calls were answered no longer.", exc_info=of_relay)
    return {
        "nodes": [{"host": node.host, "node_id": node.node_id, "gpus": node.gpus} for node in nodes],
        "exit_code": ended.code,
        "deadline_s": within_s,
        "took_s": round(time.monotonic() - began, 1),
        "output": _last(ended.output.splitlines()),
        "log": telling(ended.log),
    }


async def _awaited(node: GpuNode, command: str, mark: str, within_s: float) -> children.Ended:
    """Run mpirun's daemon as a task on a node; ended there when this is cancelled."""
    import ray

    call = _remote(daemon, node).remote(command, node.environment, mark, within_s)
    try:
        ended: children.Ended = await asyncio.shield(asyncio.wrap_future(call.future()))
        return ended
    except asyncio.CancelledError:
        ray.cancel(call)
        raise


def mpi_command(mpirun: str, perf: str, nodes: Sequence[GpuNode], agent: Path, within_s: float) -> list[str]:
    """What measures: a process for each GPU, over TCP as far as MPI is concerned, which only brings NCCL together."""
    parameters = {
        "plm_rsh_agent": str(agent),
        "plm_rsh_no_tree_spawn": "1",
        "orte_leave_session_attached": "1",  # else its daemons would leave the task that ends them
        "pml": "ob1",
        "btl": "tcp,self",
    }
    handed_on = [name for name in _HANDED_ON if name in os.environ or name in _NCCL]
    return [
        mpirun,
        *(each for name, value in parameters.items() for each in ("--mca", name, value)),
        *("--bind-to", "none", "--timeout", str(int(within_s) + 10)),
        *("--host", ",".join(f"{node.host}:{node.gpus}" for node in nodes)),
        *("-np", str(sum(node.gpus for node in nodes))),
        *(each for name in handed_on for each in ("-x", name)),
        perf,
        *_SIZES,
    ]


def environment_of(node: GpuNode | None) -> dict[str, str]:
    """What mpirun is started with on a node; None: on one without GPUs."""
    return _NCCL | _AS_ROOT | (node.environment if node else {})


def telling(log: str) -> str:
    """The lines of a log that say something: of NCCL's those on the network, each once; all others, the last ones."""
    seen: set[str] = set()
    kept = []
    for line in log.splitlines():
        _, is_nccls, said = line.partition(_INFO)
        if is_nccls and (said in seen or not _TELLS.search(said)):
            continue
        seen.add(said)
        kept.append(line)
    return _last(kept)


def _last(lines: list[str]) -> str:
    return "\n".join(lines[-_MOST_LINES:])
