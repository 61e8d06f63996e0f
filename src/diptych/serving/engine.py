"""The engines of both phases: Ray Serve LLM's vLLM engine, without what a small machine pays for nothing.

Ray has each engine start its workers as further processes, which import everything again and, on CPUs, spin on
shared memory after each request. With one worker per engine the engine process can do the work itself;
`InEngineExecutor` is vLLM's own in-process executor, bound to the phase's cores.
"""

import contextlib
import ctypes
import gc
import multiprocessing
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from ray import serve
from vllm import envs
from vllm.config.kv_events import KVEventsConfig
from vllm.v1.engine import utils as engine_utils
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.metrics.loggers import PrometheusStatLogger

from diptych.serving.admission import Room
from diptych.serving.lifeline import die_with_parent
from diptych.serving.ray_llm import CallbackBase, VLLMEngine
from diptych.serving.signals import extension

CORES_ENV = "DIPTYCH_CORES"
VLLM_LEASE_S = 30
CONNECTOR = "NixlConnector"
CONNECTOR_MODULE = "diptych.serving.connector"
SCHEDULING_POLICY = "priority"


class InEngineExecutor(UniProcExecutor):
    """Runs the model inside the engine process, on the replica's cores; ends when the replica ends.

    Its group of one process meets over a file: vLLM 0.26 would listen on every interface for nobody to come.
    """

    def _distributed_args(self) -> tuple[str, int, int]:
        _, rank, local_rank = super()._distributed_args()
        self._meeting_place = Path(tempfile.gettempdir()) / f"diptych_group_{uuid.uuid4().hex}"
        return f"file://{self._meeting_place}", rank, local_rank

    def _init_executor(self) -> None:
        die_with_parent()  # an engine without its replica serves nobody
        cores = os.environ.get(CORES_ENV)
        if cores:
            os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
        with one_group_for_all():
            super()._init_executor()
        self._meeting_place.unlink(missing_ok=True)
        return_freed_memory()


@contextlib.contextmanager
def one_group_for_all() -> Iterator[None]:
    """Let all of vLLM's process groups be the world group, which they equal in a world of one process.

    Each of its dozen Gloo groups would have a thread of its own that wakes a hundred times a second.
    """
    new_group = torch.distributed.new_group
    torch.distributed.new_group = lambda *_, **__: torch.distributed.group.WORLD
    try:
        yield
    finally:
        torch.distributed.new_group = new_group


def return_freed_memory() -> None:
    """Give back what loading the weights left behind: the C library keeps freed memory to itself otherwise."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def engine_process_forked() -> Iterator[None]:
    """Have vLLM fork its engine process off the replica instead of spawning it.

    A spawned process imports everything again: eight seconds of a core and half a gigabyte per engine. vLLM forks by
    default and spawns in Ray actors because CUDA does not survive a fork; a CPU engine has nothing to lose. No
    OpenMP thread may run yet, and none does: the replica computes nothing.
    """
    spawn_context = engine_utils.get_mp_context
    engine_utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    try:
        yield
    finally:
        engine_utils.get_mp_context = spawn_context


def own_cores(groups: str, rank: int) -> str:
    """The cores of the replica with this rank, out of `DIPTYCH_CORES` as it is deployed.

    >>> own_cores("0,1;2,3", 1)
    '2,3'
    """
    shares = groups.split(";")
    return shares[rank % len(shares)]


def keep_own_counters(client: Any, config: Any) -> None:
    """Have the engine count in vLLM's own metrics as well, where Ray's exporter has taken their place.

    `counters` reads them, and with them vitals, status and every proof.
    """
    manager = client.logger_manager
    if manager is not None and not any(type(each) is PrometheusStatLogger for each in manager.stat_loggers):
        manager.stat_loggers.append(PrometheusStatLogger(config, manager.engine_indexes))


def works_alone(parallel_config: Any) -> bool:
    """Whether an engine has one worker and no data-parallel siblings with which it meets at every step."""
    alone: bool = parallel_config.world_size == 1 and parallel_config.data_parallel_size == 1
    return alone


def records_nothing(transfer: Any) -> bool:
    """Whether a `kv_transfer_config` names vLLM's own NIXL connector, which keeps no record of a request's transfer."""
    return transfer.kv_connector == CONNECTOR and not transfer.kv_connector_module_path


class Engine(VLLMEngine):
    """Ray Serve LLM's engine; one with a single worker runs it in the engine process.

    What a configuration for Ray's own application leaves open is set as Diptych needs it: the connector that records
    KV transfers, and the scheduling policy without which priorities have no effect.
    """

    def __init__(self, llm_config: Any) -> None:
        groups = os.environ.get(CORES_ENV)
        if groups:
            os.environ[CORES_ENV] = own_cores(groups, serve.get_replica_context().rank.rank)
        super().__init__(llm_config)

    def _prepare_engine_config(self, *args: Any) -> Any:
        engine_args, frontend_args, config = super()._prepare_engine_config(*args)
        if works_alone(config.parallel_config):
            config.parallel_config.distributed_executor_backend = InEngineExecutor
        if "scheduling_policy" not in self.llm_config.engine_kwargs:
            engine_args.scheduling_policy = config.scheduler_config.policy = SCHEDULING_POLICY
        if config.kv_transfer_config is not None:
            if records_nothing(config.kv_transfer_config):
                config.kv_transfer_config.kv_connector_module_path = CONNECTOR_MODULE
            # A replacement takes its predecessor's port and so its id: decode would go on reading from the dead one.
            config.kv_transfer_config.engine_id += f"-{uuid.uuid4().hex[:8]}"
            config.parallel_config.worker_extension_cls = extension(
                config.parallel_config.worker_extension_cls
            )
        return engine_args, frontend_args, config

    def _start_async_llm_engine(self, engine_args: Any, config: Any, *args: Any) -> Any:
        alone_on_cpu = config.device_config.device_type == "cpu" and works_alone(config.parallel_config)
        with engine_process_forked() if alone_on_cpu else contextlib.nullcontext():
            client = super()._start_async_llm_engine(engine_args, config, *args)
        keep_own_counters(client, config)
        envs.enable_envs_cache()  # vLLM asks for some at every token; its engine process does the same at its start
        return client

    @property
    def client(self) -> Any:
        """vLLM's front end (`AsyncLLM`)."""
        return self._engine_client


