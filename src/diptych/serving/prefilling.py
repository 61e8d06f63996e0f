"""Prefill elsewhere: one prompt's call to a prefill replica, and to another one when that fails."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Mapping
from typing import Any

from ray.exceptions import TaskCancelledError
from ray.serve.exceptions import RequestCancelledError

from diptych.serving import tracing
from diptych.serving.costs import Costs
from diptych.serving.legs import prefill_prompt
from diptych.serving.outputs import milliseconds
from diptych.serving.peers import Peer, Peers
from diptych.serving.record import LOWEST_PRIORITY, Leg
from diptych.serving.settings import Settings

logger = logging.getLogger(__name__)

MOST_ATTEMPTS = 2
_EXPECTED_TIMES = 4
_UNKNOWN_COST_S = 300.0
"""What a prefill may take before a KV transfer is proven: the first ones load kernels, and no client waits for them."""
_STARTS_WITHIN_S = 900.0
_CANCELLED = (asyncio.CancelledError, RequestCancelledError, TaskCancelledError)
"""When a client leaves Serve cancels what was asked of others for it, often before the request itself."""


class Prefilling:
    """Has prompts computed on prefill replicas.

    Args:
        client: vLLM's front end, which can tell a prefill engine that its KV cache is not wanted.
        handle: Ray Serve's handle to the prefill replicas.
        peers: those replicas, as known here.
        costs: what prefill costs; learns from each call.
        settings: its deadline.
    """

    def __init__(self, client: Any, handle: Any, peers: Peers, costs: Costs, settings: Settings) -> None:
        self._client = client
        self._handle = handle.options(stream=False)
        self._peers = peers
        self._costs = costs
        self._settings = settings
        self._legs: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> list[int]:
        """The tokens of each prompt that waits for prefill."""
        return list(self._legs.values())

    async def place(
        self, prompt: Any, leg: Leg, hashes: list[int], more: Mapping[str, Any], peer: Peer, *, retry: bool
    ) -> dict[str, Any] | None:
        """Compute a prompt's KV cache on a prefill replica, on another one when that fails.

        Args:
            prompt: as vLLM's front end rendered it.
            leg: is filled in.
            hashes: of the prompt's blocks.
            more: of vLLM's arguments, those that go along: priority and trace.
            peer: the replica to ask first.
            retry: whether others may be asked.

        Returns:
            Where the KV cache lies; None when no replica did it.
        """
        tokens = leg.prompt_tokens or 1
        tried: list[str] = []
        following: Peer | None = peer
        self._legs[leg.id] = tokens
        try:
            while following is not None:
                tried.append(following.name)
                leg.attempts += 1
                place = await self._ask(following, prompt, leg, hashes, more, only=not retry)
                if place or not retry or len(tried) == MOST_ATTEMPTS:
                    return place
                following = self._peers.best(tokens, hashes, self._costs.prefill, without=tried)
        finally:
            del self._legs[leg.id]
        return None

    async def _ask(
        self, peer: Peer, prompt: Any, leg: Leg, hashes: list[int], more: Mapping[str, Any], *, only: bool
    ) -> dict[str, Any] | None:
        """Ask one replica; None when it failed, whereupon it is put aside."""
        asked = {
            "prompt": prefill_prompt(prompt),
            "id": leg.id,
            "replica": peer.name,
            "only": only,
            "generation": self._peers.generation,
            "priority": more.get("priority", 0),
            "drawn": leg.drawn,
        }
        with tracing.span("diptych.prefill", {"diptych.prefill.replica": peer.name}) as call:
            asked["trace_headers"] = call.headers or more.get("trace_headers")
            place = await self._answer(peer, asked, leg, hashes)
            call.note({"diptych.queue_ms": leg.queue_ms})
        return place

    async def _answer(
        self, peer: Peer, asked: dict[str, Any], leg: Leg, hashes: list[int]
    ) -> dict[str, Any] | None:
        computed = max(1, (leg.prompt_tokens or 1) - peer.beginnings.tokens(hashes))
        asked["uncached_tokens"] = computed
        deadline_s = self._deadline_s(peer, computed)
        started = time.perf_counter()
        response = self._handle.prefill.remote(asked)
        try:
            async with asyncio.timeout(deadline_s) as timeout:
                peer.sent(leg.id, computed, timeout)
                answer = await response
        except (Exception, asyncio.CancelledError) as error:
            self._call_off(response, leg)
            if isinstance(error, asyncio.CancelledError) and _are_we_cancelled():
                raise
            # What comes after every client may wait for long on a busy replica, which is no fault of that.
            was_last = asked["priority"] == LOWEST_PRIORITY and isinstance(error, TimeoutError)
            blamed = not isinstance(error, _CANCELLED) and not was_last
            self._failed(peer, leg, f"{type(error).__name__}: {error}", blamed=blamed)
            return None
        finally:
            peer.ended(leg.id)
        place: dict[str, Any] | None = answer["kv_transfer_params"]
        if not place:
            asked_one = self._peers.get(answer.get("replica")) or peer  # Serve may have chosen another
            self._failed(asked_one, leg, answer.get("problem") or "it returned no KV cache")
            return None
        leg.prefill_ms, leg.kept_since = milliseconds(time.perf_counter() - started), time.monotonic()
        self._learn(peer, leg, hashes, answer)
        return place

    def _deadline_s(self, peer: Peer, computed: int) -> float:
        """The seconds after which a prefill has failed.

        A decode replica that was started again while prefill was lost serves before it has measured a prefill. What
        prefill costs here, which it has measured, is the best that is known then, and a client waits for it.
        """
        cost = self._costs.prefill
        if cost.at(computed) is None:
            if not self._peers.has_transferred:
                return _UNKNOWN_COST_S
            cost = self._costs.here
        expected, spare_s = cost.at(computed), self._settings.prefill_deadline_s
        if expected is None:
            return 2 * spare_s
        return spare_s + (expected + peer.queue_s(cost)) * _EXPECTED_TIMES

    def _learn(self, peer: Peer, leg: Leg, hashes: list[int], answer: Mapping[str, Any]) -> None:
        leg.prefill_replica, leg.queue_ms = answer["replica"], answer["queue_ms"]
        leg.cached_tokens, leg.compute_ms = answer["cached_tokens"], answer.get("compute_ms")
        if not leg.answered:  # else the client has another replica's, and the answer goes on from that
            leg.first_token = answer.get("first_token")
        computed = (leg.prompt_tokens or 1) - (leg.cached_tokens or 0)
        if leg.compute_ms is not None:
            self._costs.prefill.add(computed, leg.compute_ms / 1e3)
        did = self._peers.get(answer["replica"]) or peer
        did.worked()
        did.beginnings.add(hashes)
        did.told(int(answer.get("waiting_tokens", 0)))

    def _failed(self, peer: Peer, leg: Leg, why: str, *, blamed: bool = True) -> None:
        logger.warning("Prefill of %s failed on %s: %s", leg.id, peer.name, why)
        if blamed:
            peer.failed()

    def _call_off(self, response: Any, leg: Leg) -> None:
        """Cancel a prefill that nobody waits for any more; if it is done all the same, free its KV cache."""
        with contextlib.suppress(Exception):  # a call that has failed raises its error here once more
            response.cancel()
        self._in_background(self._free_if_done(response, leg))

    async def _free_if_done(self, response: Any, leg: Leg) -> None:
        async with asyncio.timeout(_UNKNOWN_COST_S):
            place = (await response)["kv_transfer_params"]
        if place:
            await self._free(leg, place)

    def start_one(self) -> None:
        """Have Serve start a prefill replica where it may scale up from none: it counts calls that wait for one.

        One call waits at a time, until a replica is there or `_STARTS_WITHIN_S` are over.
        """
        if self._starting is None or self._starting.done():
            self._starting = self._in_background(self._started())

    async def _started(self) -> None:
        response = self._handle.started.remote({"waits": True})
        try:
            async with asyncio.timeout(_STARTS_WITHIN_S):
                await response
        finally:
            response.cancel()

    def unwanted(self, leg: Leg, place: dict[str, Any]) -> None:
        """Have prefill free a KV cache that decode will not fetch; it would be kept until the lease ends."""
        self._in_background(self._free(leg, place))

    async def _free(self, leg: Leg, place: dict[str, Any]) -> None:
        # Under another name than the leg's, whose KV transfer from another replica this is not to be taken for.
        await self._client.notify_kv_transfer_request_rejected(f"freed-{leg.id}", place)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Do what may fail as well: a lease ends anyway, and the next prompt has a replica started."""

        async def quietly() -> None:
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await work

        task = asyncio.create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _are_we_cancelled() -> bool:
    """Whether a CancelledError is meant for us; awaiting a call that Serve has cancelled raises one, too."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
