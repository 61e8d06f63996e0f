"""The start of a decode replica: it is not up before a KV transfer of its generation is proven.

The cluster remembers that one was. Then a replica that is started again waits for prefill a few seconds only: without
prefill it serves alone, `degraded`, which is better than not at all.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from diptych.serving.peers import Peers
from diptych.serving.proof import Proof

logger = logging.getLogger("ray.serve")  # who waits for the start looks there

RESTART_WAIT_S = 5.0
SAY_EVERY_S = 10.0
MOST_UNPROVEN = 5
"""KV transfers that arrive, and still do not prove the transport: then more of them won't."""
_LOOK_EVERY_S = 0.5


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
        self._unproven = 0
        self.stage = ""

    async def passed(self, *, was_proven: bool) -> bool:
        """Wait for the proof; True with it, False without one, a few seconds after the start of a proven generation.

        Raises:
            RuntimeError: the transport is not what was asked for; the message is the verdict.
        """
        limit_s = RESTART_WAIT_S if was_proven else None
        logger.info("Proving a KV transfer: decode is up when one has carried a prompt.")
        async with self._said():
            try:
                async with asyncio.timeout(limit_s):
                    await self._proven()
            except TimeoutError:
                logger.warning("No KV transfer yet (%s): decode serves alone until there is one.", self.stage)
                self._peers.has_transferred = True  # by those before us
                return False
        return True

    async def _proven(self) -> None:
        while True:
            await self._ask_prefill()
            ready = self._peers.ready
            if not ready:
                self.stage = f"waiting for a prefill replica of generation {self._peers.generation}"
            refused: RuntimeError | None = None
            for peer in ready:  # one good pair is enough, whichever is asked first
                try:
                    if not peer.is_aside() and await self._holds(peer.name):
                        return
                except RuntimeError as error:
                    refused = refused or error
            if refused:
                raise refused
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _holds(self, name: str) -> bool:
        self.stage = f"a KV transfer from {name}"
        judged = await self._proof.look(name)
        self.stage = judged.verdict.says
        if judged.holds:
            logger.info("%s", judged.verdict.says)
            return True
        if self._proof.allows_fallback:
            if judged.carried:
                logger.warning("Allowed by kv_transfer.allow_fallback: %s", judged.verdict.says)
            return judged.carried
        self._unproven += judged.carried
        if judged.is_contradicted or self._unproven >= MOST_UNPROVEN:
            raise RuntimeError(judged.verdict.says)
        return False

    @contextlib.asynccontextmanager
    async def _said(self) -> AsyncIterator[None]:
        """Say every few seconds what is waited for."""

        async def say() -> None:
            started = time.monotonic()
            while True:
                await asyncio.sleep(SAY_EVERY_S)
                logger.info(
                    "Not up yet, for %.0f s: %s", time.monotonic() - started, self.stage or "asking prefill"
                )

        saying = asyncio.create_task(say())
        try:
            yield
        finally:
            saying.cancel()
