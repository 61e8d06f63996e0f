"""Start-up, speed alone, memory and idling: Diptych against Ray's own prefill/decode application.

Stock: `ray.serve.llm:build_pd_openai_app` with the settings that a CPU needs, by `ray start` and `serve deploy`.
Run: `python benchmarks/stock.py`. Takes about five minutes on two cores. Model cached, everything installed.
"""

import sys
from dataclasses import dataclass

from common import client_of, median, prompt_of, run, stream
from sides import Side, diptych_up, stock_up

TOKENS, REPEATS = 48, 5
GOALS = {"first token": 0.6, "TPOT alone": 0.5, "memory": 0.75}


@dataclass
class Figures:
    """First token in seconds from the start command, TPOT and TTFT in ms, memory in GiB, idle share of a core."""

    first_token_s: float
    ttft_ms: float
    tpot_ms: float
    memory_gib: float
    idle_share: float


async def alone(side: Side) -> tuple[float, float]:
    """Median TTFT and TPOT in ms of one request at a time."""
    async with client_of(side) as client:
        await stream(client, prompt_of(60, 0), 8)
        answers = [await stream(client, prompt_of(60, seed), TOKENS) for seed in range(1, REPEATS + 1)]
    return median([a.ttft_ms for a in answers]), median([a.tpot_ms for a in answers])


def measure(side: Side) -> Figures:
    """All figures of one side that is up."""
    ttft_ms, tpot_ms = run(alone(side))
    return Figures(side.first_token_s, ttft_ms, tpot_ms, side.memory_bytes() / 2**30, side.idle_share())


def main() -> int:
    """Run both sides and print the ratios; 1 when a goal is missed."""
    with stock_up() as side:
        stock = measure(side)
    with diptych_up("diptych") as side:
        ours = measure(side)
    rows = {
        "first token": (ours.first_token_s, stock.first_token_s, "s"),
        "TPOT alone": (ours.tpot_ms, stock.tpot_ms, "ms"),
        "TTFT alone": (ours.ttft_ms, stock.ttft_ms, "ms"),
        "memory": (ours.memory_gib, stock.memory_gib, "GiB"),
        "idle": (ours.idle_share * 100, stock.idle_share * 100, "% of a core"),
    }
    missed = 0
    print(f"{'':12} {'diptych':>9} {'stock':>9}  unit         ratio  goal")
    for name, (mine, theirs, unit) in rows.items():
        ratio, goal = mine / theirs if theirs else float("inf"), GOALS.get(name)
        missed += goal is not None and ratio > goal
        print(f"{name:12} {mine:9.1f} {theirs:9.1f}  {unit:12} {ratio:5.2f}  {f'≤ {goal}' if goal else ''}")
    missed += ours.idle_share > 0.1
    print(f"idle goal: under 10 % of a core ten seconds after the last request: {ours.idle_share:.1%}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
