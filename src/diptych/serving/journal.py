"""One line of JSON per request, in the log of the replica that answered it.

Nothing of what a client wrote is in it: no prompt, no answer, no key, no header, no name that it gave. The lines go
to the logger `diptych.request`, and from there to whatever handlers Ray Serve's own logger has: in a replica, its
log file.
"""

import json
import logging
from typing import Any

from diptych.serving.outputs import milliseconds
from diptych.serving.recent import recent
from diptych.serving.record import Leg, Record, most
from diptych.serving.routes import route_of

logger = logging.getLogger("diptych.request")
_serve_logger = logging.getLogger("ray.serve")

# To Serve's filters: not to the replica's standard error as well, and without the request's name, which a client
# may choose (x-request-id).
_FOR_SERVE = {"log_to_stderr": False, "skip_context_filter": True}


class _ToServe(logging.Handler):
    """Hands lines on to Ray Serve's logger, which writes those of no other logger."""

    def emit(self, record: logging.LogRecord) -> None:
        if _serve_logger.handlers and _serve_logger.isEnabledFor(record.levelno):
            _serve_logger.handle(record)


logger.setLevel(logging.INFO)
logger.addHandler(_ToServe())


def write(record: Record, status: int, seconds: float) -> None:
    """Write the line of a request whose answer has ended, and keep what it says for a while.

    Args:
        record: of the request.
        status: of its answer; 499 when the client left before its end.
        seconds: from the request to there.
    """
    told = entry(record, status, seconds)
    recent.add(told)
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", json.dumps(told, separators=(",", ":")), extra=_FOR_SERVE)


def entry(record: Record, status: int, seconds: float) -> dict[str, Any]:
    """What the line of a request says; docs/metrics.md tells of each field."""
    told = record.to_json()
    return {
        "request": record.id,
        "route": route_of(record.route),
        "status": status,
        "path": told["path"],
        "why": told["why"],
        "decode_replica": told["decode_replica"],
        "prefill_replica": told["prefill_replica"],
        "attempts": sum(leg.attempts for leg in record.legs),
        "prompts": len(record.legs),
        "prompt_tokens": _sum(leg.prompt_tokens for leg in record.legs),
        "cached_tokens": _sum(leg.cached_tokens for leg in record.legs),
        "uncached_tokens": told["uncached_tokens"],
        "output_tokens": sum(leg.output_tokens for leg in record.legs),
        "finish_reasons": finish_reasons(record.legs),
        "prefill_ms": told["prefill_ms"],
        "queue_ms": told["prefill_queue_ms"],
        "kv_transfer_ms": told["kv_transfer_ms"],
        "kv_transfer_post_ms": told["kv_transfer_post_ms"],
        "kv_transfer_bytes": told["kv_transfer_bytes"],
        "kv_transfer_failed": any(leg.kv_transfer_failed for leg in record.legs),
        "decode_queue_ms": most(leg.decode_queue_ms for leg in record.legs),
        "decode_compute_ms": most(leg.decode_compute_ms for leg in record.legs),
        "first_token_from": told["first_token_from"],
        "ttft_ms": milliseconds(first_token_s(record)),
        "total_ms": milliseconds(seconds),
        "priority": record.priority,
        "refusal": record.refusal.kind if record.refusal else None,
    }


def first_token_s(record: Record) -> float | None:
    """Seconds from the request to its first token, prefill's or decode's; None where there was none."""
    times = [leg.first_token_at for leg in record.legs if leg.first_token_at is not None]
    return max(0.0, min(times) - record.began_at) if times else None


def finish_reasons(legs: list[Leg]) -> list[str]:
    """Why each prompt's answer ended, in the engine's words; nothing for one that was cut short."""
    return [leg.finish_reason for leg in legs if leg.finish_reason is not None]


def _sum(values: Any) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
