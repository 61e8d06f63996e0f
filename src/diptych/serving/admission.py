"""What may wait, and what can never be served: everything beyond is refused at once, with a time to come back."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from diptych.serving.errors import INVALID, OVERLOADED
from diptych.serving.record import Refusal
from diptych.serving.settings import Queue

_TIMES_THE_KV_CACHE = 4
_LONGEST_RETRY_S = 60


@dataclass
class Bound:
    """How many prompts may wait for one phase.

    Args:
        phase: `prefill` or `decode`.
        limit: as it was set.
        kv_cache_tokens: what the phase's KV cache holds, which bounds the tokens where `limit` does not; None:
            unknown.
    """

    phase: str
    limit: Queue
    kv_cache_tokens: int | None = None

    @property
    def most_tokens(self) -> int | None:
        """The bound on tokens; None while there is none."""
        if self.limit.tokens is not None:
            return self.limit.tokens
        return self.kv_cache_tokens * _TIMES_THE_KV_CACHE if self.kv_cache_tokens else None

    def refusal(self, waiting: Sequence[int], tokens: int, wait_s: float | None) -> Refusal | None:
        """Why one more prompt may not wait; None when it may. Where none waits any may.

        Args:
            waiting: the tokens of each prompt that waits.
            tokens: of the new prompt.
            wait_s: how long what waits will take; None: unknown.
        """
        most = self.most_tokens
        has_room = most is None or not waiting or sum(waiting) + tokens <= most
        if has_room and len(waiting) < self.limit.requests:
            return None
        message = (
            f"The queue of {self.phase} is full: {len(waiting)} prompts with {sum(waiting)} tokens wait. "
            "Come back later, or send less at a time."
        )
        return Refusal(429, message, OVERLOADED, retry_after(wait_s))


def retry_after(wait_s: float | None) -> int:
    """Whole seconds to come back after.

    >>> retry_after(0.2), retry_after(None), retry_after(1e6)
    (1, 5, 60)
    """
    return 5 if wait_s is None else min(_LONGEST_RETRY_S, max(1, ceil(wait_s)))


@dataclass(frozen=True)
class Room:
    """What this replica's engine can hold of one sequence.

    Args:
        kv_cache_tokens: tokens that its KV cache holds; None: unknown, or not to be told in tokens.
        max_model_len: the longest sequence.
    """

    kv_cache_tokens: int | None
    max_model_len: int

    def refusal(self, prompt_tokens: int, params: Any) -> Refusal | None:
        """Why a request could never be finished; None when it can.

        The engine would compute such a sequence, throw it out when the KV cache is full, and begin again for ever.
        A length that nobody asked for, the rest of the context, is cut by `most_tokens` instead.
        """
        held = self.kv_cache_tokens
        if held is None or held >= self.max_model_len:
            return None
        wanted = self._wanted(prompt_tokens, params)
        if prompt_tokens + wanted <= held:
            return None
        message = (
            f"The request can never fit: its prompt has {prompt_tokens} tokens and up to {wanted} are to be written, "
            f"and the KV cache holds {held}. Send a shorter prompt, or ask for fewer tokens."
        )
        return Refusal(400, message, INVALID)

    def most_tokens(self, prompt_tokens: int, params: Any) -> int | None:
        """To how many new tokens a request has to be cut that named no number; None: it fits as it is."""
        held = self.kv_cache_tokens
        if held is None or params.max_tokens is None or prompt_tokens + params.max_tokens <= held:
            return None
        return held - prompt_tokens

    def _wanted(self, prompt_tokens: int, params: Any) -> int:
        """New tokens that the client asked for; 1 where the front end filled in all that the context has left."""
        rest = self.max_model_len - prompt_tokens
        return 1 if params.max_tokens is None or params.max_tokens >= rest else int(params.max_tokens)
