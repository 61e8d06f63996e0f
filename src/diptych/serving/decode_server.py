"""The deployment class of a decode replica."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from ray import serve

from diptych.serving import metrics
from diptych.serving.asked import transport_of
from diptych.serving.background import keep_going
from diptych.serving.canary import Canary
from diptych.serving.engine import DecodeEngine, fetches_by_groups, lease_s, room_of
from diptych.serving.facing import Facing
from diptych.serving.first_token import FirstTokens, draws_alike
from diptych.serving.orchestrate import Orchestrator
from diptych.serving.peers import Peers
from diptych.serving.prefix import CacheFollower, follow
from diptych.serving.prover import Prover
from diptych.serving.ray_llm import DPPDDecodeServer, PDDecodeServer, replica_names
from diptych.serving.readiness import CONTRADICTED, DEGRADED, Readiness, readiness_of
from diptych.serving.replicas import ask_replicas
from diptych.serving.settings import settings_of, within_lease

_GAUGES_EVERY_S = 1.0
_ASK_PREFILL_EVERY_S = 4.0
_ANSWERS_WITHIN_S = 2.0


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
        await super().__init__(llm_config, prefill_server=prefill_server)
        if gated:
            await self.prover.pass_gate(self._prefill_while_alive)
        else:  # prefill may have no replica at all, and that is as it should be
            self.runner.peers.has_transferred = True
        self._tasks += self._beside_requests()

    def _beside_requests(self) -> list["asyncio.Task[None]"]:
        return [
            keep_going("Asking prefill", self._ask_prefill),
            keep_going("Proving the transport", self.prover.proof.watch),
            keep_going("Setting the gauges", self._set_gauges),
            self._balanced(),
        ]

    async def _start_engine(self) -> None:
        await super()._start_engine()
        client, cached = self.engine.client, CacheFollower()
        by_groups = fetches_by_groups(client)
        if self.engine.kv_events_at:
            following = partial(follow, self.engine.kv_events_at, cached)
            self._tasks.append(keep_going("Following the prefix cache", following))
        self.runner = Orchestrator(
            client,
            self._prefill_handle,
            Peers(self.generation),
            settings=within_lease(self.settings, lease_s(client)),
            room=room_of(client),
            cached=cached,
            own_salt=by_groups,
            lease_s=lease_s(client),
            first_tokens=None if by_groups else self._first_tokens(client),
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

    def _first_tokens(self, client: Any) -> FirstTokens | None:
        may = self.settings.first_token == "prefill" and draws_alike(client.vllm_config)
        return FirstTokens(client) if may else None

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
            await asyncio.sleep(_GAUGES_EVERY_S)

    async def _prefill_now(self) -> list[dict[str, Any]]:
        """The prefill replicas as of now; among them those that Serve takes away while they compute for us."""
        vitals = await _ask_all(self._prefill_handle)
        answered = {one["replica"] for one in vitals}
        missed = [peer.name for peer in self.runner.peers if peer.own_tokens and peer.name not in answered]
        alone = await asyncio.gather(*(_ask_all(self._prefill_handle, name) for name in missed))
        staying = (replica_names(self._prefill_handle) or set()) if missed else set()
        for told in alone:  # one that only was late is not being taken away
            vitals += [one if one["replica"] in staying else one | {"draining": True} for one in told]
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
        return await self.prover.answer(body, self.own_handle(), siblings)

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
        if self.is_alone:
            return []
        told = await _ask_all(self.own_handle())
        return [one for one in told if one["replica"] != self.replica_name]


class DataParallelDecodeServer(DecodeServer, DPPDDecodeServer):
    """A rank of a data-parallel decode replica; each rank faces clients."""


async def _ask_all(handle: Any, only: str | None = None) -> list[dict[str, Any]]:
    """The vitals of a deployment's replicas, or of one."""
    return await ask_replicas(handle, "vitals", within_s=_ANSWERS_WITHIN_S, only=only)
