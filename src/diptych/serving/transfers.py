"""What each request's KV transfer moved, as NIXL measured it, kept until the request is answered."""

import re
from collections import OrderedDict
from dataclasses import dataclass

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


class Ledger:
    """The last transfers by request id; bounded, so that requests nobody asks about cost nothing."""

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._transfers: OrderedDict[str, Transfer] = OrderedDict()

    def add(
        self, engine_request_id: str, size: int, seconds: float, post_seconds: float, descriptors: int
    ) -> None:
        """Record one finished transfer. Ids that are not ours (a bare engine's) are left out."""
        found = _OUR_ID.search(engine_request_id)
        if found is None:
            return
        known = self._transfers.pop(found[1], Transfer(0, 0.0, 0.0, 0))
        self._transfers[found[1]] = Transfer(
            known.bytes + size,
            max(known.seconds, seconds),
            max(known.post_seconds, post_seconds),
            known.descriptors + descriptors,
        )
        while len(self._transfers) > self._capacity:
            self._transfers.popitem(last=False)

    def take(self, request_id: str) -> Transfer | None:
        """The transfer of a request, or None when nothing crossed for it; forgotten afterwards."""
        return self._transfers.pop(request_id, None)


ledger = Ledger()
