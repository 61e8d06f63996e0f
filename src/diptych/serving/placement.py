"""Where a prompt's prefill runs: on a prefill replica, or here.

Prefill elsewhere spares the answers that are being written here from waiting, and costs a call, a KV transfer and
a place in prefill's queue. Prefill here costs every running answer the time it takes. Which is cheaper is a matter
of measured speeds, never of a constant:

    here       t = uncached tokens / speed here;           cost = t x (1 + answers running here)
    elsewhere  call + KV transfer of the whole prompt;     a prompt whose cost here is below that is short
    queue      tokens before it / speed of prefill;        a queue that costs more than prefill here is busy

All speeds are moving averages of what requests themselves showed, from the start-up's own requests on.
"""

import time
from collections import deque
from dataclasses import dataclass, field

WEIGHT = 0.2
"""How much the newest measurement counts in a moving average."""
SHARE_WINDOW_S = 10.0


@dataclass
class Average:
    """A moving average; None before the first measurement."""

    value: float | None = None

    def add(self, measured: float) -> None:
        if measured > 0:
            old = self.value
            self.value = measured if old is None else old + WEIGHT * (measured - old)


@dataclass
class Speeds:
    """What this decode replica has measured. Tokens per second, seconds, and seconds per token."""

    prefill: Average = field(default_factory=Average)
    here: Average = field(default_factory=Average)
    call_s: Average = field(default_factory=Average)
    transfer_s_per_token: Average = field(default_factory=Average)

    def elsewhere_s(self, prompt_tokens: int) -> float | None:
        """What going elsewhere costs beside prefill and queue; None before it was measured."""
        if self.call_s.value is None:
            return None
        return self.call_s.value + prompt_tokens * (self.transfer_s_per_token.value or 0.0)

    def here_s(self, uncached_tokens: int) -> float | None:
        return None if self.here.value is None else uncached_tokens / self.here.value

    def queue_s(self, tokens: int, replicas: int) -> float | None:
        """How long `tokens` before a prompt keep prefill's replicas busy."""
        return None if self.prefill.value is None else tokens / self.prefill.value / max(1, replicas)


@dataclass
class Share:
    """How much of this replica's time went into prefill lately."""

    most: float
    _spent: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, seconds: float, now: float | None = None) -> None:
        self._spent.append((time.monotonic() if now is None else now, seconds))

    def has_room(self, seconds: float, now: float | None = None) -> bool:
        """Whether `seconds` more stay within the share."""
        now = time.monotonic() if now is None else now
        while self._spent and self._spent[0][0] < now - SHARE_WINDOW_S:
            self._spent.popleft()
        return sum(spent for _, spent in self._spent) + seconds <= self.most * SHARE_WINDOW_S


@dataclass(frozen=True)
class Situation:
    """What is known when a prompt comes.

    Args:
        prompt_tokens, uncached_tokens: of the prompt; unknown counts as uncached.
        running: answers that are being written here.
        queued_tokens: tokens of prompts that were sent to prefill and are not done.
        prefill_replicas: that are ready.
    """

    prompt_tokens: int
    uncached_tokens: int
    running: int
    queued_tokens: int
    prefill_replicas: int


REMOTE, SHORT, BUSY = "remote", "local-short", "local-busy"


@dataclass
class Placement:
    """Decides for each prompt.

    Args:
        mode: "auto", "always", "never", or the number of uncached tokens from which on prefill runs elsewhere.
        speeds: as measured so far.
        share: how much of its time this replica may spend on prefill, in "auto".
    """

    mode: str | int
    speeds: Speeds
    share: Share

    def decide(self, situation: Situation) -> tuple[str, str | None]:
        """The path of a prompt, and why it is not remote."""
        if self.mode == "always":
            return REMOTE, None
        if self.mode == "never":
            return SHORT, "prefill never runs elsewhere here"
        if isinstance(self.mode, int):
            few = situation.uncached_tokens < self.mode
            return (SHORT, f"fewer than {self.mode} uncached tokens") if few else (REMOTE, None)
        return self._cheaper(situation)

    def _cheaper(self, situation: Situation) -> tuple[str, str | None]:
        here_s = self.speeds.here_s(situation.uncached_tokens)
        elsewhere_s = self.speeds.elsewhere_s(situation.prompt_tokens)
        if here_s is None or elsewhere_s is None or not self.share.has_room(here_s):
            return REMOTE, None
        cost_s = here_s * (1 + situation.running)
        if cost_s < elsewhere_s:
            return SHORT, "prefill elsewhere would cost more than here"
        queue_s = self.speeds.queue_s(situation.queued_tokens, situation.prefill_replicas) or 0.0
        if cost_s < queue_s:
            return BUSY, "prefill's queue would cost more than prefill here"
        return REMOTE, None
