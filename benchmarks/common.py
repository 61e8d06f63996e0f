"""What the benchmarks share: streams with the time of each token, and numbers about them.

Both sides of a comparison run one after the other in one run, on the same cores, each alone on the machine.
"""

import asyncio
import signal
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from sides import MODEL, Side

WORDS = tuple("river stone lamp seven north paper cloud harbour green violin window forty silver".split())  # noqa: SIM905


@dataclass
class Stream:
    """One streamed answer: when it was sent and when each token came, in seconds."""

    sent: float
    tokens: list[float] = field(default_factory=list)

    @property
    def ttft_ms(self) -> float:
        return (self.tokens[0] - self.sent) * 1e3

    @property
    def tpot_ms(self) -> float:
        return (self.tokens[-1] - self.tokens[0]) / (len(self.tokens) - 1) * 1e3

    @property
    def itl_ms(self) -> list[float]:
        return [(b - a) * 1e3 for a, b in zip(self.tokens, self.tokens[1:], strict=False)]


async def stream(client: httpx.AsyncClient, prompt: str, max_tokens: int) -> Stream:
    """Stream one greedy answer of exactly `max_tokens` tokens."""
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    answer = Stream(time.monotonic())
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                answer.tokens.append(time.monotonic())
    return answer


def client_of(side: Side) -> httpx.AsyncClient:
    """A client for many requests at a time."""
    return httpx.AsyncClient(base_url=side.url, headers=side.headers, timeout=600.0, trust_env=False)


def prompt_of(words: int, seed: int) -> str:
    """A prompt of about `words` tokens that no cache knows."""
    step = 1 + seed % 11
    return f"Note {seed}. " + " ".join(WORDS[(i * step + seed) % len(WORDS)] for i in range(words))


def percentile(values: list[float], share: float) -> float:
    """The value that `share` (0 to 1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def median(values: list[float]) -> float:
    """The middle value."""
    return statistics.median(values)


def print_ratios(
    rows: Mapping[str, tuple[float, float]],
    goals: Mapping[str, float],
    sides: tuple[str, str],
    note: str = "",
) -> int:
    """Print a table of milliseconds, ours and theirs, with their ratio and its goal; how many goals were missed."""
    mine, theirs = sides
    print(f"{'':26} {mine:>9} {theirs:>11}  ms   ratio  goal   {note}".rstrip())
    missed = 0
    for name, (ours, others) in rows.items():
        ratio, goal = ours / others, goals.get(name)
        missed += goal is not None and ratio > goal
        print(f"{name:26} {ours:9.0f} {others:11.0f}      {ratio:6.2f}  {f'≤ {goal}' if goal else ''}")
    return missed


def run(coroutine: Any) -> Any:
    """Run a coroutine; Ctrl-C ends the benchmark and, through the context managers, its services."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return asyncio.run(coroutine)
