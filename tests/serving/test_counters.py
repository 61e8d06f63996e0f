"""The engine's own counters, by our names."""

from collections.abc import Iterator

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from diptych.serving import counters
from diptych.serving.counters import read_counters


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[CollectorRegistry]:
    """A registry that stands for the process's."""
    registry = CollectorRegistry()
    monkeypatch.setattr(counters, "REGISTRY", registry)
    yield registry


def test_what_was_never_counted_is_nothing(registry: CollectorRegistry) -> None:
    assert set(read_counters().values()) == {0.0}


def test_prompt_tokens_are_told_apart_by_where_their_kv_cache_came_from(registry: CollectorRegistry) -> None:
    by_source = Counter("vllm:prompt_tokens_by_source", "", ["source", "engine"], registry=registry)
    by_source.labels("external_kv_transfer", "0").inc(160)
    by_source.labels("external_kv_transfer", "1").inc(1)
    by_source.labels("local_compute", "0").inc(7)
    by_source.labels("local_cache_hit", "0").inc(128)
    read = read_counters()
    assert (read["external_kv_tokens"], read["local_compute_tokens"], read["local_cache_tokens"]) == (
        161,
        7,
        128,
    )


def test_transfers_are_counted_and_summed_out_of_nixls_histograms(registry: CollectorRegistry) -> None:
    size = Histogram("vllm:nixl_bytes_transferred", "", ["engine"], registry=registry)
    size.labels("0").observe(1000)
    size.labels("0").observe(500)
    assert (read_counters()["kv_transfers"], read_counters()["kv_transfer_bytes"]) == (2, 1500)


def test_requests_count_however_they_ended_and_others_metrics_do_not(registry: CollectorRegistry) -> None:
    ended = Counter("vllm:request_success", "", ["finished_reason"], registry=registry)
    ended.labels("stop").inc()
    ended.labels("length").inc(2)
    Gauge("other:num_requests_running", "", registry=registry).set(9)
    Gauge("vllm:num_requests_running", "", registry=registry).set(4)
    assert (read_counters()["requests_finished"], read_counters()["requests_running"]) == (3, 4)
