"""What speaks against trusting the numbers of a run: too short, too few, too much for the service, others' traffic."""

from collections.abc import Sequence

from diptych.bench.load import Load
from diptych.bench.results import Parts, Sample, percentile, ttft_parts

SHORTEST_S = 20.0
FEWEST = 50
_GROWN = 3.0
_LATE = 1.25
_MOSTLY = 0.5
_QUEUES = ("prefill_queue_ms", "decode_queue_ms", "local_queue_ms")


def doubts(load: Load, samples: Sequence[Sample], lasted_s: float) -> list[str]:
    """What the client saw that speaks against a run."""
    found = []
    answered = [sample for sample in samples if not sample.error]
    if len(answered) < FEWEST:
        found.append(f"only {len(answered)} answers: percentiles above p90 mean little below {FEWEST}")
    if lasted_s < SHORTEST_S:
        found.append(f"it lasted {lasted_s:.0f} s: less than {SHORTEST_S:.0f} s is mostly start and end")
    if failed := len(samples) - len(answered):
        found.append(f"{failed} of {len(samples)} requests failed")
    if answered and (_queue_grew(answered) or (load.rate is not None and _came_late(answered, lasted_s))):
        how = f"at {load.rate:g} requests/s" if load.rate is not None else f"with {load.concurrency} at once"
        found.append(
            f"oversubscribed: {how} the queue grew until the end, so TTFT depends on how long it went on"
        )
    return found


def doubts_of_queues(load: Load, parts: Parts) -> list[str]:
    """Whether a bound on requests at once let more come than the engines take: their queues don't grow, but stay."""
    if load.concurrency is None:
        return []
    found = [each for each in map(ttft_parts, parts.records) if each is not None]
    shares = [
        sum(each[name] for name in _QUEUES) / sum(each.values()) for each in found if any(each.values())
    ]
    if not shares or percentile(shares, 50) <= _MOSTLY:
        return []
    return [
        f"oversubscribed: with {load.concurrency} at once most requests waited in an engine's queue for most of their "
        "TTFT, which is then a matter of how many wait"
    ]


def doubts_of_records(topology: str, samples: Sequence[Sample], parts: Parts, forgotten: bool) -> list[str]:
    """What the service's own records say against a run."""
    found = []
    answered = sum(not sample.error for sample in samples)
    if forgotten or len(parts.records) < answered:
        found.append(f"the service has records of {len(parts.records)} requests only: its parts are theirs")
    if (others := len(parts.records) - len(samples)) > 0:
        found.append(f"{others} requests of others came meanwhile, and are among its parts")
    if topology == "split" and parts.records and not parts.paths.get("remote"):
        found.append("no prompt went to prefill: these are numbers of decode alone")
    return found


def _queue_grew(answered: Sequence[Sample]) -> bool:
    """Whether the last quarter waited far longer for its first token than the first."""
    waited = [each.ttft_ms for each in sorted(answered, key=lambda each: each.sent_s) if each.ttft_ms]
    quarter = len(waited) // 4
    if quarter < 5:
        return False
    return percentile(waited[-quarter:], 50) > _GROWN * percentile(waited[:quarter], 50)


def _came_late(answered: Sequence[Sample], lasted_s: float) -> bool:
    """Whether answers went on long after the last request, counted by what the quickest one took."""
    quickest_s = min(each.total_ms or 0.0 for each in answered) / 1000
    return lasted_s > _LATE * max(each.sent_s for each in answered) + 2 * quickest_s
