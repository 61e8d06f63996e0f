"""What long prompts do to running answers: the split against the same engine aggregated on the same cores.

Two decode streams run while prompts of 1500 tokens arrive. The split has one core per phase; aggregated, one engine
has all of them. Run: `python benchmarks/aggregated.py`. Takes about six minutes on two cores.
"""

import asyncio
import sys
from dataclasses import dataclass

from common import Stream, client_of, median, percentile, print_ratios, prompt_of, run, stream
from sides import Side, diptych_up

STREAMS, STREAM_TOKENS, LONG_PROMPTS, LONG_WORDS, GAP_S = 2, 400, 6, 1500, 3.0
GOALS = {"ITL p99": 0.2, "ITL p50": 1.6}


@dataclass
class Figures:
    """All in ms: ITL of the running streams while long prompts arrive, TTFT of the long prompts."""

    itl_p50: float
    itl_p99: float
    long_ttft_p50: float
    tokens: int


async def load(side: Side) -> Figures:
    """Two streams, and long prompts one every `GAP_S` seconds beside them."""
    async with client_of(side) as client:
        await stream(client, prompt_of(60, 0), 8)
        await stream(client, prompt_of(LONG_WORDS, 1), 2)
        running = [
            asyncio.create_task(stream(client, prompt_of(40, 2 + i), STREAM_TOKENS)) for i in range(STREAMS)
        ]
        await asyncio.sleep(3.0)
        arriving = []
        for seed in range(LONG_PROMPTS):
            arriving.append(asyncio.create_task(stream(client, prompt_of(LONG_WORDS, 100 + seed), 2)))
            await asyncio.sleep(GAP_S)
        long_prompts = [await task for task in arriving]
        streams = [await task for task in running]
    return figures(streams, long_prompts)


def figures(streams: list[Stream], long_prompts: list[Stream]) -> Figures:
    """ITL counts only while long prompts were in the system."""
    began, ended = min(p.sent for p in long_prompts), max(p.tokens[0] for p in long_prompts)
    gaps = [
        (b - a) * 1e3
        for one in streams
        for a, b in zip(one.tokens, one.tokens[1:], strict=False)
        if began <= b <= ended
    ]
    ttft = median([p.ttft_ms for p in long_prompts])
    return Figures(percentile(gaps, 0.5), percentile(gaps, 0.99), ttft, len(gaps))


def main() -> int:
    """Run both sides and print the ratios; 1 when a goal is missed."""
    with diptych_up("aggregated", {"topology": "aggregated"}) as side:
        whole = run(load(side))
    with diptych_up("split") as side:
        split = run(load(side))
    rows = {
        "ITL p50": (split.itl_p50, whole.itl_p50),
        "ITL p99": (split.itl_p99, whole.itl_p99),
        "TTFT of long prompts, p50": (split.long_ttft_p50, whole.long_ttft_p50),
    }
    note = f"({split.tokens} and {whole.tokens} gaps)"
    return int(print_ratios(rows, GOALS, ("split", "aggregated"), note) > 0)


if __name__ == "__main__":
    sys.exit(main())
