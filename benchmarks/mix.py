"""Short prompts among long ones, with real engines: Diptych against Ray's own application.

Requests arrive at a steady rate with exponential gaps, the same ones for both sides: half of them prompts of 30
tokens, half of 1500, each answered with a stream of `ANSWER_TOKENS`. The rate is found first, on the stock side: the
highest of `RATES` at which requests do not pile up. Run: `python benchmarks/mix.py [--rate REQUESTS_PER_S]`. Takes
about ten minutes on two cores.
"""

import argparse
import asyncio
import random
import sys
import time
from dataclasses import dataclass

import httpx

from common import Stream, client_of, median, percentile, print_ratios, prompt_of, run, stream
from sides import Side, diptych_up, stock_up

SHORT_TOKENS, LONG_TOKENS, ANSWER_TOKENS = 30, 1500, 24
RATES = (0.08, 0.12, 0.16, 0.2, 0.28)
FOR_S, TRIAL_S = 120.0, 75.0
_WORDS_OF = {SHORT_TOKENS: 24, LONG_TOKENS: 1490}
_KEEPS_UP = 1.25
GOALS = {"TTFT of the short, p50": 0.5, "ITL p99": 1.0}


@dataclass(frozen=True)
class Arrival:
    """When a request comes, in seconds from the start, and how long its prompt is, in tokens."""

    at: float
    tokens: int


@dataclass(frozen=True)
class Figures:
    """Times in ms of a run at one rate; the seconds from its start to its last token."""

    short_ttft_p50: float
    long_ttft_p50: float
    itl_p50: float
    itl_p99: float
    took_s: float
    requests: int


def arrivals(rate: float, for_s: float) -> list[Arrival]:
    """The same requests for every side: exponential gaps, and as many short prompts as long ones."""
    chance, at, found = random.Random(4), 0.0, []
    count = max(2, 2 * round(rate * for_s / 2))
    kinds = [SHORT_TOKENS, LONG_TOKENS] * (count // 2)
    chance.shuffle(kinds)
    for tokens in kinds:
        found.append(Arrival(at, tokens))
        at += chance.expovariate(rate)
    scale = for_s / at
    return [Arrival(one.at * scale, one.tokens) for one in found]


async def play(side: Side, rate: float, for_s: float, seed: int) -> Figures:
    """Send what arrives when it arrives, and wait for all answers."""
    async with client_of(side) as client:
        began = time.monotonic()
        sent = [
            asyncio.create_task(_one(client, one, began, seed + number))
            for number, one in enumerate(arrivals(rate, for_s))
        ]
        answers = [await task for task in sent]
        took_s = time.monotonic() - began
    by_kind = {kind: [a.ttft_ms for k, a in answers if k == kind] for kind in (SHORT_TOKENS, LONG_TOKENS)}
    gaps = [gap for _, answer in answers for gap in answer.itl_ms]
    return Figures(
        median(by_kind[SHORT_TOKENS]),
        median(by_kind[LONG_TOKENS]),
        percentile(gaps, 0.5),
        percentile(gaps, 0.99),
        took_s,
        len(answers),
    )


async def _one(client: httpx.AsyncClient, one: Arrival, began: float, seed: int) -> tuple[int, Stream]:
    await asyncio.sleep(max(0.0, began + one.at - time.monotonic()))
    return one.tokens, await stream(client, prompt_of(_WORDS_OF[one.tokens], seed), ANSWER_TOKENS)


def sustained_rate(side: Side) -> float:
    """The highest of `RATES` at which a run ends soon after its last request came."""
    best = RATES[0]
    for number, rate in enumerate(RATES):
        figures = run(play(side, rate, TRIAL_S, 10_000 * (number + 1)))
        keeps_up = figures.took_s <= TRIAL_S * _KEEPS_UP
        print(f"stock at {rate:5.3f}/s: {figures.took_s:5.0f} s for {TRIAL_S:.0f} s of requests", flush=True)
        if not keeps_up:
            break
        best = rate
    return best


def main() -> int:
    """Find the rate, run both sides at it and print the ratios; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, help="requests per second; without it, it is found")
    asked = parser.parse_args()
    with stock_up() as side:
        run(play(side, 1.0, 4.0, 1))
        rate = asked.rate or sustained_rate(side)
        stock = run(play(side, rate, FOR_S, 100))
    with diptych_up("diptych") as side:
        run(play(side, 1.0, 4.0, 1))
        ours = run(play(side, rate, FOR_S, 100))
    return report(rate, ours, stock)


def report(rate: float, ours: Figures, stock: Figures) -> int:
    """Print both sides; 1 when a goal is missed."""
    rows = {
        "TTFT of the short, p50": (ours.short_ttft_p50, stock.short_ttft_p50),
        "TTFT of the long, p50": (ours.long_ttft_p50, stock.long_ttft_p50),
        "ITL p50": (ours.itl_p50, stock.itl_p50),
        "ITL p99": (ours.itl_p99, stock.itl_p99),
    }
    print(
        f"{rate} requests/s, {ours.requests} of them; done after {ours.took_s:.0f} and {stock.took_s:.0f} s"
    )
    return int(print_ratios(rows, GOALS, ("diptych", "stock")) > 0)


if __name__ == "__main__":
    sys.exit(main())
