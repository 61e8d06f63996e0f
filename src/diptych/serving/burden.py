"""The prefill that a decode replica takes on itself: what of a prompt it would be, and how much it may be in all."""

from dataclasses import dataclass
from typing import Any

from diptych.serving.admission import retry_after
from diptych.serving.costs import Costs
from diptych.serving.errors import UNAVAILABLE
from diptych.serving.inside import Inside
from diptych.serving.legs import prompt_length, prompt_tokens
from diptych.serving.placement import Share
from diptych.serving.prefix import CacheFollower
from diptych.serving.record import Leg, Refusal
from diptych.serving.settings import Settings


@dataclass
class Burden:
    """Counts and bounds prefill on this replica. Of a prompt only those tokens count that are not in its prefix cache.

    Args:
        settings: the bounds.
        costs: what prefill costs here.
        share: of this replica's time that prefill takes.
        cached: its prefix cache.
        inside: the prompts inside its engine.
    """

    settings: Settings
    costs: Costs
    share: Share
    cached: CacheFollower
    inside: Inside

    def uncached_tokens(self, prompt: Any, params: Any, lora_request: Any) -> int:
        """How many of a prompt's tokens would be computed here; what is not known for certain counts."""
        tokens, cached = prompt_tokens(prompt), 0
        # vLLM reads no prefix cache for a prompt whose own probabilities are asked for, and others' under other names.
        if tokens and not (prompt.get("cache_salt") or lora_request or params.prompt_logprobs is not None):
            cached = self.cached.cached_tokens(tokens)
        # The last token is always computed: its output is the answer's first.
        return max(1, prompt_length(prompt) - cached)

    def seconds(self, leg: Leg) -> float | None:
        """What computing a prompt here takes; None before it is measured."""
        return self.costs.here.at(leg.uncached_here or 1)

    def has_room(self, leg: Leg) -> bool:
        """Whether a prompt that could be computed elsewhere may be computed here."""
        seconds = self.seconds(leg)
        return self.settings.prefill == "auto" and seconds is not None and self.share.has_room(seconds)

    def refusal(self, leg: Leg, why: str) -> Refusal | None:
        """Why a prompt that should have been computed elsewhere is not computed here either; None when it is."""
        backlog_s = self.inside.backlog_s
        if not backlog_s or backlog_s + (self.seconds(leg) or 0.0) <= self.settings.recovery_backlog_s:
            return None
        message = (
            f"{why[0].upper()}{why[1:]}, and decode has {backlog_s:.0f} s of prefill of its own to do. "
            "Come back later."
        )
        return Refusal(503, message, UNAVAILABLE, retry_after(backlog_s))

    def take(self, leg: Leg) -> float:
        """Count a prompt that is computed here; the seconds that it is expected to take."""
        seconds = self.seconds(leg) or 0.0
        self.share.add(seconds)
        return seconds
