"""The arrival of a KV cache on decode: how long it is waited for, and whether what arrived can be trusted.

What bounds it is prefill's lease, in vLLM 0.26 and 0.29 alike (`nixl/base_scheduler.py`, `nixl/base_worker.py`). It
begins when prefill is done. From the moment on that decode's engine knows of the request, waiting or fetching, it sends
heartbeats: six in a lease, between its steps, and each has prefill keep the KV cache for two thirds of a lease from
then on. So a request may wait for a place in the engine for as long as it takes. But an engine that takes one long step
sends none, and prefill, whose lease is over, gives the blocks to other prompts; they can still be read, with what is in
them by then. Nobody tells decode. It knows when its engine sent heartbeats (`connector`), and reckons the lease from
that, less a sixth of it for the time that answers and these tidings take. A request whose lease is over before its
fetch has ended is taken back from the engine, which then fetches nothing for it, and computed.

A heartbeat that is lost on its way is not noticed. It takes the connection of the fetch, which is a reliable one: what
is lost there breaks it, and the fetch fails.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from math import inf
from typing import Any

from diptych.serving.costs import Costs
from diptych.serving.inside import has_begun
from diptych.serving.outputs import inside_s
from diptych.serving.peers import Peer, Peers
from diptych.serving.record import Leg
from diptych.serving.transfers import Entry, ledger

_EXTENDS = 2 / 3
_TIDINGS = 1 / 6
"""Of a lease: what a heartbeat adds to it, and what is left for answers and tidings on their way."""


class KVTransferError(Exception):
    """What prefill computed did not arrive."""


class LeaseOverError(KVTransferError):
    """Decode's engine was too late to fetch it: prefill, which is not to blame, keeps it no longer."""


class Arrivals:
    """Waits for the KV caches of prompts that prefill computed.

    Args:
        client: vLLM's front end.
        peers: the prefill replicas, as known here.
        costs: what prefill costs; learns what the way adds.
        deadline_s: seconds after which a KV transfer has failed.
        lease_s: seconds for which prefill keeps a KV cache that nobody fetches.
    """

    def __init__(
        self, client: Any, peers: Peers, costs: Costs, deadline_s: float, lease_s: float = inf
    ) -> None:
        self._client = client
        self._peers = peers
        self._costs = costs
        self._deadline_s = deadline_s
        self._lease_s = lease_s

    async def first(self, outputs: AsyncIterator[Any], request_id: str, leg: Leg) -> Any:
        """The engine's first output for a prompt; its leg says whether the KV transfer failed.

        Raises:
            KVTransferError: it came too late.
            LeaseOverError: it came too late because the engine here did not fetch it in time.
        """
        output = await self._in_time(outputs, request_id, leg)
        entry = ledger.take(leg.id)
        leg.transfer = entry.transfer
        peer = self._peers.get(leg.prefill_replica)
        if entry.failed:
            self._failed(leg, peer)
            return output
        if peer and peer.transferred_at:  # the first one meets the peer, too: that is no price of the way
            self._learn_way(leg, output.metrics)
        if peer and leg.transfer:
            self._peers.transferred(peer)
        return output

    async def _in_time(self, outputs: AsyncIterator[Any], request_id: str, leg: Leg) -> Any:
        first = asyncio.ensure_future(anext(outputs))
        left_s: float | None = self._deadline_s
        try:
            while not (await asyncio.wait({first}, timeout=left_s))[0]:
                left_s = self._left_s(request_id, leg)
            return first.result()
        finally:
            if not first.done():
                first.cancel()
                with contextlib.suppress(Exception, asyncio.CancelledError):
                    await first

    def _left_s(self, request_id: str, leg: Leg) -> float | None:
        """How much longer to wait before the next look; None: for as long as it takes, the KV transfer is done."""
        entry = ledger.look(leg.id)
        if entry.is_over or has_begun(self._client, request_id):
            return None
        now = time.monotonic()
        if entry.began_at is not None and now >= entry.began_at + self._deadline_s:
            self._failed(leg, self._peers.get(leg.prefill_replica))
            raise KVTransferError(f"it took longer than {self._deadline_s:g} s")
        lease_left_s = self._lease_ends_at(leg, entry) - now
        if lease_left_s <= 0:
            self._failed(leg, None)
            raise LeaseOverError("prefill's lease was over before it had arrived")
        fetch_left_s = self._deadline_s if entry.began_at is None else entry.began_at + self._deadline_s - now
        return min(lease_left_s, fetch_left_s)

    def _lease_ends_at(self, leg: Leg, entry: Entry) -> float:
        """Until when prefill keeps a KV cache for certain, on `time.monotonic`'s clock."""
        if leg.kept_since is None:
            return inf
        ends_at = leg.kept_since + self._lease_s
        for renewed_at in entry.renewed_at:
            if renewed_at < ends_at:  # else there was nothing left to be prolonged
                ends_at = max(ends_at, renewed_at + _EXTENDS * self._lease_s)
        return ends_at - _TIDINGS * self._lease_s

    def _failed(self, leg: Leg, peer: Peer | None) -> None:
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
        self._costs.way.add(leg.prompt_tokens or 1, max(0.0, (leg.prefill_ms - own_ms) / 1e3) + seconds)
