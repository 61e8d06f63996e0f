"""The first prompts of a service on this machine, as stages of its start."""

import time
from collections.abc import Callable
from pathlib import Path

from diptych.endpoint import Endpoint
from diptych.errors import DiptychError, StartError
from diptych.local.events import EventLog
from diptych.local.plan import Plan
from diptych.verify import first
from diptych.verify.asking import Asking

_PREFILL_SEEN_WITHIN_S = 30.0


def prove(plan: Plan, events: EventLog) -> None:
    """Send the first prompts and look at what they did.

    Raises:
        StartError: the prompt's KV cache did not cross from prefill to decode, or not over the transport that was
            asked for; the message says what happened instead.
    """
    asking = Asking(Endpoint(plan.url, Path(plan.admin_key_file), plan.model))
    try:
        if plan.topology == "aggregated":
            _stage(events, "first answer", lambda: _answer(asking))
            return
        _stage(events, "handshake", lambda: _first_handshake(asking))
        _stage(events, "first KV transfer", lambda: _transferred(asking))
    except StartError:
        raise
    except DiptychError as error:
        raise StartError(error.message, error.hint) from error
    finally:
        asking.close()


def _stage(events: EventLog, stage: str, work: Callable[[], str]) -> None:
    events.append("start", stage)
    events.append("done", stage, work())


def _answer(asking: Asking) -> str:
    first.answer(asking)
    return ""


def _first_handshake(asking: Asking) -> str:
    deadline = time.monotonic() + _PREFILL_SEEN_WITHIN_S
    while not any(replica["ready"] for replica in first.asked(asking.phases).get("prefill", [])):
        if time.monotonic() > deadline:
            raise StartError(
                "The decode engine does not see a prefill replica.", "`diptych logs decode` shows why."
            )
        time.sleep(0.2)
    first.meet(asking)
    return "prefill and decode met"


def _transferred(asking: Asking) -> str:
    carried = first.transfer(asking)
    return f"{carried}; {carried.remark}" if carried.remark else str(carried)
