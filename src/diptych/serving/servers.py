"""The deployments' classes: what a prefill replica, a decode replica and a replica that does both add to Ray's.

Each follows its engine's vitals and answers `vitals()`; those that face clients build the HTTP application.
"""

import asyncio
import os
from typing import Any

from ray import serve

from diptych.serving.counters import read_counters
from diptych.serving.engine import Engine
from diptych.serving.front import build_front
from diptych.serving.legs import prefill_params
from diptych.serving.loopback import keep_replica_on_loopback
from diptych.serving.orchestrate import Orchestrator, Whole
from diptych.serving.ray_llm import (
    ChatCompletionRequest,
    DPPDDecodeServer,
    DPPDPrefillServer,
    DPServer,
    LLMServer,
    PDDecodeServer,
    PDOrchestratorMixin,
    PDPrefillServer,
    broadcast,
)
from diptych.serving.transfers import TAG
from diptych.serving.vitals import EngineVitals

_LOOK_EVERY_S = 1.0
_ASK_PREFILL_EVERY_S = 4.0
_ANSWERS_WITHIN_S = 2.0


class Phase:
    """What every replica has: an engine that is watched."""

    phase = ""
    _default_engine_cls = Engine
    engine: Engine
    _llm_config: Any
    _tasks: list["asyncio.Task[None]"]

    async def _start_engine(self) -> None:
        keep_replica_on_loopback()
        await self.engine.start()
        await self._warm_up()
        self._engine_vitals = EngineVitals(_engine_pid(self.engine.client))
        self._tasks = [asyncio.create_task(self._watch_engine())]

    async def _warm_up(self) -> None:
        """Answer one chat request to nobody: templates, tokenizers and kernels load now, not at the first client's."""
        hello = ChatCompletionRequest(
            model=self._llm_config.model_id, messages=[{"role": "user", "content": "Hello"}], max_tokens=1
        )
        async for _ in self.engine.chat(hello, None):
            pass

    async def _watch_engine(self) -> None:
        while self._engine_vitals.problem is None:
            await asyncio.sleep(_LOOK_EVERY_S)
            waiting = self.engine.client.output_processor.get_num_unfinished_requests()
            self._engine_vitals.look(waiting, read_counters()["steps"] if waiting else 0.0)
        self._engine_vitals.end()

    @property
    def engine_problem(self) -> str | None:
        """Why the engine counts as dead, or None."""
        client = self.engine.client
        if self._engine_vitals.problem is None and client is not None and client.errored:
            return "the engine reported a fatal error"
        return self._engine_vitals.problem

    async def check_health(self) -> None:
        """Called by Serve; raises when the engine is dead, whereupon Serve replaces this replica."""
        if self.engine_problem:
            raise RuntimeError(self.engine_problem)
        await super().check_health()  # type: ignore[misc]

    @property
    def replica_name(self) -> str:
        """This replica's name in Serve."""
        return _replica_name()

    async def vitals(self) -> dict[str, Any]:
        """This replica as `/diptych/v1/status` shows it."""
        return {
            "phase": self.phase,
            "replica": self.replica_name,
            "pid": os.getpid(),
            "engine_pid": self._engine_vitals.pid,
            "model": self._llm_config.model_id,
            "ready": self.engine_problem is None,
            "problem": self.engine_problem,
            "counters": read_counters(),
        }


