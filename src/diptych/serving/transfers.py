"""What each request's KV transfer moved, as NIXL measured it, kept until the request is answered."""

import re
import time
from collections import OrderedDict
from dataclasses import dataclass, field

TAG = "diptych."
# vLLM wraps the id we give a request ("chatcmpl-...-<tag><id>", and more in later versions): it is found again.
_OUR_ID = re.compile(re.escape(TAG) + r"([0-9a-f]{32})")


@dataclass(frozen=True)
class Transfer:
    """One request's KV transfer, summed over its parts (one per tensor-parallel rank or retry).

    `seconds` is the longest part's time from post to completion, `post_seconds` the longest part's time to post.
    """

    bytes: int
    seconds: float
    post_seconds: float
    descriptors: int


@dataclass
class Entry:
    """What is known of one request's KV transfer.

    Args:
        began_at: when its engine began to fetch, on `time.monotonic`'s clock; None before.
        renewed_at: when its engine sent heartbeats, which prolong prefill's lease, on the same clock.
        transfer: what crossed so far; None while nothing has.
        failed: whether a part of it failed.
        workers: of its engine (tensor-parallel ranks), how many fetch.
        done: how many of them have all that they fetch.
    """

    began_at: float | None = None
    renewed_at: list[float] = field(default_factory=list)
    transfer: Transfer | None = None
    failed: bool = False
    workers: int = 0
    done: int = 0

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for: all has crossed, or a part failed."""
        return self.failed or (self.transfer is not None and self.done >= self.workers)


class Ledger:
    """The last transfers by request id; bounded, so that requests nobody asks about cost nothing.

    Ids of the engine that are not ours (a bare engine's) are left out.
    """

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[str, Entry] = OrderedDict()

    def begin(self, engine_request_id: str) -> None:
        """Record that a worker began to fetch."""
        entry = self._entry(engine_request_id)
        if entry is not None:
            entry.began_at = entry.began_at or time.monotonic()
            entry.workers += 1

    def renew(self, engine_request_id: str, seconds_ago: float) -> None:
        """Record that a worker sent a heartbeat for a request, under the name that prefill's engine has for it."""
        entry = self._entry(engine_request_id)
        if entry is not None:
            entry.renewed_at.append(time.monotonic() - seconds_ago)

    def end(self, engine_request_id: str) -> None:
        """Record that a worker has all that it fetches."""
        entry = self._entry(engine_request_id)
        if entry is not None:
            entry.done += 1

    def fail(self, engine_request_id: str) -> None:
        """Record that a fetch failed."""
        entry = self._entry(engine_request_id)
        if entry is not None:
            entry.failed = True

    def add(
        self, engine_request_id: str, size: int, seconds: float, post_seconds: float, descriptors: int
    ) -> None:
        """Record one finished transfer; a worker may need several."""
        entry = self._entry(engine_request_id)
        if entry is None:
            return
        known = entry.transfer or Transfer(0, 0.0, 0.0, 0)
        entry.transfer = Transfer(
            known.bytes + size,
            max(known.seconds, seconds),
            max(known.post_seconds, post_seconds),
            known.descriptors + descriptors,
        )

    def look(self, request_id: str) -> Entry:
        """What is known of a request so far."""
        return self._entries.get(request_id) or Entry()

    def take(self, request_id: str) -> Entry:
        """What is known of a request; forgotten afterwards."""
        return self._entries.pop(request_id, None) or Entry()

    def _entry(self, engine_request_id: str) -> Entry | None:
        found = _OUR_ID.search(engine_request_id)
        if found is None:
            return None
        entry = self._entries.setdefault(found[1], Entry())
        self._entries.move_to_end(found[1])
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
        return entry


ledger = Ledger()
