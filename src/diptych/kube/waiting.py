"""Waits that say what they wait for: polling with a deadline, and the first thing in the way in words."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from diptych.errors import ClusterError
from diptych.kube.refusals import UnreachableError
from diptych.progress import Event, View

_NUMBERS_EVERY_S = 10.0
"""A blocker in which only numbers are others is told again so often."""
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Seen:
    """What one look found.

    Args:
        done: what was waited for is there.
        blocker: the first thing in the way, in words.
        fatal: why waiting is pointless; None while it is not.
        hint: what to do about the blocker.
    """

    done: bool
    blocker: str = ""
    fatal: str | None = None
    hint: str = ""


def wait_for(
    look: Callable[[], Seen], *, stage: str, view: View, deadline_s: float, every_s: float = 2.0
) -> Seen:
    """Look every `every_s` seconds until it is done; the view is told of each new blocker.

    An API server that is away is a blocker like any other: `look` may raise `UnreachableError`.

    Returns:
        What the last look saw.

    Raises:
        ClusterError: a look found something fatal, or `deadline_s` seconds went by; the message has the last
            blocker and the time.
    """
    began = time.monotonic()
    told, told_at = "", began
    while True:
        seen = _look(look)
        if seen.done:
            return seen
        passed = time.monotonic() - began
        if seen.fatal:
            raise ClusterError(seen.fatal, seen.hint)
        if passed >= deadline_s:
            raise ClusterError(
                f"{stage}: not there after {duration(passed)}. {seen.blocker}".rstrip(),
                seen.hint or "Run the same command again to go on waiting, with --timeout for longer.",
            )
        is_same = _NUMBER.sub("", seen.blocker) == _NUMBER.sub("", told)
        is_due = time.monotonic() - told_at >= _NUMBERS_EVERY_S
        if seen.blocker and seen.blocker != told and (is_due or not is_same):
            told, told_at = seen.blocker, time.monotonic()
            view.stage(Event("detail", stage, told, seen.hint, time.time()))
        view.tick()
        time.sleep(max(0.0, min(every_s, deadline_s - passed)))


def _look(look: Callable[[], Seen]) -> Seen:
    try:
        return look()
    except UnreachableError as error:
        return Seen(done=False, blocker=error.message, hint=error.hint)


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(42), duration(185), duration(7500)
    ('42 s', '3 min 5 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