class DecodeEngine(Engine):
    """A decode replica's engine, whose prefix cache can be followed.

    `kv_events_at` is where it publishes KV events (a ZeroMQ address), None where it does not.
    """

    kv_events_at: str | None = None

    def _prepare_engine_config(self, *args: Any) -> Any:
        engine_args, frontend_args, config = super()._prepare_engine_config(*args)
        own = config.kv_events_config
        if own is None and _can_publish(config):
            folder = tempfile.mkdtemp(prefix="dt-")  # sockets have short paths
            own = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=f"ipc://{folder}/kv")
            config.kv_events_config = own
        if own is not None and own.enable_kv_cache_events and own.publisher == "zmq":
            self.kv_events_at = own.endpoint.replace("*", "127.0.0.1")
        return engine_args, frontend_args, config


def _can_publish(config: Any) -> bool:
    return bool(config.cache_config.enable_prefix_caching) and config.parallel_config.data_parallel_size == 1


def kv_cache_tokens(client: Any) -> int | None:
    """How many tokens an engine's KV cache holds; None where vLLM does not tell."""
    held: int | None = client.vllm_config.cache_config.kv_cache_size_tokens
    return held


def has_ray_workers(client: Any) -> bool:
    """Whether an engine's workers are Ray's actors, and no processes of its own."""
    uses: bool = client.vllm_config.parallel_config.use_ray
    return uses


def lease_s(client: Any) -> float:
    """Seconds for which a prefill engine keeps KV cache that nobody fetches."""
    transfer = client.vllm_config.kv_transfer_config
    return float(transfer.get_from_extra_config("kv_lease_duration", VLLM_LEASE_S)) if transfer else 0.0


def room_of(client: Any) -> Room:
    """What an engine can hold of one sequence."""
    return Room(kv_cache_tokens(client), client.vllm_config.model_config.max_model_len)


def fetches_by_groups(client: Any) -> bool:
    """Whether the model keeps caches of several kinds (sliding windows, recurrent state).

    Of those vLLM's connector can't tell which blocks a failed KV transfer left without content.
    """
    config = client.vllm_config
    if config.scheduler_config.disable_hybrid_kv_cache_manager:
        return False
    model = config.model_config
    windowed = model.get_sliding_window() is not None or model.attention_chunk_size is not None
    return bool(model.is_hybrid or windowed)


class LocalModelCallback(CallbackBase):
    """For a model that is on this node already: skips Ray's download tasks and the two processes they leave."""

    async def on_before_node_init(self) -> None:
        self.ctx.run_init_node = False
