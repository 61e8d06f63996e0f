"""The way of a request, with engines that answer at once: Diptych against Ray's own application and bare vLLM.

One side after the other, each alone on the machine. Figures: the time to a chat's first streamed token, one request
at a time; requests per second at 64 clients; streamed tokens per second of processor time, over all processes of a
side. Run: `python benchmarks/way.py [SIDE ...]`. Takes about eight minutes on two cores.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from common import median, percentile, run
from sides import MODEL, Side
from way_sides import WAYS

ALONE, CLIENTS, STREAMS, STREAM_TOKENS, FOR_S, WARM_UP_S = 100, 64, 8, 200, 8.0, 3.0
GOALS = (
    ("diptych", "stock", "ttft_ms", "≤", 0.5),
    ("diptych", "stock", "requests_per_s", "≥", 3.0),
    ("diptych", "stock", "tokens_per_core_s", "≥", 3.0),
    ("diptych", "stock, direct", "ttft_ms", "≤", 1.0),
    ("diptych", "stock, direct", "requests_per_s", "≥", 1.0),
    ("diptych", "stock, direct", "tokens_per_core_s", "≥", 1.0),
    ("diptych", "bare vLLM", "ttft_ms", "≤", 1.2),
)


@dataclass(frozen=True)
class Figures:
    """Of one side: TTFT in ms, requests per second, tokens per second of processor time, tokens per chunk."""

    ttft_ms: float
    ttft_p90_ms: float
    requests_per_s: float
    tokens_per_core_s: float
    tokens_per_s: float
    tokens_per_chunk: float


class Client:
    """One connection pool to a side."""

    def __init__(self, side: Side, session: aiohttp.ClientSession) -> None:
        self._url = f"{side.url}/v1/chat/completions"
        self._session = session

    async def whole(self, tokens: int) -> None:
        """One answer that is not streamed; it went through both phases, where the side tells."""
        async with self._session.post(self._url, json=_chat(tokens)) as response:
            await response.read()
            response.raise_for_status()
            told = {name: value for name, value in response.headers.items() if name.startswith("x-diptych-")}
            assert told.get("x-diptych-path", "remote") == "remote", told

    async def first_token_ms(self, tokens: int) -> float:
        """The time to the first chunk with content of a streamed answer, which is read to its end."""
        first, sent = 0.0, time.perf_counter()
        async with self._session.post(self._url, json=_chat(tokens, stream=True)) as response:
            response.raise_for_status()
            async for line in response.content:
                if not first and _has_content(line):
                    first = time.perf_counter()
        return (first - sent) * 1e3

    async def stream(self, tokens: int) -> int:
        """One streamed answer; the number of its chunks with content."""
        chunks = 0
        async with self._session.post(self._url, json=_chat(tokens, stream=True)) as response:
            response.raise_for_status()
            async for line in response.content:
                chunks += _has_content(line)
        return chunks


def _has_content(line: bytes) -> bool:
    return b'"content":"' in line and b'"content":""' not in line


def _chat(tokens: int, stream: bool = False) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Say something about rivers and stones."}]
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": stream}


async def during(seconds: float, clients: int, call: Callable[[], Awaitable[Any]]) -> tuple[list[Any], float]:
    """What `clients`, calling again and again for some seconds, got; and how long all of it took."""
    began, results = time.perf_counter(), []

    async def one() -> None:
        while time.perf_counter() - began < seconds:
            results.append(await call())

    await asyncio.gather(*(one() for _ in range(clients)))
    return results, time.perf_counter() - began


async def measure(side: Side) -> Figures:
    """All figures of one side that is up."""
    timeout, connector = aiohttp.ClientTimeout(total=120), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=side.headers, timeout=timeout, connector=connector) as session:
        client = Client(side, session)
        await during(WARM_UP_S, 8, lambda: client.stream(20))
        firsts = [await client.first_token_ms(16) for _ in range(ALONE)]
        await during(WARM_UP_S, CLIENTS, lambda: client.whole(2))
        answers, took_s = await during(FOR_S, CLIENTS, lambda: client.whole(2))
        before = side.cpu_seconds()
        chunks, streamed_s = await during(FOR_S, STREAMS, lambda: client.stream(STREAM_TOKENS))
        used_s, tokens = side.cpu_seconds() - before, len(chunks) * STREAM_TOKENS
    return Figures(
        ttft_ms=median(firsts),
        ttft_p90_ms=percentile(firsts, 0.9),
        requests_per_s=len(answers) / took_s,
        tokens_per_core_s=tokens / used_s,
        tokens_per_s=tokens / streamed_s,
        tokens_per_chunk=tokens / max(sum(chunks), 1),
    )


def judge(figures: dict[str, Figures]) -> int:
    """Print each goal of which both sides were measured; how many are missed."""
    missed = 0
    for mine, theirs, name, sense, goal in GOALS:
        if mine not in figures or theirs not in figures:
            continue
        ratio = getattr(figures[mine], name) / getattr(figures[theirs], name)
        met = ratio <= goal if sense == "≤" else ratio >= goal
        missed += not met
        print(f"{mine:16} / {theirs:14} {name:18} {ratio:6.2f}  {sense} {goal} {'' if met else 'missed'}")
    return missed


def main() -> int:
    """Measure the sides named on the command line, or all; 1 when a goal is missed."""
    figures: dict[str, Figures] = {}
    for name in sys.argv[1:] or WAYS:
        way, environment = WAYS[name]
        with way(name, environment) as side:
            figures[name] = run(measure(side))
        print(name, figures[name], flush=True)
    print(
        f"\n{'':16} {'TTFT':>7} {'p90 ms':>7} {'req/s':>7} {'tok/core-s':>10} {'tok/s':>7} {'tok/chunk':>9}"
    )
    for name, one in figures.items():
        print(
            f"{name:16} {one.ttft_ms:7.1f} {one.ttft_p90_ms:7.1f} {one.requests_per_s:7.1f} "
            f"{one.tokens_per_core_s:10.0f} {one.tokens_per_s:7.0f} {one.tokens_per_chunk:9.2f}"
        )
    return int(judge(figures) > 0)


if __name__ == "__main__":
    sys.exit(main())
