"""The records of the requests that ended last, kept for whoever measures: what the log lines say, and when.

Each decode replica keeps those of its own requests. Nothing of a prompt, an answer or a client's name is in them.
"""

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

KEPT = 10_000
"""Requests; about 10 MB when full."""


class Recent:
    """The newest records of one replica."""

    def __init__(self, kept: int = KEPT) -> None:
        self._entries: deque[Mapping[str, Any]] = deque(maxlen=kept)
        self._forgotten_until = 0.0

    def add(self, entry: Mapping[str, Any]) -> None:
        """Keep the record of a request that has ended now."""
        if len(self._entries) == self._entries.maxlen:
            self._forgotten_until = self._entries[0]["at"]
        self._entries.append({**entry, "at": time.time()})

    def since(self, at: float) -> dict[str, Any]:
        """Those that ended after `at` (Unix seconds), and whether some of that time are forgotten."""
        found = [entry for entry in self._entries if entry["at"] > at]
        return {"requests": found, "forgotten": self._forgotten_until > at}


recent = Recent()
"""This replica's: one process answers one replica's requests."""
