"""The deployments' classes: what a prefill replica, a decode replica and a replica that does both add to Ray's.

Each follows its engine's vitals and answers `vitals()`; those that face clients build the HTTP application.
"""

import asyncio
import contextlib
import os
from collections.abc import Mapping
from typing import Any

from ray import serve

from diptych.serving import metrics, tracing
from diptych.serving.asked import engine_asks, transport_of
from diptych.serving.canary import Canary
from diptych.serving.counters import read_counters
from diptych.serving.drain import wait_until_fetched
from diptych.serving.engine import DecodeEngine, Engine, fetches_by_groups, kv_cache_tokens, lease_s, room_of
from diptych.serving.front import build_front
from diptych.serving.generation import generation_of
from diptych.serving.legs import prefill_params
from diptych.serving.loopback import keep_replica_on_loopback
from diptych.serving.orchestrate import Orchestrator
from diptych.serving.outputs import computed_s, last_output, milliseconds, queued_s
from diptych.serving.peers import Peers
from diptych.serving.prefix import CacheFollower, follow
from diptych.serving.probe import versions
from diptych.serving.prover import Prover
from diptych.serving.ray_llm import (
    ChatCompletionRequest,
    DPPDDecodeServer,
    DPPDPrefillServer,
    DPServer,
    LLMServer,
    PDDecodeServer,
    PDPrefillServer,
)
from diptych.serving.readiness import CONTRADICTED, DEGRADED, Readiness, readiness_of
from diptych.serving.replicas import ask_replicas
from diptych.serving.serve_log import reopen_serve_log
from diptych.serving.settings import Settings, settings_of, within_lease
from diptych.serving.signals import ask_workers
from diptych.serving.surroundings import surroundings
from diptych.serving.transfers import TAG
from diptych.serving.vitals import EngineVitals
from diptych.serving.whole import Whole

_LOOK_EVERY_S = 1.0
_ASK_PREFILL_EVERY_S = 4.0
_ANSWERS_WITHIN_S = 2.0
_PREFILL_TELLS = ("kv_transfer_params", "problem", "cached_tokens", "queue_ms", "compute_ms")


class Phase:
    """What every replica has: an engine that is watched."""

    phase = ""
    _default_engine_cls: type[Engine] = Engine
    engine: Engine
    _llm_config: Any
    _tasks: list["asyncio.Task[Any]"]
    _digest = ""

    async def _start_engine(self) -> None:
        keep_replica_on_loopback()
        await self.engine.start()
        reopen_serve_log(serve.get_replica_context())
        await self._warm_up()
        self.generation = generation_of(self._digest, self._model)
        self._engine_vitals = EngineVitals(_engine_pid(self.engine.client))
        self._engine_dead = asyncio.Event()
        self._tasks = [asyncio.create_task(self._watch_engine())]

    @property
    def _model(self) -> str | None:
        source = self._llm_config.model_loading_config.model_source
        return source if isinstance(source, str) else None

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
        self._engine_dead.set()
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
            "generation": self.generation,
            "pid": os.getpid(),
            "engine_pid": self._engine_vitals.pid,
            "model": self._llm_config.model_id,
            "ready": self.engine_problem is None,
            "problem": self.engine_problem,
            "kv_cache_tokens": kv_cache_tokens(self.engine.client),
            "counters": read_counters(),
        }

    async def signals(self) -> dict[str, Any]:
        """What this replica and its engine's workers use for KV transfers, as of now; docs/json.md has the fields."""
        workers = await ask_workers(self.engine.client)
        return {
            "phase": self.phase,
            "replica": self.replica_name,
            "generation": self.generation,
            "model": self._llm_config.model_id,
            "pid": os.getpid(),
            "engine_pid": self._engine_vitals.pid,
            **surroundings(),
            "asked": engine_asks(self.engine.client),
            "workers": workers,
            "counters": read_counters(),
        }


