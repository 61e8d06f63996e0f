"""A service's first prompts: it is up once a real KV transfer carried one, over what was asked for.

Light versions of the proofs of split and transport; the others are for a service that runs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from diptych.errors import BusyError, DiptychError
from diptych.verify import split, transport
from diptych.verify.asking import Asking
from diptych.verify.proof import FAILS, WARNS, Proof

_TOKENS_TO_MEET, _TOKENS = 5, 160
_BUSY_FOR_S, _PAUSE_S = 30.0, 1.0
"""What stands before the replicas hears of them some moments after they are up, and refuses until then."""

T = TypeVar("T")


@dataclass(frozen=True)
class Carried:
    """What the first KV transfer carried, and how fast; `remark` is what is not as it should be, if anything."""

    tokens: int
    mib: float
    ms: float
    remark: str = ""

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {self.mib:.1f} MiB in {self.ms:.1f} ms"


def answer(asking: Asking) -> None:
    """The first answer of an engine that does both phases.

    Raises:
        DiptychError: it was not answered.
    """
    asked(lambda: asking.complete("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 2}, None))


def meet(asking: Asking) -> None:
    """The first prompt through both phases: the engines meet and exchange where their memory lies.

    Raises:
        DiptychError: its KV cache did not cross.
    """
    _holds(split.prove(asked(lambda: asking.probe([_TOKENS_TO_MEET]))))


def transfer(asking: Asking) -> Carried:
    """A prompt of a few blocks through each pair of replicas, and what it proves.

    Raises:
        DiptychError: its KV cache did not cross from prefill to decode, or not over the transport that was asked for;
            the message says what happened instead.
    """
    told = asked(lambda: asking.probe([_TOKENS]))
    _holds(split.prove(told))
    proof = _holds(transport.prove(told))
    transfers = [
        one for pair in told["pairs"] for one in pair["transfers"] if one.get("ok") and one.get("bytes")
    ]
    if not transfers:
        raise DiptychError("The split is not proven: the replicas changed meanwhile.", "Try it again.")
    carried = transfers[0]
    remark = proof.says if proof.state == WARNS else ""
    return Carried(carried["tokens"], carried["bytes"] / 2**20, carried["ms"], remark)


def asked(work: Callable[[], T]) -> T:
    """What comes of asking the endpoint, which may take no request for the first moments.

    Raises:
        DiptychError: it does not answer, or refuses; in words of a start.
    """
    deadline = time.monotonic() + _BUSY_FOR_S
    while True:
        try:
            return work()
        except DiptychError as error:
            if not isinstance(error, BusyError) or time.monotonic() > deadline:
                message = f"The first prompt of the service was not answered. {error.message}"
                raise DiptychError(message, error.hint) from error
        time.sleep(_PAUSE_S)


def _holds(proof: Proof) -> Proof:
    if proof.state == FAILS:
        raise DiptychError(f"The {proof.name} is not proven. {proof.says}", proof.do)
    return proof
