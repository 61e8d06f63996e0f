"""The prompts inside this replica's engine: which wait for their first token, and which are being answered.

A stream shows its first token; an answer that is not streamed comes as a whole, and whether it has begun is then only
known to vLLM's output processor. It is asked there, at most fifty times a second.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from diptych.serving.record import Leg

_LOOK_EVERY_S = 0.02


class Inside:
    """The legs inside an engine, by the id that the engine was given.

    Args:
        client: vLLM's front end.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._legs: dict[str, Leg] = {}
        self._looked_at = 0.0

    @contextlib.contextmanager
    def holding(self, engine_request_id: str, leg: Leg) -> Iterator[None]:
        """A leg is inside for as long as this lasts."""
        self._legs[engine_request_id] = leg
        try:
            yield
        finally:
            del self._legs[engine_request_id]

    def __len__(self) -> int:
        return len(self._legs)

    @property
    def waiting(self) -> list[Leg]:
        """Legs without a first token."""
        self._look()
        return [leg for leg in self._legs.values() if not leg.begun]

    @property
    def backlog_s(self) -> float:
        """Seconds of prefill that the engine has yet to do itself."""
        return sum(leg.here_s for leg in self.waiting)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = now
        for engine_request_id, leg in self._legs.items():
            if not leg.begun and has_begun(self._client, engine_request_id):
                leg.begun = True


def has_begun(client: Any, request_id: str) -> bool:
    """Whether the engine has put out a token for a request; False too where vLLM does not tell."""
    processor = getattr(client, "output_processor", None)
    ids = getattr(processor, "external_req_ids", {}).get(request_id) or [request_id]
    state = getattr(processor, "request_states", {}).get(ids[0])
    statistics = getattr(state, "stats", None)
    return bool(statistics and statistics.first_token_ts)
