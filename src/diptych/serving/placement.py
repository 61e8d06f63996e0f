"""Where a prompt's prefill runs: on a prefill replica, or here.

Prefill elsewhere spares the answers that are being written here from waiting; it costs the way (the call, the KV
transfer) and a place in the queue of prefill. Prefill here costs this prompt and every answer that is being written
the time it takes. Which costs less is a matter of measured times, never of a constant:

    here       seconds of prefill here x (1 + answers being written here)
    elsewhere  seconds of the way + seconds that prefill's queue takes

What costs less here than the way alone is short; what costs less here only because prefill has a queue, busy.

What is never done is never measured: while nothing runs here, a prompt that seems somewhat too long is computed here
from time to time, lest a price from a busy moment stays for ever. The way has the canary for that.
"""

import time
from collections import deque
from dataclasses import dataclass, field

from diptych.serving.costs import Costs
from diptych.serving.settings import Settings

SHARE_WINDOW_S = 10.0
_WORTH_A_TRY = 4.0
"""How many times the way's price a prompt may cost here that is computed here to learn it."""
_SHORT_QUEUE_S = 10.0
"""Up to so many seconds of prefill's queue anybody may ask for prefill elsewhere."""
REMOTE, SHORT, BUSY, WHOLE = "remote", "local-short", "local-busy", "local-whole"
RATHER_REMOTE = "rather remote"
"""What a client may wish that must not insist: prefill elsewhere, while that takes nobody's turn for long."""


@dataclass
class Share:
    """How much of this replica's time went into prefill lately.

    Args:
        most: of its time, from 0 to 1.
    """

    most: float
    _spent: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, seconds: float, now: float | None = None) -> None:
        """Note prefill that was begun here."""
        self._spent.append((time.monotonic() if now is None else now, seconds))

    def taken(self, now: float | None = None) -> float:
        """The share of the last seconds that prefill took here."""
        now = time.monotonic() if now is None else now
        while self._spent and self._spent[0][0] < now - SHARE_WINDOW_S:
            self._spent.popleft()
        return sum(spent for _, spent in self._spent) / SHARE_WINDOW_S

    def has_room(self, seconds: float, now: float | None = None) -> bool:
        """Whether so much more stays within the share."""
        return self.taken(now) + seconds / SHARE_WINDOW_S <= self.most


@dataclass(frozen=True)
class Situation:
    """What is known when a prompt comes.

    Args:
        prompt_tokens: of the prompt.
        uncached_tokens: of them, those not in this replica's prefix cache; unknown counts as uncached.
        running: answers that are being written here.
        queue_s: seconds of prefill that wait before it on the best prefill replica; None: unknown.
    """

    prompt_tokens: int
    uncached_tokens: int
    running: int
    queue_s: float | None


@dataclass
class Placement:
    """Decides for each prompt."""

    settings: Settings
    costs: Costs
    share: Share

    def decide(self, situation: Situation, wish: str | None = None) -> tuple[str, str | None]:
        """The path of a prompt, and why it is not remote.

        Args:
            situation: when it comes.
            wish: `remote` or `local`, which go before the settings, or `RATHER_REMOTE`, which does while prefill's
                queue is short and the settings have prefill elsewhere at all; None: nothing.
        """
        mode = self.settings.prefill
        if wish == RATHER_REMOTE:
            wish = "remote" if mode != "never" and (situation.queue_s or 0.0) <= _SHORT_QUEUE_S else None
        if wish == "remote" or (mode == "always" and wish is None):
            return REMOTE, None
        if wish == "local":
            return WHOLE, "the client asked for it"
        if mode == "never":
            return WHOLE, "orchestrator.prefill is never"
        if isinstance(mode, int):
            few = situation.uncached_tokens < mode
            return (SHORT, f"fewer than {mode} uncached tokens") if few else (REMOTE, None)
        return self._cheaper(situation)

    def _cheaper(self, situation: Situation) -> tuple[str, str | None]:
        here_s = self.costs.here.at(situation.uncached_tokens)
        way_s = self.costs.way.at(situation.prompt_tokens)
        if here_s is None or way_s is None or not self.share.has_room(here_s):
            return REMOTE, None
        cost_s = here_s * (1 + situation.running)
        if cost_s < way_s:
            return SHORT, "the way to prefill would cost more than prefill here"
        if cost_s < way_s + (situation.queue_s or 0.0):
            return BUSY, "prefill's queue would cost more than prefill here"
        if not situation.running and here_s < _WORTH_A_TRY * way_s and self.costs.here.is_stale():
            return SHORT, "prefill here was not measured lately"
        return REMOTE, None
