"""A prompt's way through both phases.

On the decode replica the orchestrator stands where vLLM's front end calls its engine (`whole`): prefill elsewhere or
here, whichever costs less, then decode here.

When something fails, prefill or its KV transfer, there is one policy: prefill on another replica, once, then prefill
here while that is within bounds, then a refusal with a time to come back. The record says which way it went. A KV cache
that decode itself was too late to fetch would be fetched too late from another replica, too: that is computed here.

Of a KV transfer that failed in part the engine computes the rest by itself, before anybody here hears of it: that
prompt stays. All others begin anew, and then another prefill replica costs the answers that are being written here
nothing. A pair whose KV transfer failed is put aside, so that a client waits for two of them at most.
"""

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from diptych.serving import metrics
from diptych.serving.admission import Bound, Room
from diptych.serving.arrival import Arrivals, KVTransferError, LeaseOverError
from diptych.serving.burden import Burden
from diptych.serving.costs import Costs
from diptych.serving.first_token import FirstTokens, settings_for
from diptych.serving.legs import decode_prompt, prompt_tokens, why_whole
from diptych.serving.outputs import computed_s
from diptych.serving.peers import Peer, Peers
from diptych.serving.placement import REMOTE, Placement, Share, Situation
from diptych.serving.prefilling import Prefilling
from diptych.serving.prefix import GUESS_BLOCK, CacheFollower, chain
from diptych.serving.record import Leg, Record, Refusal, Refused
from diptych.serving.settings import Settings
from diptych.serving.transfers import TAG, ledger
from diptych.serving.whole import Outputs, Whole

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Call:
    """A call of the engine's `generate`, as vLLM's front end made it, and for whom it is.

    Args:
        prompt, params, request_id, more: its arguments.
        leg: the prompt's way.
        record: the request's.
    """

    prompt: Any
    params: Any
    request_id: str
    leg: Leg
    record: Record
    more: Mapping[str, Any]


