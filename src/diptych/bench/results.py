"""What a load came to: each request as the client saw it, its parts as the service recorded them, and their sum."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel

from diptych.bench.load import Load
from diptych.bench.slo import Slo

PERCENTILES = (50, 90, 95, 99)
_LONGEST_ERROR = 300
_PER_MILLION_HOUR = 1e6 / 3600
"""Hours that a million tokens take at one token per second."""


@dataclass(frozen=True)
class Sample:
    """One request as the client saw it.

    Args:
        sent_s: when it was sent, seconds from the first one.
        ttft_ms: from sending to the first token; None for one that failed.
        itl_ms: gaps between tokens that followed. Several tokens in one piece have gaps of 0.
        output_tokens: tokens of the answer, as the service counts them.
        error: why it failed; empty when it did not.
    """

    sent_s: float
    input_tokens: int
    output_tokens: int
    ttft_ms: float | None
    itl_ms: tuple[float, ...] = ()
    error: str = ""

    @classmethod
    def of(
        cls,
        start: float,
        ttft: float,
        itl: Sequence[float],
        inputs: int,
        outputs: int,
        error: str,
        wanted: int | None = None,
    ) -> "Sample":
        """A row of the client's results; times there are seconds.

        Args:
            wanted: tokens that the answer must have. The client takes a stream that ended early for a good one.
        """
        failed = error.strip().splitlines()[-1][:_LONGEST_ERROR] if error and error.strip() else ""
        if not failed and wanted is not None and outputs < wanted:
            failed = f"the answer ended before its {wanted} tokens were there"
        gaps = tuple(1000 * gap for gap in itl)
        return cls(start, inputs, outputs, None if failed else 1000 * ttft, gaps, failed)

    def to_json(self) -> dict[str, Any]:
        """As it is: `Sample(**…)` makes it again, to the microsecond."""
        return {
            "sent_s": round(self.sent_s, 6),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "ttft_ms": None if self.ttft_ms is None else round(self.ttft_ms, 3),
            "itl_ms": [round(gap, 3) for gap in self.itl_ms],
            "error": self.error,
        }

    def counted_from(self, start: float) -> "Sample":
        return replace(self, sent_s=self.sent_s - start)

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per output token after the first; None for answers of one token."""
        if self.output_tokens < 2 or self.error:
            return None
        return sum(self.itl_ms) / (self.output_tokens - 1)

    @property
    def total_ms(self) -> float | None:
        return None if self.ttft_ms is None else self.ttft_ms + sum(self.itl_ms)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of all don't exceed (nearest rank).

    >>> percentile([3.0, 1.0, 2.0], 50), percentile([1.0, 2.0], 99)
    (2.0, 2.0)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Percentiles and mean of what was measured; None where nothing was."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    shares = {f"p{percent}": round(percentile(known, percent), 3) for percent in PERCENTILES}
    return {**shares, "mean": round(sum(known) / len(known), 3), "count": len(known)}