class PrefillServer(Phase, PDPrefillServer):
    """A prefill replica."""

    phase = "prefill"

    async def prefill(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Compute the KV cache of one prompt and keep it for the decode replica that asks.

        Args:
            asked: `prompt` (as vLLM's front end renders it: its tokens), `id` (32 hexadecimal digits),
                `priority`, `trace_headers`.

        Returns:
            `kv_transfer_params` (where the KV cache lies; None without one), `cached_tokens` (found in this
            engine's prefix cache), `queue_ms` (waiting for the engine; None where it does not tell), `replica`.
        """
        outputs = self.engine.client.generate(
            asked["prompt"],
            prefill_params(),
            f"prefill-{TAG}{asked['id']}",
            priority=asked["priority"],
            trace_headers=asked["trace_headers"],
        )
        output = [each async for each in outputs][-1]
        return {
            "kv_transfer_params": output.kv_transfer_params,
            "cached_tokens": output.num_cached_tokens,
            "queue_ms": _queue_ms(output.metrics),
            "replica": self.replica_name,
        }


class AggregatedServer(Phase, LLMServer):
    """A replica that does both phases, facing clients."""

    phase = "aggregated"

    async def __init__(self, llm_config: Any, *, api_key_file: str | None = None) -> None:  # type: ignore[misc]
        self._api_key_file = api_key_file
        await super().__init__(llm_config)

    async def _start_engine(self) -> None:
        await super()._start_engine()
        client = self.engine.client
        client.generate = Whole(client).generate

    async def __serve_build_asgi_app__(self) -> Any:
        return build_front(await super().__serve_build_asgi_app__(), self, self._api_key_file)

    async def phases(self) -> dict[str, list[dict[str, Any]]]:
        """The replicas behind this endpoint, by phase."""
        return {self.phase: [await self.vitals()]}


class DecodeServer(Phase, PDDecodeServer):
    """A decode replica: faces clients and owns their requests, prefill elsewhere included."""

    phase = "decode"

    async def __init__(  # type: ignore[misc]
        self, llm_config: Any, *, prefill_server: Any, api_key_file: str | None = None
    ) -> None:
        self._api_key_file = api_key_file
        self._prefill_vitals: list[dict[str, Any]] = []
        await super().__init__(llm_config, prefill_server=prefill_server)
        self._tasks.append(asyncio.create_task(self._ask_prefill()))

    async def _start_engine(self) -> None:
        await super()._start_engine()
        client = self.engine.client
        client.generate = Orchestrator(client, self._prefill_handle, lambda: self.prefill_ready).generate

    async def __serve_build_asgi_app__(self) -> Any:
        # Past Ray's P/D class, which would re-point two routes at its own orchestrator: ours is below all routes.
        app = await super(PDOrchestratorMixin, self).__serve_build_asgi_app__()
        return build_front(app, self, self._api_key_file)

    @property
    def prefill_ready(self) -> bool:
        """Whether a prefill replica answered lately that its engine is alive."""
        return any(replica["ready"] for replica in self._prefill_vitals)

    async def _ask_prefill(self) -> None:
        while True:
            self._prefill_vitals = await _ask_all(self._prefill_handle)
            await asyncio.sleep(_ASK_PREFILL_EVERY_S)

    async def phases(self) -> dict[str, list[dict[str, Any]]]:
        """The replicas behind this endpoint, by phase, as of now."""
        self._prefill_vitals = await _ask_all(self._prefill_handle)
        return {"prefill": self._prefill_vitals, "decode": [await self.vitals(), *await self._siblings()]}

    async def _siblings(self) -> list[dict[str, Any]]:
        """The other decode replicas. A single one has none, and asks nobody."""
        settings = self._llm_config.deployment_config
        ranks = self._llm_config.engine_kwargs.get("data_parallel_size", 1)
        if settings.get("num_replicas", 1) * ranks == 1 and "autoscaling_config" not in settings:
            return []
        context = serve.get_replica_context()
        handle = serve.get_deployment_handle(context.deployment, context.app_name)
        told = await _ask_all(handle)
        return [one for one in told if one["replica"] != self.replica_name]


class DataParallelPrefillServer(PrefillServer, DPPDPrefillServer):
    """A rank of a data-parallel prefill replica: Ray starts and restarts all ranks of one together."""


class DataParallelAggregatedServer(AggregatedServer, DPServer):
    """A rank of a data-parallel replica that does both phases."""


class DataParallelDecodeServer(DecodeServer, DPPDDecodeServer):
    """A rank of a data-parallel decode replica; each rank faces clients."""


async def _ask_all(handle: Any) -> list[dict[str, Any]]:
    """The vitals of a deployment's replicas; nothing when one of them is gone or does not answer in time."""
    asked = asyncio.to_thread(broadcast, handle, "vitals")
    try:
        vitals: list[dict[str, Any]] = await asyncio.wait_for(asked, _ANSWERS_WITHIN_S)
    except Exception:
        return []
    return vitals


def _queue_ms(metrics: Any) -> float | None:
    if metrics is None or not metrics.scheduled_ts or not metrics.queued_ts:
        return None
    waited: float = metrics.scheduled_ts - metrics.queued_ts
    return round(waited * 1e3, 3)


def _engine_pid(client: Any) -> int | None:
    manager = getattr(client.engine_core.resources, "engine_manager", None)
    processes = getattr(manager, "processes", None) or [None]
    return getattr(processes[0], "pid", None)


def _replica_name() -> str:
    name: str = serve.get_replica_context().replica_id.unique_id
    return name
