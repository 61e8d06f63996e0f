"""What the replicas have that face clients, and the deployment class of those that do both phases."""

import asyncio
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ray import serve

from diptych.serving import balancing
from diptych.serving.access import behind_haproxy
from diptych.serving.background import keep_going
from diptych.serving.cached import Cached
from diptych.serving.engine import room_of
from diptych.serving.front import build_front
from diptych.serving.phase import Phase
from diptych.serving.probe import versions
from diptych.serving.ray_llm import DPServer, LLMServer, replica_names
from diptych.serving.readiness import REFUSING, Readiness, readiness_of, together
from diptych.serving.recent import recent
from diptych.serving.replicas import ask_replicas
from diptych.serving.settings import Settings, settings_of
from diptych.serving.siblings import Siblings
from diptych.serving.whole import Whole

_RECORDS_WITHIN_S = 15.0
_READINESS_WITHIN_S = 1.0
_SIBLINGS_EVERY_S = 1.0
_BALANCE_EVERY_S = 0.5


class Facing(Phase):
    """A replica that faces clients: it builds their HTTP application, and knows whether it can answer them."""

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

    async def requests(self, since: float) -> dict[str, Any]:
        """What `/diptych/v1/requests` answers: records of requests that ended after `since`, of all replicas.

        Args:
            since: Unix seconds.
        """
        if self.is_alone:
            return recent.since(since)
        told = await ask_replicas(self.own_handle(), "own_requests", since, within_s=_RECORDS_WITHIN_S)
        return {
            "requests": [entry for one in told for entry in one["requests"]],
            "forgotten": any(one["forgotten"] for one in told),
        }

    async def own_requests(self, since: float) -> dict[str, Any]:
        """Those of this replica alone."""
        return recent.since(since)

    @property
    def is_alone(self) -> bool:
        """Whether no other replica faces clients."""
        settings = self._llm_config.deployment_config
        ranks = self._llm_config.engine_kwargs.get("data_parallel_size", 1)
        return (settings.get("num_replicas") or 1) * ranks == 1 and "autoscaling_config" not in settings

    def own_handle(self) -> Any:
        """Ray Serve's handle to this replica's own deployment."""
        context = serve.get_replica_context()
        return serve.get_deployment_handle(context.deployment, context.app_name)

    def readiness(self) -> Readiness:
        """Whether clients' requests can be answered here, and how well."""
        return readiness_of(self.engine_problem, None, self.settings)

    async def own_readiness(self) -> dict[str, Any]:
        """The same, as siblings ask for it."""
        return {"replica": self.replica_name, **self.readiness().to_json()}

    async def service_readiness(self) -> Readiness:
        """That of all replicas that face clients together.

        Of the others as of a second ago, or of when they last answered in time: `siblings`.
        """
        return together([await self.own_readiness(), *await self._siblings_told.get()])

    @cached_property
    def _siblings_told(self) -> Cached[list[Mapping[str, Any]]]:
        """The readiness of the other replicas that face clients, as they last told it."""
        return Cached(self._ask_siblings, _SIBLINGS_EVERY_S)

    @cached_property
    def _known_siblings(self) -> Siblings:
        return Siblings()

    async def _ask_siblings(self) -> list[Mapping[str, Any]]:
        if self.is_alone:
            return []
        handle = self.own_handle()
        told = await ask_replicas(handle, "own_readiness", within_s=_READINESS_WITHIN_S)
        others = [one for one in told if one["replica"] != self.replica_name]
        silent = self._known_siblings.names - {one["replica"] for one in others}
        return self._known_siblings.told(others, (replica_names(handle) or set()) if silent else set())

    def _balanced(self) -> "asyncio.Task[None]":
        return keep_going("Telling the balancer", self._tell_balancer)

    async def _tell_balancer(self) -> None:
        if self.is_alone:
            return
        await self._siblings_told.get()  # the first time is slow: Serve looks them up
        while True:
            balancing.here.avoid = await self._avoid()
            await asyncio.sleep(_BALANCE_EVERY_S)

    async def _avoid(self) -> str | None:
        """Why requests should go to another replica; None too where every other one would refuse them likewise.

        Then they come here and are told why, and an admin's are answered.
        """
        own = self.readiness()
        if not own.refuses:
            return None
        others = await self._siblings_told.get()
        return None if all(one["state"] in REFUSING for one in others) else own.why

    async def record_routing_stats(self) -> dict[str, Any]:
        """What Serve carries to its routers: whether this replica refuses prompts (`router.FacingRouter`)."""
        stats: dict[str, Any] = await super().record_routing_stats()  # type: ignore[misc]
        return stats if behind_haproxy() else stats | {"refuses": self.readiness().refuses}

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
        self._tasks.append(self._balanced())


class DataParallelAggregatedServer(AggregatedServer, DPServer):
    """A rank of a data-parallel replica that does both phases."""
