"""The canary prompts, and the tokens of what the endpoint answers to them; `diptych.serving.comparison` compares."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from diptych.serving.comparison import Token

NEW_TOKENS = 8

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
