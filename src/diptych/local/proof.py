"""The first prompts of a service: ready only after a real KV transfer carried one, over what was asked for.

Light versions of `diptych verify`'s proofs of split and transport; the others are for a service that runs.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diptych.endpoint import Endpoint
from diptych.errors import DiptychError, StartError
from diptych.local.events import EventLog
from diptych.local.plan import Plan
from diptych.verify import split, transport
from diptych.verify.asking import Asking
from diptych.verify.proof import FAILS, WARNS, Proof

_TOKENS_TO_MEET, _TOKENS = 5, 160
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
    finally:
        asking.close()


def _stage(events: EventLog, stage: str, work: Callable[[], str]) -> None:
    events.append("start", stage)
    events.append("done", stage, work())


def _answer(asking: Asking) -> str:
    _asked(lambda: asking.complete("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 2}, None))
    return ""


def _first_handshake(asking: Asking) -> str:
    """The first prompt that goes through both phases: the engines meet and exchange where their memory lies."""
    deadline = time.monotonic() + _PREFILL_SEEN_WITHIN_S
    while not any(replica["ready"] for replica in _asked(asking.phases).get("prefill", [])):
        if time.monotonic() > deadline:
            raise StartError(
                "The decode engine does not see a prefill replica.", "`diptych logs decode` shows why."
            )
        time.sleep(0.2)
    _holds(split.prove(_asked(lambda: asking.probe([_TOKENS_TO_MEET]))))
    return "prefill and decode met"


def _transferred(asking: Asking) -> str:
    told = _asked(lambda: asking.probe([_TOKENS]))
    _holds(split.prove(told))
    proof = _holds(transport.prove(told))
    carried = told["pairs"][0]["transfers"][0]
    text = f"{carried['tokens']} tokens, {carried['bytes'] / 2**20:.1f} MiB in {carried['ms']:.1f} ms"
    return f"{text}; {proof.says}" if proof.state == WARNS else text


def _holds(proof: Proof) -> Proof:
    if proof.state == FAILS:
        raise StartError(f"The {proof.name} is not proven. {proof.says}", proof.do)
    return proof


def _asked(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except DiptychError as error:
        raise StartError(
            f"The first prompt of the service was not answered. {error.message}", error.hint
        ) from error
