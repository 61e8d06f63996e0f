"""What `diptych bench` prints: one run by phase, and two sides beside each other."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from rich.table import Table

from diptych.bench.results import Result
from diptych.bench.verdict import Comparison
from diptych.cli.console import format_bytes, out

_COLUMNS = ("p50", "p90", "p95", "p99")
_PARTS = (
    ("prefill_queue_ms", "  prefill queue"),
    ("prefill_ms", "  prefill"),
    ("kv_transfer_ms", "  KV transfer"),
    ("decode_queue_ms", "  decode queue"),
    ("first_step_ms", "  first decode step"),
    ("local_queue_ms", "  queue, without KV transfer"),
    ("local_prefill_ms", "  prefill, without KV transfer"),
    ("other_ms", "  the rest"),
)


def print_result(result: Result) -> None:
    """Print one run: what clients saw, what each phase took of it, and what speaks against it."""
    console, told = out(), result.to_json()
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column(f"{result.topology}, {result.load}")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    _add(table, "TTFT, ms", told["ttft_ms"])
    for key, name in _PARTS:
        _add(table, name, told["phases"][key])
    _add(table, "ITL, ms", told["itl_ms"])
    _add(table, "TPOT, ms", told["tpot_ms"])
    _add(table, "KV transfer, GB/s", told["phases"]["kv_transfer_gb_per_s"])
    console.print(table)
    for line in _sentences(result, told):
        console.print(line, highlight=False, soft_wrap=True)
    for doubt in result.doubts:
        console.print(f"doubtful: {doubt}", style="yellow", highlight=False, soft_wrap=True)


def _sentences(result: Result, told: dict[str, Any]) -> Iterator[str]:
    flow, requests, phases = told["throughput"], told["requests"], told["phases"]
    yield (
        f"{requests['answered']} of {requests['sent']} answered in {told['lasted_s']:.0f} s: "
        f"{flow['requests_per_s']:.2f} requests/s, {flow['input_tokens_per_s']:.0f} tokens/s in, "
        f"{flow['output_tokens_per_s']:.0f} out."
    )
    for error, number in requests["errors"].items():
        yield f"{number} failed: {error}"
    if phases["paths"]:
        yield "Paths: " + ", ".join(f"{number} {path}" for path, number in phases["paths"].items()) + "."
    if phases["kv_transfers"] or phases["kv_transfers_failed"]:
        failed = f", {phases['kv_transfers_failed']} failed" if phases["kv_transfers_failed"] else ""
        yield f"KV transfers: {phases['kv_transfers']}, {format_bytes(phases['kv_transfer_bytes'])}{failed}."
    if phases["kv_cache_use"]:
        used = (f"{phase} {share:.0%}" for phase, share in phases["kv_cache_use"].items())
        yield f"KV cache in use at most: {', '.join(used)}."
    if result.goodput is not None:
        yield f"{result.goodput:.0%} of requests within {result.slo}."
    if (usd := result.usd_per_million_tokens) is not None:
        yield f"A million output tokens cost {usd:.2f} USD at this load, by the list price of {result.devices}."


def _add(table: Table, name: str, spread: dict[str, float] | None) -> None:
    if spread is not None:
        table.add_row(name, *(f"{spread[column]:.4g}" for column in _COLUMNS))


def print_comparison(comparison: Comparison) -> None:
    """Print both sides of one load: medians over the runs with what they range over, and their ratio."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("ms", no_wrap=True)
    for column in (comparison.name, "aggregated", "ratio"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for ratio in comparison.ratios:
        sides = [_repeats(side) for side in (ratio.split, ratio.aggregated)]
        table.add_row(ratio.name, *sides, f"{ratio.value:.2f}", "" if ratio.sure else "noise")
    out().print(f"{comparison.load}:", highlight=False)
    out().print(table)


def _repeats(values: Sequence[float]) -> str:
    """
    >>> _repeats([110.0, 99.5, 104.0])
    '104 (99.5 to 110)'
    """
    middle = _digits(median(values))
    return middle if len(values) == 1 else f"{middle} ({_digits(min(values))} to {_digits(max(values))})"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
