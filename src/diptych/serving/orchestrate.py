"""A prompt's way through both phases.

On the decode replica the orchestrator stands where vLLM's front end calls its engine (`whole`): prefill elsewhere or
here, whichever costs less, then decode here.

When something fails there is one policy: prefill on another replica, then prefill here while that is within bounds,
then a refusal with a time to come back. The record says which way it went.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from diptych.serving import metrics
from diptych.serving.admission import Bound, Room
from diptych.serving.burden import Burden
from diptych.serving.costs import Costs
from diptych.serving.inside import has_begun
from diptych.serving.legs import decode_prompt, prompt_tokens, why_whole
from diptych.serving.outputs import computed_s, inside_s
from diptych.serving.peers import Peer, Peers
from diptych.serving.placement import REMOTE, Placement, Share, Situation
from diptych.serving.prefilling import Prefilling
from diptych.serving.prefix import GUESS_BLOCK, CacheFollower, chain
from diptych.serving.record import Leg, Record, Refused
from diptych.serving.settings import Settings
from diptych.serving.transfers import ledger
from diptych.serving.whole import Outputs, Whole

logger = logging.getLogger(__name__)


class KVTransferError(Exception):
    """What prefill computed did not arrive."""


class Orchestrator(Whole):
    """Prefill on a prefill replica or here, whichever costs less; decode here.

    Args:
        client, settings, room: as for `Whole`.
        prefill_handle: Ray Serve's handle to the prefill replicas.
        peers: those replicas, as known here.
        cached: this replica's prefix cache; None: nobody follows it.
        own_salt: whether a KV cache that was fetched must not serve later prompts: of some models a failed fetch
            can't be told block by block.
    """

    def __init__(
        self,
        client: Any,
        prefill_handle: Any,
        peers: Peers,
        *,
        settings: Settings | None = None,
        room: Room | None = None,
        cached: CacheFollower | None = None,
        own_salt: bool = False,
    ) -> None:
        super().__init__(client, settings, room)
        self.peers = peers
        self.costs = Costs()
        self.share = Share(self.settings.local_prefill_share)
        self._prefill_bound = Bound("prefill", self.settings.queues.prefill)
        self._placement = Placement(self.settings, self.costs, self.share)
        self._burden = Burden(self.settings, self.costs, self.share, cached or CacheFollower(), self.inside)
        self._own_salt = own_salt
        self._prefilling = Prefilling(client, prefill_handle, peers, self.costs, self.settings)

    async def _ways(
        self, prompt: Any, params: Any, request_id: str, leg: Leg, record: Record, more: dict[str, Any]
    ) -> Outputs:
        place = await self._placed(prompt, params, request_id, leg, record, more)
        if record.only_peer is None:
            metrics.placed(leg.path)
        if place is None:
            outputs = self._computed_here(prompt, params, request_id, leg, more)
        else:
            outputs = self._fetched(prompt, params, request_id, leg, more, place)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                yield output

    async def _placed(
        self,
        prompt: Any,
        params: Any,
        request_id: str,
        leg: Leg,
        record: Record,
        more: Mapping[str, Any],
    ) -> dict[str, Any] | None:
        """Where the prompt's KV cache lies; None when it is to be computed here."""
        leg.path, leg.why = REMOTE, why_whole(prompt, params, request_id, more.get("lora_request"))
        leg.uncached_here = self._burden.uncached_tokens(prompt, params, more.get("lora_request"))
        if leg.why:
            leg.path = "local-whole"
            return None
        tokens = prompt_tokens(prompt) or []
        hashes = list(chain(tokens, GUESS_BLOCK))
        peer = self._peer(tokens, hashes, record)
        leg.path, leg.why = self._placement.decide(self._situation(leg, peer), record.prefill_wish)
        if leg.path != REMOTE:
            return None
        if peer is None:
            self._run_here(leg, "local-no-prefill", "no prefill replica is ready")
            return None
        if record.only_peer is None and self._has_no_room(leg, peer):
            return None
        place = await self._prefilling.place(prompt, leg, hashes, more, peer, retry=record.only_peer is None)
        if place is None:
            self._run_here(leg, "recovered", "prefill failed")
        return place

    def _peer(self, tokens: list[int], hashes: list[int], record: Record) -> Peer | None:
        if record.only_peer:
            return self.peers.get(record.only_peer)
        return self.peers.best(len(tokens), hashes, self.costs.prefill)

    def _situation(self, leg: Leg, peer: Peer | None) -> Situation:
        queue_s = peer.queue_s(self.costs.prefill) if peer else None
        return Situation(leg.prompt_tokens or 1, leg.uncached_here or 1, len(self.inside), queue_s)

    def _run_here(self, leg: Leg, path: str, why: str) -> None:
        """Have a prompt computed here that should have been elsewhere, while that is within bounds.

        Raises:
            Refused: it is not.
        """
        leg.path, leg.why = path, why
        refusal = self._burden.refusal(leg, why)
        if refusal:
            raise Refused(refusal)

    def _has_no_room(self, leg: Leg, peer: Peer) -> bool:
        """Whether prefill's queue is full, and the prompt is better computed here.

        Raises:
            Refused: it is full, and decode has no time for it either.
        """
        queue_s = peer.queue_s(self.costs.prefill)
        self._prefill_bound.kv_cache_tokens = self.peers.kv_cache_tokens
        refusal = self._prefill_bound.refusal(self._prefilling.waiting, leg.prompt_tokens or 1, queue_s)
        if refusal is None:
            return False
        if not self._burden.has_room(leg):
            raise Refused(refusal)
        leg.path, leg.why = "local-busy", "prefill's queue is full"
        return True

    async def _computed_here(
        self, prompt: Any, params: Any, request_id: str, leg: Leg, more: Mapping[str, Any]
    ) -> Outputs:
        """Outputs of a prompt that this replica's engine computes; its time is counted and learned from."""
        leg.here_s = self._burden.take(leg)
        outputs = self._decoded(prompt, params, request_id, leg, more)
        begun = False
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                if not begun:
                    begun = True
                    self.learn_here(output)
                yield output

    def learn_here(self, output: Any) -> float | None:
        """Take in what an output says of prefill here; the seconds it took, None where it does not tell."""
        seconds = computed_s(output.metrics)
        if seconds is not None:
            computed = len(output.prompt_token_ids or ()) - (output.num_cached_tokens or 0)
            self.costs.here.add(computed, seconds)
        return seconds

    def _waiting(self) -> list[int]:
        """As for `Whole`; a prompt that prefill computes waits for its first token, too."""
        return super()._waiting() + self._prefilling.waiting

    def gauges(self, degraded: bool) -> metrics.Gauges:
        """What waits, and what the placement knows, as of now."""
        now = time.monotonic()
        waiting = [each.prompt_tokens or 0 for each in self.inside.waiting]
        worked = [peer.transferred_at for peer in self.peers if peer.transferred_at]
        return metrics.Gauges(
            prefill_waiting_prompts=len(self._prefilling.waiting),
            prefill_waiting_tokens=sum(self._prefilling.waiting),
            decode_waiting_prompts=len(waiting),
            decode_waiting_tokens=sum(waiting),
            prefill_ready=len(self.peers.ready),
            prefill_aside=sum(peer.is_aside() for peer in self.peers),
            local_prefill_ratio=self.share.taken(),
            break_even_tokens=self.costs.break_even_tokens(),
            degraded=degraded,
            last_kv_transfer_age_s=now - max(worked) if worked else None,
        )

    @property
    def block_tokens(self) -> int:
        """Tokens per block of this replica's KV cache."""
        size: int = self._client.vllm_config.cache_config.block_size
        return size

    async def _fetched(
        self,
        prompt: Any,
        params: Any,
        request_id: str,
        leg: Leg,
        more: Mapping[str, Any],
        place: dict[str, Any],
    ) -> Outputs:
        """Outputs of a prompt whose KV cache lies elsewhere; it is computed here after all when that fails."""
        salted = decode_prompt(prompt, leg.id) if self._own_salt else prompt
        outputs = self._decoded(salted, params, request_id, leg, more, place)
        try:
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    yield output
        except KVTransferError as error:
            logger.warning("The KV transfer of %s failed, decode computes it: %s", leg.id, error)
            leg.begun = False
            self._run_here(leg, "recovered", "the KV transfer failed")
            leg.cached_tokens = None
        except Exception:
            if not leg.begun:  # the engine would not take it, and so will not fetch its KV cache either
                self._prefilling.unwanted(leg, place)
            raise
        else:
            return
        again = self._computed_here(prompt, params, f"again-{request_id}", leg, more)
        async with contextlib.aclosing(again):
            async for output in again:
                yield output

    async def _first(
        self, outputs: AsyncIterator[Any], request_id: str, leg: Leg, place: dict[str, Any] | None
    ) -> Any:
        """The first output; with a deadline for the KV transfer, and a look at whether it worked.

        Raises:
            KVTransferError: it did not, and what the engine says now can't be trusted.
        """
        if place is None:
            return await anext(outputs)
        output = await self._in_time(outputs, request_id, leg)
        entry = ledger.take(leg.id)
        leg.transfer = entry.transfer
        peer = self.peers.get(leg.prefill_replica)
        if not entry.failed:
            if peer and peer.transferred_at:  # the first one meets the peer, too: that is no price of the way
                self._learn_way(leg, output.metrics)
            if peer and leg.transfer:
                self.peers.transferred(peer)
            return output
        self._transfer_failed(leg, peer)
        if self._own_salt or any(each.finish_reason == "error" for each in output.outputs):
            raise KVTransferError("a part of it did not arrive")
        leg.path, leg.why = "recovered", "the KV transfer failed"  # the engine has computed it by itself
        self._burden.take(leg)
        leg.cached_tokens = None
        return output

    async def _in_time(self, outputs: AsyncIterator[Any], request_id: str, leg: Leg) -> Any:
        """The first output, unless the KV transfer takes too long; waiting for a place in the engine has no limit."""
        deadline_s = self.settings.kv_transfer_deadline_s
        first = asyncio.ensure_future(anext(outputs))
        left_s: float | None = deadline_s
        try:
            while not (await asyncio.wait({first}, timeout=left_s))[0]:
                left_s = self._left_s(request_id, leg, deadline_s)
            return first.result()
        finally:
            if not first.done():
                first.cancel()
                with contextlib.suppress(Exception, asyncio.CancelledError):
                    await first

    def _left_s(self, request_id: str, leg: Leg, deadline_s: float) -> float | None:
        """How much longer to wait for the KV transfer; None: for as long as it takes, it is done."""
        entry = ledger.look(leg.id)
        if entry.is_over or has_begun(self._client, request_id):
            return None
        if entry.began_at is None:
            return deadline_s
        left_s = entry.began_at + deadline_s - time.monotonic()
        if left_s <= 0:
            self._transfer_failed(leg, self.peers.get(leg.prefill_replica))
            raise KVTransferError(f"it took longer than {deadline_s:g} s")
        return left_s

    def _transfer_failed(self, leg: Leg, peer: Peer | None) -> None:
        leg.kv_transfer_failed = True
        if peer:
            peer.transfer_failed_at = time.monotonic()
            peer.failed()

    def _learn_way(self, leg: Leg, metrics: Any) -> None:
        """What going elsewhere added: all of the time until the first token but prefill's own."""
        seconds = inside_s(metrics)
        if leg.prefill_ms is None or leg.compute_ms is None or seconds is None:
            return
        own_ms = (leg.queue_ms or 0.0) + leg.compute_ms
        self.costs.way.add(leg.prompt_tokens or 1, max(0.0, (leg.prefill_ms - own_ms) / 1e3) + seconds)

    def _note(self, leg: Leg, output: Any) -> None:
        """As for `Whole`, and have the output tell the truth about cached tokens.

        For decode all that came over the KV transfer counts as cached; for the client, what prefill did not compute.
        """
        super()._note(leg, output)
        if leg.path == REMOTE:
            if leg.transfer is None:
                leg.transfer = ledger.take(leg.id).transfer
            output.num_cached_tokens = leg.cached_tokens