class PrefillServer(Phase, PDPrefillServer):
    """A prefill replica."""

    phase = "prefill"

    async def __init__(self, llm_config: Any, *, digest: str = "") -> None:  # type: ignore[misc]
        self._digest = digest
        self._waiting: dict[str, int] = {}
        self._is_draining = False
        await super().__init__(llm_config)

    async def prefill(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Compute the KV cache of one prompt and keep it for the decode replica that asks.

        Args:
            asked: `prompt` (as vLLM's front end renders it: its tokens), `id` (32 hexadecimal digits),
                `generation` (of the decode replica), `uncached_tokens` (how many of them it expects to be computed),
                `priority`, `trace_headers`.

        Returns:
            `kv_transfer_params` (where the KV cache lies; None without one), `problem` (why there is none),
            `cached_tokens` (found in this engine's prefix cache), `queue_ms` (waiting for the engine) and
            `compute_ms` (until it was done), None where it does not tell, `waiting_tokens` (to be computed for
            prompts that still wait here), `replica`.
        """
        if asked.get("generation") != self.generation:
            return self._answer(problem=f"it is of generation {self.generation}")
        if self.engine_problem:
            return self._answer(problem=self.engine_problem)
        self._waiting[asked["id"]] = asked["uncached_tokens"]
        try:
            with tracing.continued(asked["trace_headers"], "diptych.prefill.engine") as there:
                output = await self._computed(
                    asked | {"trace_headers": there.headers or asked["trace_headers"]}
                )
        finally:
            self._waiting.pop(asked["id"], None)
        if output is None:
            return self._answer(problem=self.engine_problem)
        queue_ms = milliseconds(queued_s(output.metrics))
        compute_ms = milliseconds(computed_s(output.metrics))
        cached = output.num_cached_tokens or 0
        metrics.prefill_done(len(output.prompt_token_ids or ()) - cached, queue_ms, compute_ms, cached)
        return self._answer(
            kv_transfer_params=output.kv_transfer_params,
            cached_tokens=output.num_cached_tokens,
            queue_ms=queue_ms,
            compute_ms=compute_ms,
        )

    async def _computed(self, asked: dict[str, Any]) -> Any:
        """The engine's output; None when the engine dies before."""
        outputs = self.engine.client.generate(
            asked["prompt"],
            prefill_params(),
            f"prefill-{TAG}{asked['id']}",
            priority=asked["priority"],
            trace_headers=asked["trace_headers"],
        )
        computing = asyncio.ensure_future(last_output(outputs))
        dying = asyncio.ensure_future(self._engine_dead.wait())
        try:
            await asyncio.wait({computing, dying}, return_when=asyncio.FIRST_COMPLETED)
            return computing.result() if computing.done() else None
        finally:
            dying.cancel()
            if not computing.done():
                computing.cancel()
                with contextlib.suppress(Exception, asyncio.CancelledError):
                    await computing

    def _answer(self, **fields: Any) -> dict[str, Any]:
        told = {"waiting_tokens": self._waiting_tokens, "replica": self.replica_name}
        return dict.fromkeys(_PREFILL_TELLS) | told | fields

    @property
    def _waiting_tokens(self) -> int:
        return sum(self._waiting.values())

    async def vitals(self) -> dict[str, Any]:
        return await super().vitals() | {
            "waiting_tokens": self._waiting_tokens,
            "draining": self._is_draining,
        }

    async def __del__(self) -> None:
        """Called by Serve before it ends the replica; KV cache that decode is about to fetch stays so long."""
        self._is_draining = True
        has_started = getattr(self, "_engine_vitals", None) is not None  # else there is nothing to be fetched
        if has_started and not self.engine_problem:
            await wait_until_fetched(lambda: read_counters()["kv_cache_usage"], lease_s(self.engine.client))
        await asyncio.to_thread(tracing.flush)
        await super().__del__()


class Facing(Phase):
    """What the replicas have that face clients."""

    settings: Settings
    _access: Mapping[str, Any]
    runner: Whole

    async def __serve_build_asgi_app__(self) -> Any:
        # Past Ray's P/D class, which would re-point two routes at its own orchestrator: ours is below all routes.
        app = await LLMServer.__serve_build_asgi_app__(self)
        return build_front(app, self, self._access)

    async def phases(self) -> dict[str, list[dict[str, Any]]]:
        """The replicas behind this endpoint, by phase, as of now."""
        return {self.phase: [await self.vitals()]}

    def readiness(self) -> Readiness:
        """Whether clients' requests can be answered, and how well."""
        return readiness_of(self.engine_problem, None, self.settings)

    async def try_pairs(self) -> list[dict[str, Any]]:
        """One prompt of our own through each pair of replicas; none where one engine does both phases."""
        return []

    async def probe(self, body: bytes) -> dict[str, Any]:
        """What `/diptych/v1/probe` answers.

        Raises:
            ValueError: its body can't be read; the message says why.
        """
        problem = "one engine does both phases: there is no KV transfer"
        return {"asked": None, "versions": versions(), "pairs": [], "problems": [problem]}


class AggregatedServer(Facing, LLMServer):
    """A replica that does both phases, facing clients."""

    phase = "aggregated"

    async def __init__(  # type: ignore[misc]
        self,
        llm_config: Any,
        *,
        access: Mapping[str, Any] | None = None,
        orchestrator: Mapping[str, Any] | None = None,
        digest: str = "",
    ) -> None:
        self._access, self.settings, self._digest = access or {}, settings_of(orchestrator), digest
        await super().__init__(llm_config)

    async def _start_engine(self) -> None:
        await super()._start_engine()
        client = self.engine.client
        self.runner = Whole(client, self.settings, room_of(client))
        client.generate = self.runner.generate


class DecodeServer(Facing, PDDecodeServer):
    """A decode replica: faces clients and owns their requests, prefill elsewhere included."""

    phase = "decode"
    _default_engine_cls = DecodeEngine
    engine: DecodeEngine
    runner: Orchestrator

    async def __init__(  # type: ignore[misc]
        self,
        llm_config: Any,
        *,
        prefill_server: Any,
        access: Mapping[str, Any] | None = None,
        orchestrator: Mapping[str, Any] | None = None,
        transport: Mapping[str, Any] | None = None,
        gated: bool = True,
        digest: str = "",
    ) -> None:
        self._access, self.settings, self._digest = access or {}, settings_of(orchestrator), digest
        self._transport = transport_of(transport)
        self._prefill_vitals: list[dict[str, Any]] = []
        await super().__init__(llm_config, prefill_server=prefill_server)
        if gated:
            await self.prover.pass_gate(self._prefill_while_alive)
        else:  # prefill may have no replica at all, and that is as it should be
            self.runner.peers.has_transferred = True
        self._tasks += [
            asyncio.create_task(self._ask_prefill()),
            asyncio.create_task(self.prover.proof.watch()),
            asyncio.create_task(self._set_gauges()),
        ]

    async def _start_engine(self) -> None:
        await super()._start_engine()
        client, cached = self.engine.client, CacheFollower()
        if self.engine.kv_events_at:
            self._tasks.append(asyncio.create_task(follow(self.engine.kv_events_at, cached)))
        self.runner = Orchestrator(
            client,
            self._prefill_handle,
            Peers(self.generation),
            settings=within_lease(self.settings, lease_s(client)),
            room=room_of(client),
            cached=cached,
            own_salt=fetches_by_groups(client),
        )
        self.canary = Canary(self.runner, self.settings.canary_period_s)
        await self.canary.measure_here(client)
        client.generate = self.runner.generate
        self.prover = Prover(
            self,
            client,
            self.runner,
            self.canary,
            prefill_handle=self._prefill_handle,
            transport=self._transport,
            application=serve.get_replica_context().app_name,
            model=self._llm_config.model_id,
        )

    async def _prefill_while_alive(self) -> list[dict[str, Any]]:
        if self.engine_problem:
            raise RuntimeError(self.engine_problem)
        return await self._prefill_now()

    async def _ask_prefill(self) -> None:
        while True:
            await self._prefill_now()
            await asyncio.sleep(_ASK_PREFILL_EVERY_S)

    async def _set_gauges(self) -> None:
        while True:
            state, proof = self.readiness().state, self.prover.proof
            metrics.set_gauges(self.runner.gauges(state == DEGRADED))
            fallback = proof.fallback is not None
            metrics.set_proofs(proof.gauges(), contradicted=state == CONTRADICTED, fallback=fallback)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _prefill_now(self) -> list[dict[str, Any]]:
        """The prefill replicas as of now; among them those that Serve takes away while they compute for us."""
        vitals = await _ask_all(self._prefill_handle)
        known = {one["replica"] for one in vitals}
        missed = [peer.name for peer in self.runner.peers if peer.own_tokens and peer.name not in known]
        alone = await asyncio.gather(*(_ask_all(self._prefill_handle, name) for name in missed))
        vitals += [one | {"draining": True} for told in alone for one in told]
        self.runner.peers.update(vitals)
        return vitals

    def readiness(self) -> Readiness:
        return readiness_of(self.engine_problem, self.runner.peers, self.settings, self.prover.proof)

    async def try_pairs(self) -> list[dict[str, Any]]:
        await self._prefill_now()
        return [await self.canary.attempt(peer.name) for peer in self.runner.peers.ready]

    async def probe(self, body: bytes) -> dict[str, Any]:
        await self._prefill_now()
        siblings = [each["replica"] for each in await self._siblings()]
        return await self.prover.answer(body, self._own_handle(), siblings)

    async def probe_here(self, tokens: list[int], repeat: int) -> dict[str, Any]:
        """Probe this replica's own pairs, for a sibling that was asked."""
        return await self.prover.probe_here(tokens, repeat)

    async def phases(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "prefill": await self._prefill_now(),
            "decode": [await self.vitals(), *await self._siblings()],
        }

    async def _siblings(self) -> list[dict[str, Any]]:
        """The other decode replicas. A single one has none, and asks nobody."""
        settings = self._llm_config.deployment_config
        ranks = self._llm_config.engine_kwargs.get("data_parallel_size", 1)
        if (settings.get("num_replicas") or 1) * ranks == 1 and "autoscaling_config" not in settings:
            return []
        told = await _ask_all(self._own_handle())
        return [one for one in told if one["replica"] != self.replica_name]

    def _own_handle(self) -> Any:
        context = serve.get_replica_context()
        return serve.get_deployment_handle(context.deployment, context.app_name)


class DataParallelPrefillServer(PrefillServer, DPPDPrefillServer):
    """A rank of a data-parallel prefill replica: Ray starts and restarts all ranks of one together."""


class DataParallelAggregatedServer(AggregatedServer, DPServer):
    """A rank of a data-parallel replica that does both phases."""


class DataParallelDecodeServer(DecodeServer, DPPDDecodeServer):
    """A rank of a data-parallel decode replica; each rank faces clients."""


async def _ask_all(handle: Any, only: str | None = None) -> list[dict[str, Any]]:
    """The vitals of a deployment's replicas, or of one."""
    return await ask_replicas(handle, "vitals", within_s=_ANSWERS_WITHIN_S, only=only)


def _engine_pid(client: Any) -> int | None:
    manager = getattr(client.engine_core.resources, "engine_manager", None)
    processes = getattr(manager, "processes", None) or [None]
    return getattr(processes[0], "pid", None)


def _replica_name() -> str:
    name: str = serve.get_replica_context().replica_id.unique_id
    return name