class Orchestrator(Whole):
    """Prefill on a prefill replica or here, whichever costs less; decode here.

    Args:
        client, settings, room: as for `Whole`.
        prefill_handle: Ray Serve's handle to the prefill replicas.
        peers: those replicas, as known here.
        cached: this replica's prefix cache; None: nobody follows it.
        own_salt: whether a KV cache that was fetched must not serve later prompts: of some models a failed fetch
            can't be told block by block.
        lease_s: seconds for which prefill keeps a KV cache that nobody fetches.
        first_tokens: gives streams prefill's first token; None: they wait for decode's.
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
        lease_s: float = inf,
        first_tokens: FirstTokens | None = None,
    ) -> None:
        super().__init__(client, settings, room)
        self.peers = peers
        self.costs = Costs()
        self.share = Share(self.settings.local_prefill_share)
        self._prefill_bound = Bound("prefill", self.settings.queues.prefill)
        self._placement = Placement(self.settings, self.costs, self.share)
        self._burden = Burden(self.settings, self.costs, self.share, cached or CacheFollower(), self.inside)
        self._own_salt = own_salt
        self._first_tokens = first_tokens
        self._prefilling = Prefilling(client, prefill_handle, peers, self.costs, self.settings)
        deadline_s = self.settings.kv_transfer_deadline_s
        self._arrivals = Arrivals(client, peers, self.costs, deadline_s, lease_s)

    async def _ways(
        self, prompt: Any, params: Any, request_id: str, leg: Leg, record: Record, more: dict[str, Any]
    ) -> Outputs:
        call = _Call(prompt, params, request_id, leg, record, more)
        place = await self._placed(call)
        if record.only_peer is None:
            metrics.placed(leg.path)
        outputs = self._computed_here(call) if place is None else self._fetched(call, place)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                yield output

    async def _placed(self, call: _Call) -> dict[str, Any] | None:
        """Where the prompt's KV cache lies; None when it is to be computed here."""
        prompt, params, leg, record = call.prompt, call.params, call.leg, call.record
        adapter = call.more.get("lora_request")
        leg.path, leg.why = REMOTE, why_whole(prompt, params, call.request_id, adapter)
        leg.uncached_here = self._burden.uncached_tokens(prompt, params, adapter)
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
            if not any(self.peers):
                self._prefilling.start_one()
            self._run_here(leg, "local-no-prefill", "no prefill replica is ready")
            return None
        if record.only_peer is None and self._has_no_room(leg, peer):
            return None
        retry = record.only_peer is None
        leg.drawn = settings_for(params) if self._first_tokens else None
        place = await self._prefilling.place(prompt, leg, hashes, call.more, peer, retry=retry)
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

    def _queue_refusal(self, leg: Leg, peer: Peer) -> Refusal | None:
        """Why prefill's queue takes no more; None when it does."""
        queue_s = peer.queue_s(self.costs.prefill)
        self._prefill_bound.kv_cache_tokens = self.peers.kv_cache_tokens
        return self._prefill_bound.refusal(self._prefilling.waiting, leg.prompt_tokens or 1, queue_s)

    def _has_no_room(self, leg: Leg, peer: Peer) -> bool:
        """Whether prefill's queue is full, and the prompt is better computed here.

        Raises:
            Refused: it is full, and decode has no time for it either.
        """
        refusal = self._queue_refusal(leg, peer)
        if refusal is None:
            return False
        if not self._burden.has_room(leg):
            raise Refused(refusal)
        leg.path, leg.why = "local-busy", "prefill's queue is full"
        return True

    async def _computed_here(self, call: _Call) -> Outputs:
        """Outputs of a prompt that this replica's engine computes; its time is counted and learned from."""
        call.leg.here_s = self._burden.take(call.leg)
        outputs = self._decoded(call.prompt, call.params, call.request_id, call.leg, call.more)
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

    async def _fetched(self, call: _Call, place: dict[str, Any], *, is_second: bool = False) -> Outputs:
        """Outputs of a prompt whose KV cache lies elsewhere; it is computed anew when that fails."""
        leg = call.leg
        salted = decode_prompt(call.prompt, leg.id) if self._own_salt else call.prompt
        outputs = self._decoded(salted, call.params, call.request_id, leg, call.more, place)
        try:
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    yield output
        except KVTransferError as error:
            logger.warning("The KV transfer of %s failed: %s", leg.id, error)
            may_go = not is_second and not isinstance(error, LeaseOverError)
        except Exception:
            if not leg.begun:  # the engine would not take it, and so will not fetch its KV cache either
                self._prefilling.unwanted(leg, place)
            raise
        else:
            if not leg.begun:  # prefill's token was the last one
                self._prefilling.unwanted(leg, place)
            return
        again = self._anew(call, may_go=may_go and call.record.only_peer is None)
        async with contextlib.aclosing(again):
            async for output in again:
                yield output

    async def _anew(self, call: _Call, *, may_go: bool) -> Outputs:
        """Outputs of a prompt whose KV transfer failed: by way of another prefill replica, or computed here.

        Args:
            may_go: whether another prefill replica may be asked.
        """
        leg = call.leg
        try:
            place = await self._place_anew(call) if may_go else None
            if place is None:
                self._run_here(leg, "recovered", "the KV transfer failed")
                leg.begun, leg.cached_tokens = False, None
                outputs = self._computed_here(replace(call, request_id=f"again-{call.request_id}"))
            else:
                own_id = f"{TAG}{leg.id}-again-{call.request_id}"
                outputs = self._fetched(replace(call, request_id=own_id), place, is_second=True)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    yield output
        finally:
            leg.kv_transfer_failed = True  # the first one was

    async def _place_anew(self, call: _Call) -> dict[str, Any] | None:
        """Where another prefill replica has computed the prompt's KV cache; None: none did.

        The leg has another id then: what is still heard of the first KV transfer is not to be taken for the second.
        """
        leg, tokens = call.leg, prompt_tokens(call.prompt) or []
        hashes = list(chain(tokens, GUESS_BLOCK))
        peer = self.peers.best(len(tokens), hashes, self.costs.prefill, without=[leg.prefill_replica or ""])
        if peer is None or self._queue_refusal(leg, peer):
            return None
        failed = leg.id
        leg.begin_anew()
        logger.warning("Prefill replica %s is asked for %s anew, as %s", peer.name, failed, leg.id)
        return await self._prefilling.place(call.prompt, leg, hashes, call.more, peer, retry=False)

    def _first_token_given(self, request_id: str, leg: Leg) -> contextlib.AbstractContextManager[None]:
        if self._first_tokens is None or leg.first_token is None:
            return contextlib.nullcontext()
        return self._first_tokens.given(request_id, leg.first_token, is_known=leg.answered)

    async def _first(
        self, outputs: AsyncIterator[Any], request_id: str, leg: Leg, place: dict[str, Any] | None
    ) -> Any:
        """The first output, of a KV cache that comes from elsewhere in time and whole.

        Raises:
            KVTransferError: it did not, and what the engine says now can't be trusted.
        """
        if place is None:
            return await anext(outputs)
        output = await self._arrivals.first(outputs, request_id, leg)
        if not leg.kv_transfer_failed:
            return output
        if self._own_salt or any(each.finish_reason == "error" for each in output.outputs):
            raise KVTransferError("a part of it did not arrive")
        leg.path, leg.why = "recovered", "the KV transfer failed"  # the engine has computed it by itself
        self._burden.take(leg)
        leg.cached_tokens = None
        return output

    def _note(self, leg: Leg, output: Any) -> None:
        """As for `Whole`, and have the output tell the truth about cached tokens.

        For decode all that came over the KV transfer counts as cached; for the client, what prefill did not compute.
        """
        super()._note(leg, output)
        if leg.path == REMOTE:
            if leg.begun and leg.transfer is None:
                leg.transfer = ledger.take(leg.id).transfer
            output.num_cached_tokens = leg.cached_tokens
