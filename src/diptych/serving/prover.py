"""What a decode replica has to prove its pairs: the probe, the proof, and what the cluster remembers of them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from diptych.serving.asked import asked_of, engine_asks
from diptych.serving.beside import Beside
from diptych.serving.canary import Canary
from diptych.serving.engine import kv_cache_tokens
from diptych.serving.gate import Gate
from diptych.serving.light import TOKENS
from diptych.serving.orchestrate import Orchestrator
from diptych.serving.probe import Probe, Wanted, versions, wanted
from diptych.serving.proof import Proof
from diptych.serving.ray_llm import remember, remembers
from diptych.serving.replicas import ask_replicas

logger = logging.getLogger(__name__)

_SIGNALS_WITHIN_S = 40.0
_LOOKS_WITHIN_S = 2 * _SIGNALS_WITHIN_S
_SPARE_TOKENS = 2


class Replica(Protocol):
    """What is needed of the decode replica."""

    @property
    def replica_name(self) -> str: ...

    generation: str

    async def signals(self) -> dict[str, Any]: ...


class Prover:
    """Of one decode replica.

    Args:
        replica: it.
        client: its engine client.
        runner: its orchestrator.
        canary: sends its prompts.
        prefill_handle: Ray Serve's handle to the prefill replicas.
        transport: as `asked.transport_of` returns it.
        application: the name under which Serve runs all this.
        model: the name that clients use.
    """

    def __init__(
        self,
        replica: Replica,
        client: Any,
        runner: Orchestrator,
        canary: Canary,
        *,
        prefill_handle: Any,
        transport: Mapping[str, Any],
        application: str,
        model: str,
    ) -> None:
        self._replica = replica
        self._config = client.vllm_config
        self._runner = runner
        self._prefill_handle = prefill_handle
        self._application = application
        self._model = model
        self.asked = asked_of(transport, engine_asks(client))
        held = kv_cache_tokens(client)
        most = self._config.model_config.max_model_len - _SPARE_TOKENS
        self.probe = Probe(
            canary.attempt,
            runner.peers,
            replica.signals,
            self._signals_of,
            decode_replica=replica.replica_name,
            most_tokens=most if held is None else min(most, held - _SPARE_TOKENS),
        )
        self.proof = Proof(
            self.probe,
            runner.peers,
            self.asked,
            tokens=max(runner.block_tokens + 1, TOKENS),
            period_s=runner.settings.canary_period_s,
            carried_nothing=canary.carried_nothing,
            beside=Beside(self.probe, canary),
            recurrent=self._recurrent,
        )

    async def _signals_of(self, name: str) -> dict[str, Any] | None:
        told = await ask_replicas(self._prefill_handle, "signals", within_s=_SIGNALS_WITHIN_S, only=name)
        return told[0] if told else None

    @property
    def _key(self) -> str:
        """Under which the cluster remembers a proof: of a generation, on what was asked for."""
        asked = [str(self.asked[name]) for name in ("backend", "provider", "allow_fallback")]
        return "/".join(["proven", self._application, self._replica.generation, *asked])

    async def pass_gate(self, ask_prefill: Callable[[], Awaitable[Any]]) -> None:
        """Wait at the start until a KV transfer is proven (`Gate`).

        Raises:
            RuntimeError: the transport is not what was asked for.
        """
        if self._runner.settings.prefill == "never":
            return
        gate = Gate(self.proof, self._runner.peers, ask_prefill)
        if await gate.passed(was_proven=await self._remembered(remembers)):
            await self._remembered(remember)

    async def _remembered(self, ask: Callable[[str], Any]) -> bool:
        """What the cluster's memory says; a head that can't be reached remembers nothing, and keeps nobody down."""
        try:
            return bool(await asyncio.to_thread(ask, self._key))
        except Exception as error:
            logger.warning("Ray's head could not be asked what was proven: %s", error)
            return False

    async def answer(self, body: bytes, siblings: Any, names: list[str]) -> dict[str, Any]:
        """What `/diptych/v1/probe` answers: of all pairs, one decode replica after the other.

        Args:
            body: of the request.
            siblings: Ray Serve's handle to the decode replicas.
            names: of the other ones.

        Raises:
            ValueError: the body can't be read; the message says why.
        """
        asked = wanted(body, self._runner.block_tokens)
        within_s = (asked.deadline_s + _LOOKS_WITHIN_S) * (1 + len(self._runner.peers.ready))
        found = await self.probe.pairs(asked)
        for name in names:
            of_sibling = await ask_replicas(
                siblings,
                "probe_here",
                list(asked.tokens),
                asked.repeat,
                within_s=within_s,
                only=name,
            )
            if not of_sibling:
                found["problems"].append(f"decode replica {name} did not answer")
            for each in of_sibling:
                found["pairs"] += each["pairs"]
                found["problems"] += each["problems"]
        return self._facts() | found

    async def probe_here(self, tokens: list[int], repeat: int) -> dict[str, Any]:
        """Probe this replica's own pairs."""
        return await self.probe.pairs(Wanted(tuple(tokens), repeat))

    @property
    def _recurrent(self) -> bool:
        """Whether the model keeps recurrent state."""
        model = self._config.model_config
        return bool(model.is_hybrid or model.has_inner_state)

    def _facts(self) -> dict[str, Any]:
        model = self._config.model_config
        return {
            "asked": self.asked,
            "versions": versions(),
            "block_tokens": self._runner.block_tokens,
            "recurrent": self._recurrent,
            "max_model_len": model.max_model_len,
            "model": self._model,
        }
