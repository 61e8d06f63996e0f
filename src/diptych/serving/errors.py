"""Errors as OpenAI's API words them.

Standard library only: Serve's own processes, which have no engine, tell clients of errors too.
"""

from typing import Any

OVERLOADED, UNAVAILABLE, INVALID = "overloaded_error", "service_unavailable", "invalid_request_error"
TIMED_OUT = "timeout_error"
ENGINE_DIED = "The engine died while it wrote this answer."


def error_body(message: str, kind: str, code: int, param: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's API words it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


NOBODY_IS_UP = error_body(
    "No replica of decode is up; one is being started. Come back later.", UNAVAILABLE, 503
)
"""What a client is told at once while no replica that faces clients is up."""
