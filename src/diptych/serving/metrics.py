"""What a replica counts and measures, declared in one table, and the few calls that fill it.

docs/metrics.md tells of each, with what to do when it moves. Every label has a bounded set of values: routes are
those of `routes`, paths those of `record.PATHS`, prefill replicas those that are there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from prometheus_client import REGISTRY

from diptych.serving.instruments import Instrument, Metric, replica_labels
from diptych.serving.journal import first_token_s
from diptych.serving.record import PATHS, Leg, Record
from diptych.serving.routes import OTHER, route_of

NO_PATH = "none"
"""The path of a request that got as far as no engine."""

_TOKENS = tuple(float(2**power) for power in range(19))
_BYTES = tuple(float(2**power) for power in range(16, 36, 2))
_QUEUES = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_STEPS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 80.0)
_LONG = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
_SHORT = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_INSTANTS = (0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 1.0)

METRICS = (
    Metric("requests_total", "counter", "Requests whose answer ended.", ("route", "path", "status")),
    Metric("placements_total", "counter", "Prompts by where their prefill was sent.", ("path",)),
    Metric("recovered_total", "counter", "Prompts that decode computed after a failure.", ("reason",)),
    Metric("refused_total", "counter", "Requests that were not taken.", ("status", "by")),
    Metric("prefill_attempts_total", "counter", "Calls to prefill replicas."),
    Metric("kv_transfers_failed_total", "counter", "Prompts whose KV transfer failed or took too long."),
    Metric("request_duration_seconds", "histogram", "From a request to its answer's end.", ("path",), _LONG),
    Metric("time_to_first_token_seconds", "histogram", "From a request to a token.", ("path",), _STEPS),
    Metric("prefill_duration_seconds", "histogram", "A call to prefill, as decode sees it.", (), _STEPS),
    Metric("prefill_queue_seconds", "histogram", "Of that, in the prefill engine's queue.", (), _QUEUES),
    Metric("kv_transfer_duration_seconds", "histogram", "A KV transfer, post to completion.", (), _SHORT),
    Metric("kv_transfer_post_seconds", "histogram", "Posting a KV transfer.", (), _INSTANTS),
    Metric("kv_transfer_size_bytes", "histogram", "A prompt's KV transfer.", (), _BYTES),
    Metric("prompt_tokens", "histogram", "Tokens of a prompt.", (), _TOKENS),
    Metric("uncached_prompt_tokens", "histogram", "Of them, those that were computed.", (), _TOKENS),
    Metric("output_tokens", "histogram", "Tokens written for a prompt.", (), _TOKENS),
    Metric("waiting_prompts", "gauge", "Prompts that wait for a phase.", ("queue",)),
    Metric("waiting_tokens", "gauge", "Tokens of the prompts that wait for a phase.", ("queue",)),
    Metric("prefill_replicas", "gauge", "Prefill replicas as this replica knows them.", ("state",)),
    Metric("local_prefill_ratio", "gauge", "Share of this replica's time that prefill took here lately."),
    Metric("break_even_tokens", "gauge", "Uncached tokens below which prefill here costs less."),
    Metric("degraded", "gauge", "1 while prefill is lost and decode serves alone."),
    Metric("last_kv_transfer_age_seconds", "gauge", "Since a KV transfer last worked."),
    Metric("proof_ok", "gauge", "1 while a proof of a pair holds.", ("proof", "prefill_replica")),
    Metric("proof_age_seconds", "gauge", "Since a pair was last proven.", ("prefill_replica",)),
    Metric("proof_bytes_per_second", "gauge", "Of a proof's KV transfer.", ("prefill_replica",)),
    Metric("proof_seconds_per_1000_tokens", "gauge", "Of a proof's KV transfer.", ("prefill_replica",)),
    Metric("proof_speed_ratio", "gauge", "Of the speed its link should have.", ("prefill_replica",)),
    Metric("transport_contradicted", "gauge", "1 while a transport contradicts what was asked for."),
    Metric("transport_fallback", "gauge", "1 while another transport is in use, and may be."),
    Metric("prefill_engine_tokens_total", "counter", "Prompt tokens on this prefill replica.", ("source",)),
    Metric("prefill_engine_queue_seconds", "histogram", "In this prefill engine's queue.", (), _QUEUES),
    Metric("prefill_engine_compute_seconds", "histogram", "This engine's computing a prompt.", (), _STEPS),
)


@dataclass(frozen=True)
class Gauges:
    """How a decode replica stands, to be told about once a second: Ray forgets what it is not told for 20 s.

    Args:
        prefill_waiting_prompts, prefill_waiting_tokens: what waits for prefill.
        decode_waiting_prompts, decode_waiting_tokens: what waits for decode's first token.
        prefill_ready: prefill replicas that can be asked now.
        prefill_aside: those that failed lately and are left alone for a while.
        local_prefill_ratio: of this replica's time, what prefill took lately, from 0 to 1.
        break_even_tokens: uncached tokens below which prefill here costs less; None: not measured yet.
        degraded: whether prefill is lost and decode serves alone.
        last_kv_transfer_age_s: seconds since a KV transfer last worked; None: none has yet.
    """

    prefill_waiting_prompts: int
    prefill_waiting_tokens: int
    decode_waiting_prompts: int
    decode_waiting_tokens: int
    prefill_ready: int
    prefill_aside: int
    local_prefill_ratio: float
    break_even_tokens: int | None
    degraded: bool
    last_kv_transfer_age_s: float | None


@dataclass(frozen=True)
class PairProofs:
    """What the newest proofs of a pair came to.

    Args:
        holds: by proof, whether it does; None: that can't be told.
        age_s: seconds since its transport and a KV transfer last held; None: never.
        bytes_per_s: of the proof's KV transfer; None: it was not timed, as the next.
        seconds_per_1000_tokens: that it took.
        speed_ratio: of the speed that its link should have; None: nothing is known of that.
    """

    holds: Mapping[str, bool | None]
    age_s: float | None
    bytes_per_s: float | None = None
    seconds_per_1000_tokens: float | None = None
    speed_ratio: float | None = None


def request_done(record: Record, status: int, seconds: float) -> None:
    """Count a request whose answer has ended.

    Args:
        record: of the request.
        status: of its answer; 499 when the client left before its end.
        seconds: from the request to there.
    """
    path = record.path or NO_PATH
    _put("requests_total", 1, route_of(record.route), path, _status(status))
    if record.refusal is not None:
        _put("refused_total", 1, _status(record.refusal.status), "orchestrator")
    if not record.legs:
        return
    _put("request_duration_seconds", seconds, path)
    first_s = first_token_s(record)
    if first_s is not None:
        _put("time_to_first_token_seconds", first_s, path)
    for leg in record.legs:
        _leg_done(leg)


def placed(path: str) -> None:
    """Count a prompt by where its prefill is sent, one of `record.PATHS`."""
    _put("placements_total", 1, path if path in PATHS else OTHER)


def refused(status: int) -> None:
    """Count a request that was refused before it got a record: keys, sizes, headers, fields."""
    _put("refused_total", 1, _status(status), "access")


def set_gauges(now: Gauges) -> None:
    """Show how this replica stands. What is not known yet is not a number in `/metrics`, and absent in Ray's."""
    _put("waiting_prompts", now.prefill_waiting_prompts, "prefill")
    _put("waiting_prompts", now.decode_waiting_prompts, "decode")
    _put("waiting_tokens", now.prefill_waiting_tokens, "prefill")
    _put("waiting_tokens", now.decode_waiting_tokens, "decode")
    _put("prefill_replicas", now.prefill_ready, "ready")
    _put("prefill_replicas", now.prefill_aside, "aside")
    _put("local_prefill_ratio", now.local_prefill_ratio)
    _put("break_even_tokens", _known(now.break_even_tokens))
    _put("degraded", int(now.degraded))
    _put("last_kv_transfer_age_seconds", _known(now.last_kv_transfer_age_s))


