"""The canary prompts, and how two answers to one prompt are compared."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NEW_TOKENS = 8
TOLERANCE = 0.2
"""By how much log-probabilities of one token may differ on the two ways, in nats. 16-bit numbers, summed in another
order, differ by some hundredths; a wrong KV cache moves them by whole numbers."""

TEXT = (
    "The lighthouse keeper wrote the weather into a book every morning: the wind, the height of the waves, and the "
    "ships that passed. On the first day of March the wind came from the north, and three ships passed before noon. "
    "On the second day there was fog, and nobody could see the harbour. On the third day the wind came from the south, "
    "and the keeper counted seven ships, of which two had red sails. His daughter asked him why he wrote it all down. "
    "He said that a book remembers what people forget, and that the sea never does the same thing twice. "
)
SYSTEM = "You are a helpful guide in a small museum by the sea. " + TEXT
TURNS = ("How many ships passed on the first day?", "And from where did the wind come on the third day?")


def of_lengths(tokens: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Prompts of exactly these lengths, out of a text's tokens; each begins elsewhere in it."""
    prompts = []
    for number, length in enumerate(lengths):
        repeated = list(tokens[number:]) + list(tokens) * math.ceil(length / max(1, len(tokens)))
        prompts.append(repeated[:length])
    return prompts


def around_a_block(block_tokens: int, most: int) -> list[int]:
    """Lengths below, at and above a block, of a single token, and of several blocks and a half; none above `most`.

    >>> around_a_block(16, 8190)
    [1, 15, 16, 17, 56]
    """
    wanted = {1, block_tokens - 1, block_tokens, block_tokens + 1, 3 * block_tokens + block_tokens // 2}
    return sorted({min(length, most) for length in wanted if length > 0})


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


def tokens_of(answer: Mapping[str, Any]) -> list[Token]:
    """The tokens of a completion or a chat completion that was asked for log-probabilities."""
    choice = (answer.get("choices") or [{}])[0]
    told = choice.get("logprobs") or {}
    if "content" in told:  # a chat completion
        return [
            Token(
                str(one["token"]),
                float(one["logprob"]),
                {str(each["token"]): float(each["logprob"]) for each in one.get("top_logprobs") or ()},
            )
            for one in told.get("content") or ()
        ]
    tops = told.get("top_logprobs") or []
    return [
        Token(str(name), float(logprob), {str(key): float(value) for key, value in (tops[i] or {}).items()})
        for i, (name, logprob) in enumerate(
            zip(told.get("tokens") or (), told.get("token_logprobs") or (), strict=True)
        )
    ]


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
