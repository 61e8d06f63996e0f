"""How two greedy answers to one prompt are compared: the same tokens, or others that both held as nearly as probable.

Standard library only: `diptych verify` imports this module as well.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TOLERANCE = 0.2
"""By how much log-probabilities of one token may differ on the two ways, in nats. 16-bit numbers, summed in another
order, differ by some hundredths; a wrong KV cache moves them by whole numbers."""


@dataclass(frozen=True)
class Token:
    """One token of an answer.

    Args:
        name: the token, told by its number where the server does.
        logprob: its own log-probability.
        others: those of the most probable tokens at its place.
    """

    name: str
    logprob: float
    others: Mapping[str, float]


@dataclass(frozen=True)
class Difference:
    """What is between two answers.

    Args:
        at: the place of the first other token, from 1; None: all are the same.
        apart: the largest difference of a log-probability up to there; 0 with none told.
        text: in words.
    """

    at: int | None
    apart: float
    text: str

    @property
    def is_right(self) -> bool:
        """The same tokens; or another one where both were as probable, within the tolerance."""
        return self.at is None or self.apart <= TOLERANCE


def compare(one: Sequence[Token], other: Sequence[Token]) -> Difference:
    """Compare two greedy answers up to their first different token; what follows it has another prompt."""
    apart = 0.0
    for place, (first, second) in enumerate(zip(one, other, strict=False), start=1):
        if first.name != second.name:
            apart = max(apart, _distance(first, second))
            text = f"token {place} is {first.name} and {second.name}, log-probabilities {_said(apart)} apart"
            return Difference(place, apart, text)
        apart = max(apart, abs(first.logprob - second.logprob))
    if len(one) != len(other):
        place = min(len(one), len(other)) + 1
        return Difference(place, math.inf, f"one ends after {len(one)} tokens, the other after {len(other)}")
    if not one:
        return Difference(1, math.inf, "no token was told of")
    return Difference(
        None, apart, f"{len(one)} tokens the same, log-probabilities {_said(apart)} apart at most"
    )


def _distance(first: Token, second: Token) -> float:
    """How far apart the two ways are about two tokens: what each way holds of its own token against the other's.

    Infinite where one way did not even think of the other's token.
    """
    theirs_here, ours_there = first.others.get(second.name), second.others.get(first.name)
    if theirs_here is None or ours_there is None:
        return math.inf
    return max(first.logprob - theirs_here, second.logprob - ours_there)


def _said(apart: float) -> str:
    return "too far" if math.isinf(apart) else f"{apart:.4f}"