def set_proofs(pairs: Mapping[str, PairProofs], *, contradicted: bool, fallback: bool) -> None:
    """Show what is proven of this replica's pairs, about once a second; those not named are forgotten.

    Args:
        pairs: by prefill replica.
        contradicted: whether this replica is not ready for its transport.
        fallback: whether another transport is in use, and may be.
    """
    for metric in METRICS:
        if metric.labels and metric.labels[-1] == "prefill_replica":
            _instruments()[metric.name].keep(lambda labels: labels[-1] in pairs)
    for name, pair in pairs.items():
        for proof, holds in pair.holds.items():
            _put("proof_ok", _known(holds), proof, name)
        _put("proof_age_seconds", _known(pair.age_s), name)
        _put("proof_bytes_per_second", _known(pair.bytes_per_s), name)
        _put("proof_seconds_per_1000_tokens", _known(pair.seconds_per_1000_tokens), name)
        _put("proof_speed_ratio", _known(pair.speed_ratio), name)
    _put("transport_contradicted", int(contradicted))
    _put("transport_fallback", int(fallback))


def prefill_done(
    computed_tokens: int, queue_ms: float | None, compute_ms: float | None, cached_tokens: int
) -> None:
    """Count a prompt that this prefill replica has computed.

    Args:
        computed_tokens: of its prompt, those that were computed.
        queue_ms: how long it waited in the engine's queue; None where the engine does not tell.
        compute_ms: how long it was computed; None where the engine does not tell.
        cached_tokens: those found in the engine's prefix cache.
    """
    _put("prefill_engine_tokens_total", computed_tokens, "computed")
    _put("prefill_engine_tokens_total", cached_tokens, "cached")
    _put_ms("prefill_engine_queue_seconds", queue_ms)
    _put_ms("prefill_engine_compute_seconds", compute_ms)


def _leg_done(leg: Leg) -> None:
    if leg.path == "recovered":
        _put("recovered_total", 1, "kv_transfer" if leg.kv_transfer_failed else "prefill")
    if leg.kv_transfer_failed:
        _put("kv_transfers_failed_total", 1)
    if leg.attempts:
        _put("prefill_attempts_total", leg.attempts)
    _put_ms("prefill_duration_seconds", leg.prefill_ms)
    _put_ms("prefill_queue_seconds", leg.queue_ms)
    if leg.transfer is not None:
        _put("kv_transfer_duration_seconds", leg.transfer.seconds)
        _put("kv_transfer_post_seconds", leg.transfer.post_seconds)
        _put("kv_transfer_size_bytes", leg.transfer.bytes)
    if leg.prompt_tokens is not None:
        _put("prompt_tokens", leg.prompt_tokens)
        if leg.cached_tokens is not None:
            _put("uncached_prompt_tokens", leg.prompt_tokens - leg.cached_tokens)
    if leg.begun:
        _put("output_tokens", leg.output_tokens)


def _put(name: str, value: float, *labels: str) -> None:
    _instruments()[name].put(value, *labels)


def _put_ms(name: str, milliseconds: float | None) -> None:
    if milliseconds is not None:
        _put(name, milliseconds / 1e3)


def _known(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _status(status: int) -> str:
    return str(status) if 100 <= status <= 599 else OTHER


@cache
def _instruments() -> dict[str, Instrument]:
    """Made at the first value, which comes when the replica is up and Serve knows its name."""
    replica = replica_labels()
    return {metric.name: Instrument(metric, REGISTRY, replica) for metric in METRICS}
