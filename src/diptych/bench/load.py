"""What is asked of a service while it is measured: how many requests, how long, how alike, and when each is sent.

A load becomes a trace: of each request its time, its lengths and the ids of its blocks of `BLOCK` tokens. Blocks of
equal id have equal tokens, so that shared beginnings and conversations are exact, and both sides of a comparison get
the same tokens at the same times.
"""

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from diptych.errors import DocumentError

BLOCK = 16
"""Tokens per block of a trace."""

Arrivals = Literal["poisson", "fixed"]


@dataclass(frozen=True)
class Request:
    """One request of a trace: when it is sent (seconds from the start), its tokens, and its blocks' ids."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "timestamp": round(self.at_s, 4),
            "input_length": self.input_tokens,
            "output_length": self.output_tokens,
            "hash_ids": list(self.blocks),
        }


@dataclass(frozen=True)
class Load:
    """A kind of traffic.

    Args:
        input_tokens: tokens of a prompt, the shared ones included; of a conversation's first prompt.
        output_tokens: tokens of each answer.
        rate: requests per second; None: as fast as `concurrency` allows.
        arrivals: `poisson` (gaps are exponentially distributed) or `fixed` (all gaps equal).
        concurrency: most requests at once; None: no bound.
        requests: how many in all.
        shared_tokens: of a prompt, the tokens at its beginning that all prompts of a group have.
        groups: how many such beginnings there are.
        turns: requests of one conversation, each prompt being the last one with its answer and `turn_tokens` more.
        turn_tokens: tokens that each further turn adds besides.
        pause_s: from one turn to the next.
        seed: of arrivals.
        source: the file that the requests are from, whose lengths and rate the others then sum up; "": none.
    """

    input_tokens: int = 2000
    output_tokens: int = 256
    rate: float | None = 1.0
    arrivals: Arrivals = "poisson"
    concurrency: int | None = None
    requests: int = 100
    shared_tokens: int = 0
    groups: int = 1
    turns: int = 1
    turn_tokens: int = 0
    pause_s: float = 0.0
    seed: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        if self.rate is None and self.concurrency is None:
            raise DocumentError(
                "Neither a rate nor a concurrency bounds the load.", "Give --rate or --concurrency."
            )
        if self.rate is not None and self.rate <= 0:
            raise DocumentError(f"A rate of {self.rate:g} requests/s sends nothing.", "Give one above 0.")
        if self.arrivals not in get_args(Arrivals):
            raise DocumentError(f"There are no arrivals {self.arrivals!r}.", "Give poisson or fixed.")
        for name in ("input_tokens", "output_tokens", "requests", "turns", "groups"):
            if getattr(self, name) < 1:
                raise DocumentError(f"{name.replace('_', ' ')} must be at least 1.")
        if self.shared_tokens > self.input_tokens:
            raise DocumentError(
                f"{self.shared_tokens} shared tokens do not fit into prompts of {self.input_tokens}.",
                "Give fewer shared tokens, or longer prompts.",
            )

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence: its prompt and its answer."""
        grown = (self.turns - 1) * (self.output_tokens + self.turn_tokens)
        return self.input_tokens + grown + self.output_tokens

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """
        >>> str(Load(input_tokens=8000, output_tokens=256, rate=4))
        '4 requests/s of 8000/256'
        """
        how = f"{self.rate:g} requests/s" if self.rate is not None else f"{self.concurrency} at once"
        return (
            f"{how} from {self.source}"
            if self.source
            else f"{how} of {self.input_tokens}/{self.output_tokens}"
        )


PRESETS: Mapping[str, Load] = {
    "rag": Load(input_tokens=8000, output_tokens=256, rate=1.0, requests=100, shared_tokens=512),
    "summarise": Load(input_tokens=6000, output_tokens=400, rate=1.0, requests=100),
    "agent": Load(
        input_tokens=3000,
        output_tokens=150,
        rate=1.0,
        requests=120,
        shared_tokens=2048,
        turns=6,
        turn_tokens=300,
        pause_s=2.0,
    ),
    "chat": Load(input_tokens=500, output_tokens=300, rate=2.0, requests=200),
}
"""Kinds of traffic by name: long prompts with short answers, documents, long shared prefixes with many turns, chat."""


def trace(load: Load) -> list[Request]:
    """The load's requests in the order of their times; the same for the same load."""
    starts = _arrivals(load)
    fresh = itertools.count(load.groups * (load.shared_tokens // BLOCK))
    conversations = (
        _conversation(load, number, at_s, fresh)
        for number, at_s in enumerate(itertools.islice(starts, -(-load.requests // load.turns)))
    )
    requests = sorted(itertools.chain.from_iterable(conversations), key=lambda request: request.at_s)
    return requests[: load.requests]


def _arrivals(load: Load) -> Iterator[float]:
    """Times at which conversations begin: as many requests per second, each turn counting, as `rate` says."""
    chance = random.Random(load.seed)
    at_s = 0.0
    while True:
        yield at_s
        if load.rate is not None:
            rate = load.rate / load.turns
            at_s += chance.expovariate(rate) if load.arrivals == "poisson" else 1 / rate


def _conversation(load: Load, number: int, at_s: float, fresh: Iterator[int]) -> Iterator[Request]:
    shared = load.shared_tokens // BLOCK
    group = number % load.groups
    blocks = list(range(group * shared, (group + 1) * shared))
    tokens = load.input_tokens
    for turn in range(load.turns):
        blocks += itertools.islice(fresh, -(-tokens // BLOCK) - len(blocks))
        yield Request(at_s + turn * load.pause_s, tokens, load.output_tokens, tuple(blocks))
        # The block that was not full is full of other tokens in the next turn.
        blocks = blocks[: tokens // BLOCK]
        tokens += load.output_tokens + load.turn_tokens
