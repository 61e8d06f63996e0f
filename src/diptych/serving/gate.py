"""The start of a decode replica: it is not up before a KV transfer of its generation is proven.

The cluster remembers that one was. Then a replica that is started again waits for prefill a few seconds only, and a
minute for the proof where prefill is there: without it serves alone, `degraded`, which is better than not at all.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from diptych.serving.peers import Peer, Peers
from diptych.serving.probe import problem_of
from diptych.serving.proof import Judged, Proof

logger = logging.getLogger("ray.serve")  # who waits for the start looks there

PREFILL_WAIT_S, PROOF_WAIT_S = 5.0, 60.0
"""So long a replica that is started again waits for a prefill replica, and for the proof while there is one."""
SAY_EVERY_S = 10.0
MOST_UNPROVEN = 5
"""KV transfers of a pair that arrive, and still do not prove its transport: then more of them won't."""
WAY_OUT = (
    "docs/proof.md#transport says what sets each signal. To start on what is in use all the same, set "
    "kv_transfer.allow_fallback: true in the document (`diptych verify --allow-fallback` then puts up with it, too)."
)
_LOOK_EVERY_S = 0.5
_LONGEST_PAUSE_S = 60.0


@dataclass
class _Tries:
    """What was tried of one pair since its prefill replica is ready.

    Args:
        count: how often.
        unproven: how often a KV transfer arrived that proved nothing.
        next_at: when to try again, on `time.monotonic`'s clock.
        refusal: the verdict that more tries won't change, as far as can be told; None: there is none.
    """

    count: int = 0
    unproven: int = 0
    next_at: float = 0.0
    refusal: str | None = None

    def take(self, judged: Judged) -> None:
        """Note a try that did not prove the pair."""
        self.unproven += judged.carried and not judged.is_contradicted
        is_refused = judged.is_contradicted or self.unproven >= MOST_UNPROVEN
        self.refusal = judged.verdict.says if is_refused else None
        self.next_at = time.monotonic() + min(_LONGEST_PAUSE_S, _LOOK_EVERY_S * 2.0 ** min(self.count, 10))
        self.count += 1


class Gate:
    """Holds a decode replica back until a KV transfer is proven.

    Args:
        proof: of its pairs.
        peers: the prefill replicas.
        ask_prefill: brings `peers` up to date.
    """

    def __init__(self, proof: Proof, peers: Peers, ask_prefill: Callable[[], Awaitable[Any]]) -> None:
        self._proof = proof
        self._peers = peers
        self._ask_prefill = ask_prefill
        self._tries: dict[str, _Tries] = {}
        self.stage = ""

    async def passed(self, *, was_proven: bool) -> bool:
        """Wait for the proof; True with it, False without one, some time after the start of a proven generation.

        Raises:
            RuntimeError: the transport is not what was asked for; the message is the verdict, and what to do.
        """
        logger.info("Proving a KV transfer: decode is up when one has carried a prompt.")
        async with self._beside(self._say()), self._beside(self._ask()) as asking:
            proving = asyncio.create_task(self._proven())
            try:
                is_over = await self._waited({proving, asking}, until_given_up=was_proven)
            finally:
                proving.cancel()
        if is_over:
            return True
        logger.warning("No KV transfer yet (%s): decode serves alone until there is one.", self.stage)
        self._peers.has_transferred = True  # by those before us
        return False

    async def _waited(self, tasks: "set[asyncio.Task[None]]", *, until_given_up: bool) -> bool:
        """Wait until one of the tasks ends, whose error is raised; False where there is no proof for too long."""
        began = time.monotonic()
        while True:
            done, _ = await asyncio.wait(tasks, timeout=_LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
                return True
            limit_s = PROOF_WAIT_S if self._peers.ready else PREFILL_WAIT_S
            if until_given_up and time.monotonic() - began > limit_s:
                return False

    async def _ask(self) -> None:
        """Keep the peers up to date: one that is lost while it is probed must not be waited for."""
        while True:
            await self._ask_prefill()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _proven(self) -> None:
        while True:
            ready = self._peers.ready
            self._tries = {peer.name: self._tries.get(peer.name) or _Tries() for peer in ready}
            if not ready:
                self.stage = self._lacking()
            for peer in ready:  # one good pair is enough, whichever is asked first
                tries = self._tries[peer.name]
                if time.monotonic() >= tries.next_at and await self._holds(peer, tries):
                    return
            self._end_if_refused()
            await asyncio.sleep(_LOOK_EVERY_S)

    def _end_if_refused(self) -> None:
        refusals = [tries.refusal for tries in self._tries.values()]
        if refusals and all(refusals) and not self._proof.allows_fallback:
            raise RuntimeError(f"{refusals[0]} {WAY_OUT}")

    def _lacking(self) -> str:
        generation = self._peers.generation
        told = [problem for peer in self._peers if (problem := problem_of(peer, generation))]
        return "; ".join([f"waiting for a prefill replica of generation {generation}", *told])

    async def _holds(self, peer: Peer, tries: _Tries) -> bool:
        self.stage = f"a KV transfer from {peer.name}"
        judged = await self._proof.look(peer.name)
        self.stage = judged.verdict.says
        if judged.holds:
            logger.info("%s", judged.verdict.says)
            return True
        if self._proof.allows_fallback and judged.carried:
            logger.warning("Allowed by kv_transfer.allow_fallback: %s", judged.verdict.says)
            return True
        tries.take(judged)
        return False

    async def _say(self) -> None:
        """Say every few seconds what is waited for."""
        began = time.monotonic()
        while True:
            await asyncio.sleep(SAY_EVERY_S)
            waited_s = time.monotonic() - began
            logger.info("Not up yet, for %.0f s: %s", waited_s, self.stage or "asking prefill")

    @staticmethod
    @contextlib.asynccontextmanager
    async def _beside(work: Any) -> "AsyncIterator[asyncio.Task[None]]":
        """Have something done meanwhile."""
        task = asyncio.create_task(work)
        try:
            yield task
        finally:
            task.cancel()
