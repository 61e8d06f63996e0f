"""What the other replicas that face clients last said of themselves.

One that is busy answers late. If it were forgotten for that, the service's readiness would change from second to
second, and a replica that refuses prompts would come back to the balancer as if no other took them.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

SILENT_S = 10.0
"""A replica that has said nothing for so long counts for nothing. A dead engine is noticed within that."""


class Siblings:
    """The last word of each."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, Mapping[str, Any]]] = {}

    @property
    def names(self) -> set[str]:
        """Of those that count."""
        return set(self._last)

    def told(
        self, answers: Sequence[Mapping[str, Any]], listed: Collection[str], now: float | None = None
    ) -> list[Mapping[str, Any]]:
        """Take in what those say that answered in time, and return what counts as of now.

        Args:
            answers: each with its sender's name as `replica`.
            listed: the names of those that Serve sends requests to: of others only a new answer counts.
            now: on `time.monotonic`'s clock.
        """
        now = time.monotonic() if now is None else now
        new = {one["replica"]: (now, one) for one in answers}
        old = {
            name: (at, one)
            for name, (at, one) in self._last.items()
            if name in listed and now - at < SILENT_S
        }
        self._last = old | new
        return [one for _, one in self._last.values()]