@dataclass(frozen=True)
class Parts:
    """The parts of requests' way as the service recorded them; one mapping per request, in docs/metrics.md's fields.

    `kv_use` is the highest share of KV cache in use, by phase.
    """

    records: tuple[Mapping[str, Any], ...] = ()
    kv_use: Mapping[str, float] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Milliseconds, bytes, GB/s, and how many requests went which way.

        Percentiles don't add up, means do: those of `ttft_parts_mean_ms` come to the mean of `service_ttft_ms`.
        """
        splits = [parts for each in self.records if (parts := ttft_parts(each)) is not None]
        moved = [
            each for each in self.records if each.get("kv_transfer_bytes") and each.get("kv_transfer_ms")
        ]
        return {
            **{name: spread(_known(self.records, name)) for name in TTFT_PARTS if name != "kv_transfer_ms"},
            "kv_transfer_ms": spread(each.get("kv_transfer_ms") for each in self.records),
            "kv_transfer_post_ms": spread(each.get("kv_transfer_post_ms") for each in self.records),
            "service_ttft_ms": spread(each.get("ttft_ms") for each in self.records),
            "ttft_parts_mean_ms": {
                name: round(sum(parts[name] for parts in splits) / len(splits), 3) if splits else 0.0
                for name in TTFT_PARTS
            },
            "kv_transfers": len(moved),
            "kv_transfers_failed": sum(bool(each.get("kv_transfer_failed")) for each in self.records),
            "kv_transfer_bytes": sum(each["kv_transfer_bytes"] for each in moved),
            "kv_transfer_gb_per_s": spread(
                each["kv_transfer_bytes"] / each["kv_transfer_ms"] / 1e6 for each in moved
            ),
            "kv_cache_use": dict(self.kv_use),
            "paths": self.paths,
            "cached_tokens": sum(each.get("cached_tokens") or 0 for each in self.records),
            "prompt_tokens": sum(each.get("prompt_tokens") or 0 for each in self.records),
        }

    @property
    def paths(self) -> dict[str, int]:
        """How many requests went which way."""
        return dict(Counter(str(each.get("path")) for each in self.records))


TTFT_PARTS = (
    "prefill_queue_ms",
    "prefill_ms",
    "kv_transfer_ms",
    "decode_queue_ms",
    "first_step_ms",
    "local_queue_ms",
    "local_prefill_ms",
    "other_ms",
)
_OF_PREFILL = ("prefill_queue_ms", "prefill_ms")
_OF_DECODE = ("decode_queue_ms", "first_step_ms")
_OF_ONE_ENGINE = ("local_queue_ms", "local_prefill_ms")


def ttft_parts(record: Mapping[str, Any]) -> dict[str, float] | None:
    """What the service's time to first token is made of, in milliseconds; None of a request that got no token.

    No part is below 0 and all come to `ttft_ms`. A request of several prompts has the longest of each part, and more
    of them than its first token took: what comes first takes what there is. `other_ms` is the rest: the way to the
    replicas and what the engines do not tell. Where prefill gave the first token, all of decode comes after it.
    """
    ttft = record.get("ttft_ms")
    if ttft is None:
        return None
    left = _Left(ttft)
    prefill = left.take(record.get("prefill_ms"))
    queue = min(record.get("queue_ms") or 0.0, prefill)
    decode = {} if _is_from_prefill(record) else record
    moved = left.take(decode.get("kv_transfer_ms"))
    # Decode's engine has the request in its queue while its KV cache comes.
    waited = left.take((decode.get("decode_queue_ms") or 0.0) - moved)
    computed = left.take(decode.get("decode_compute_ms"))
    names = (*_OF_PREFILL, "kv_transfer_ms", *_computing(record), "other_ms")
    found = zip(names, (queue, prefill - queue, moved, waited, computed, left.ms), strict=True)
    return dict.fromkeys(TTFT_PARTS, 0.0) | dict(found)


def _is_from_prefill(record: Mapping[str, Any]) -> bool:
    return record.get("first_token_from") == "prefill"


def _computing(record: Mapping[str, Any]) -> tuple[str, str]:
    """What the times of the engine that answered are: a step of decode, or the queue and the prefill of a prompt."""
    return _OF_DECODE if record.get("path") == "remote" else _OF_ONE_ENGINE


def _known(records: Iterable[Mapping[str, Any]], part: str) -> Iterator[float]:
    """A part of those requests that have it."""
    for record in records:
        parts = ttft_parts(record)
        of_prefill = _OF_PREFILL if record.get("prefill_ms") else ()
        has_decode = record.get("decode_compute_ms") is not None and not _is_from_prefill(record)
        of_decode = _computing(record) if has_decode else ()
        if parts is not None and part in (*of_prefill, *of_decode, "other_ms"):
            yield parts[part]


class _Left:
    """What is left of a time, in milliseconds, while its parts are taken off it one after the other."""

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def take(self, wanted: float | None) -> float:
        taken = min(max(0.0, wanted or 0.0), self.ms)
        self.ms -= taken
        return taken


class KeptRecord(BaseModel):
    """What `Parts` looks at of the service's record of a request; the rest is left out."""

    path: str | None = None
    first_token_from: str | None = None
    ttft_ms: float | None = None
    prefill_ms: float | None = None
    queue_ms: float | None = None
    decode_queue_ms: float | None = None
    decode_compute_ms: float | None = None
    kv_transfer_ms: float | None = None
    kv_transfer_post_ms: float | None = None
    kv_transfer_bytes: int | None = None
    kv_transfer_failed: bool | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


