"""What an engine's output tells of itself: the last one of a request, and where its time went."""

from collections.abc import AsyncIterator
from typing import Any


async def last_output(outputs: AsyncIterator[Any]) -> Any:
    """The last output of a request."""
    return [each async for each in outputs][-1]


def queued_s(metrics: Any) -> float | None:
    """Seconds that a request waited for the engine; None where it does not tell."""
    return _between(metrics, "queued_ts", "scheduled_ts")


def computed_s(metrics: Any) -> float | None:
    """Seconds that the engine computed until the first token; None where it does not tell."""
    return _between(metrics, "scheduled_ts", "first_token_ts")


def inside_s(metrics: Any) -> float | None:
    """Seconds from the engine's taking a request to its first token; None where it does not tell."""
    return _between(metrics, "queued_ts", "first_token_ts")


def milliseconds(seconds: float | None) -> float | None:
    """To the microsecond, as answers and log lines tell them.

    >>> milliseconds(0.0123456), milliseconds(None)
    (12.346, None)
    """
    return None if seconds is None else round(seconds * 1e3, 3)


def _between(metrics: Any, start: str, end: str) -> float | None:
    started, ended = getattr(metrics, start, None), getattr(metrics, end, None)
    return float(ended - started) if started and ended else None