_MEASURES: Mapping[str, Callable[[Sample], Iterable[float | None]]] = {
    "ttft": lambda sample: [sample.ttft_ms],
    "itl": lambda sample: sample.itl_ms,
    "tpot": lambda sample: [sample.tpot_ms],
    "e2e": lambda sample: [sample.total_ms],
}


@dataclass(frozen=True)
class Result:
    """One load on one service.

    Args:
        topology: "split", which was proven before the load, or "aggregated".
        lasted_s: from the first request to the end of the last answer.
        devices: what the engines ran on, in words ("2 × g6.8xlarge", "2 cores").
        usd_per_hour: list price of the instances that they ran on; None where that is not known.
        doubts: why the numbers are not to be trusted; empty where nothing is known against them.
    """

    load: Load
    topology: str
    model: str
    began_at: float
    lasted_s: float
    samples: tuple[Sample, ...]
    parts: Parts = field(default_factory=Parts)
    slo: Slo | None = None
    devices: str = ""
    usd_per_hour: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()

    @property
    def answered(self) -> tuple[Sample, ...]:
        return tuple(sample for sample in self.samples if not sample.error)

    @property
    def goodput(self) -> float | None:
        """The share of requests within the SLO; None without one."""
        return self.slo.share(self.samples) if self.slo else None

    @property
    def output_tokens_per_s(self) -> float:
        return sum(each.output_tokens for each in self.answered) / (self.lasted_s or 1.0)

    @property
    def usd_per_million_tokens(self) -> float | None:
        """The price of a million output tokens at this load: `usd_per_hour` by the tokens that an hour makes."""
        if self.usd_per_hour is None or not self.output_tokens_per_s:
            return None
        return self.usd_per_hour * _PER_MILLION_HOUR / self.output_tokens_per_s

    def measure(self, name: str) -> dict[str, float] | None:
        """Percentiles in milliseconds of `ttft`, `itl`, `tpot` or `e2e`, over answered requests."""
        return spread(value for sample in self.answered for value in _MEASURES[name](sample))

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md has it; no prompt and no answer is in it."""
        answered = self.answered
        seconds = self.lasted_s or 1.0
        return {
            "topology": self.topology,
            "model": self.model,
            "devices": self.devices,
            "versions": dict(self.versions),
            "load": self.load.to_json(),
            "began_at": self.began_at,
            "lasted_s": round(self.lasted_s, 3),
            "requests": {
                "sent": len(self.samples),
                "answered": len(answered),
                "errors": dict(Counter(sample.error for sample in self.samples if sample.error)),
            },
            "throughput": {
                "requests_per_s": round(len(answered) / seconds, 4),
                "input_tokens_per_s": round(sum(each.input_tokens for each in answered) / seconds, 2),
                "output_tokens_per_s": round(self.output_tokens_per_s, 2),
            },
            **{f"{name}_ms": self.measure(name) for name in _MEASURES},
            "phases": self.parts.summary(),
            "slo": dict(self.slo.bounds_ms) if self.slo else None,
            "goodput": None if self.goodput is None else round(self.goodput, 4),
            "usd_per_hour": self.usd_per_hour,
            "usd_per_million_output_tokens": self.usd_per_million_tokens,
            "doubts": list(self.doubts),
            "samples": [sample.to_json() for sample in self.samples],
            "records": [
                {name: each.get(name) for name in KeptRecord.model_fields} for each in self.parts.records
            ],
        }
