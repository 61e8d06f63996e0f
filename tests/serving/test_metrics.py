"""The metrics: what each call counts, in both registries, under bounded labels; and that the documentation has all."""

import math
import re
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from prometheus_client import CollectorRegistry, generate_latest
from ray.serve import context
from ray.serve import metrics as ray_serve_metrics
from ray.util import metrics as ray_metrics

from diptych.serving import instruments, metrics
from diptych.serving.metrics import METRICS, Gauges
from diptych.serving.record import PATHS, Leg, Record, Refusal
from diptych.serving.transfers import Transfer

DOC = Path(__file__).parents[2] / "docs/metrics.md"
# Labels that others give: Serve to what its replicas measure, Prometheus and our PodMonitor to what a pod exports.
TAKEN = {"deployment", "replica", "application", "phase", "diptych_service", "ray_io_cluster"} | {
    "namespace",
    "pod",
    "container",
    "endpoint",
    "instance",
    "job",
}
GAUGES = Gauges(3, 4500, 1, 20, 2, 1, 0.125, 180, False, 4.5)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[CollectorRegistry]:
    """A registry of its own, in place of the process's."""
    own = CollectorRegistry()
    monkeypatch.setattr(metrics, "REGISTRY", own)
    monkeypatch.setattr(metrics, "_instruments", cache(metrics._instruments.__wrapped__))
    yield own


@pytest.fixture
def rays(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, float, dict[str, str]]]:
    """What Ray's metrics are given, in a replica: name, value, tags."""
    from ray.serve._private.common import DeploymentID, ReplicaID

    replica = ReplicaID("abc123", DeploymentID("Decode:model", "diptych"))
    given: list[tuple[str, float, dict[str, str]]] = []

    def record(self: Any, value: float, tags: dict[str, str] | None = None) -> None:
        final = self._get_final_tags(tags)
        self._validate_tags(final)
        given.append((self._name, value, final))

    told = context.ReplicaContext(
        replica_id=replica,
        servable_object=None,
        _deployment_config=None,
        rank=None,
        world_size=1,
    )
    monkeypatch.setattr(context, "_INTERNAL_REPLICA_CONTEXT", told)
    monkeypatch.setattr(ray_metrics.Metric, "_record", record)
    return given


def answered(**fields: Any) -> Record:
    """A request of one prompt that went to prefill and came back."""
    began = time.monotonic()
    leg = {
        "path": "remote",
        "prefill_ms": 80.0,
        "queue_ms": 3.0,
        "transfer": Transfer(3_000_000, 0.012, 0.0004, 60),
        "prompt_tokens": 100,
        "cached_tokens": 32,
        "begun": True,
        "attempts": 1,
        "first_token_at": began + 0.125,
        "output_tokens": 8,
    }
    return Record("decode-1", [Leg(**{**leg, **fields})], route="/v1/chat/completions", began_at=began)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"diptych_{name}", labels)


def test_an_answered_request_is_counted_and_measured(registry: CollectorRegistry) -> None:
    metrics.request_done(answered(), 200, 0.5)
    counted = value(registry, "requests_total", route="/v1/chat/completions", path="remote", status="200")
    assert counted == 1
    assert value(registry, "time_to_first_token_seconds_sum", path="remote") == pytest.approx(0.125)
    assert value(registry, "request_duration_seconds_sum", path="remote") == 0.5
    sums = {
        "prefill_duration_seconds": 0.08,
        "prefill_queue_seconds": 0.003,
        "kv_transfer_duration_seconds": 0.012,
        "kv_transfer_post_seconds": 0.0004,
        "kv_transfer_size_bytes": 3_000_000,
        "prompt_tokens": 100,
        "uncached_prompt_tokens": 68,
        "output_tokens": 8,
    }
    for name, total in sums.items():
        assert value(registry, f"{name}_count") == 1, name
        assert value(registry, f"{name}_sum") == pytest.approx(total), name
    assert value(registry, "prefill_attempts_total") == 1
    assert value(registry, "kv_transfers_failed_total") == 0


def test_what_did_not_happen_is_not_measured(registry: CollectorRegistry) -> None:
    local = Leg(path="local-short", prompt_tokens=20, cached_tokens=0)
    metrics.request_done(Record(legs=[local], route="/v1/completions"), 499, 0.1)
    assert value(registry, "requests_total", route="/v1/completions", path="local-short", status="499") == 1
    assert value(registry, "time_to_first_token_seconds_count", path="local-short") is None
    for name in ("prefill_duration_seconds", "kv_transfer_size_bytes", "output_tokens"):
        assert value(registry, f"{name}_count") == 0, name


@pytest.mark.parametrize(("failed", "reason"), [(True, "kv_transfer"), (False, "prefill")])
def test_a_recovered_prompt_says_what_had_failed(
    registry: CollectorRegistry, failed: bool, reason: str
) -> None:
    metrics.request_done(answered(path="recovered", kv_transfer_failed=failed, attempts=2), 200, 0.5)
    assert value(registry, "recovered_total", reason=reason) == 1
    assert value(registry, "kv_transfers_failed_total") == int(failed)
    assert value(registry, "prefill_attempts_total") == 2


def test_refusals_are_told_apart_by_who_refused(registry: CollectorRegistry) -> None:
    full = Refusal(429, "The queue is full.", "overloaded_error", 1)
    metrics.request_done(Record(route="/v1/completions", refusal=full), 429, 0.001)
    metrics.refused(401)
    assert value(registry, "refused_total", status="429", by="orchestrator") == 1
    assert value(registry, "refused_total", status="401", by="access") == 1
    assert value(registry, "requests_total", route="/v1/completions", path="none", status="429") == 1


def test_labels_have_no_value_that_a_client_makes_up(registry: CollectorRegistry) -> None:
    for number in range(50):
        metrics.request_done(Record(route=f"/v1/responses/{number}"), 404, 0.0)
        metrics.request_done(Record(route=f"/v1/chat/{number}"), 600 + number, 0.0)
        metrics.placed(f"way-{number}")
    assert (
        value(registry, "requests_total", route="/v1/responses/{response_id}", path="none", status="404")
        == 50
    )
    assert value(registry, "requests_total", route="other", path="none", status="other") == 50
    assert value(registry, "placements_total", path="other") == 50


def test_placements_are_counted_by_path(registry: CollectorRegistry) -> None:
    for path in PATHS:
        metrics.placed(path)
    assert [value(registry, "placements_total", path=path) for path in PATHS] == [1] * len(PATHS)


def test_gauges_show_how_the_replica_stands(registry: CollectorRegistry) -> None:
    metrics.set_gauges(GAUGES)
    assert value(registry, "waiting_prompts", queue="prefill") == 3
    assert value(registry, "waiting_tokens", queue="prefill") == 4500
    assert value(registry, "waiting_prompts", queue="decode") == 1
    assert value(registry, "waiting_tokens", queue="decode") == 20
    assert value(registry, "prefill_replicas", state="ready") == 2
    assert value(registry, "prefill_replicas", state="aside") == 1
    assert value(registry, "local_prefill_ratio") == 0.125
    assert value(registry, "break_even_tokens") == 180
    assert value(registry, "degraded") == 0
    assert value(registry, "last_kv_transfer_age_seconds") == 4.5


def test_a_gauge_that_is_not_known_is_no_number_and_none_of_rays(
    registry: CollectorRegistry, rays: list[tuple[str, float, dict[str, str]]]
) -> None:
    metrics.set_gauges(Gauges(0, 0, 0, 0, 0, 0, 0.0, None, True, None))
    assert math.isnan(value(registry, "break_even_tokens") or 0.0)
    assert math.isnan(value(registry, "last_kv_transfer_age_seconds") or 0.0)
    names = [name for name, _, _ in rays]
    assert "diptych_degraded" in names
    assert not {"diptych_break_even_tokens", "diptych_last_kv_transfer_age_seconds"} & set(names)


def test_a_prefill_replica_measures_its_own_part(registry: CollectorRegistry) -> None:
    metrics.prefill_done(68, 3.0, 77.0, 32)
    metrics.prefill_done(10, None, None, 0)
    assert value(registry, "prefill_engine_tokens_total", source="computed") == 78
    assert value(registry, "prefill_engine_tokens_total", source="cached") == 32
    assert value(registry, "prefill_engine_queue_seconds_sum") == pytest.approx(0.003)
    assert value(registry, "prefill_engine_compute_seconds_count") == 1


def test_ray_gets_the_same_with_the_replicas_names(
    registry: CollectorRegistry, rays: list[tuple[str, float, dict[str, str]]]
) -> None:
    metrics.request_done(answered(), 200, 0.5)
    replica = {"deployment": "Decode:model", "replica": "abc123", "application": "diptych"}
    counted = {"route": "/v1/chat/completions", "path": "remote", "status": "200"}
    assert ("diptych_requests_total", 1, {**replica, **counted}) in rays
    assert ("diptych_kv_transfer_size_bytes", 3_000_000, replica) in rays
    theirs = ray_serve_metrics.Counter("diptych_any", tag_keys=())
    assert theirs.info["default_tags"] == replica  # the labels are those that Serve would give
    own = {sample.name for family in registry.collect() for sample in family.samples if sample.value}
    assert {name for name, _, _ in rays} <= {
        re.sub(r"_(sum|count|bucket|created)$", "", name) for name in own
    }


def test_ray_is_not_given_an_increase_by_nothing_which_it_refuses(
    registry: CollectorRegistry, rays: list[tuple[str, float, dict[str, str]]]
) -> None:
    metrics.prefill_done(68, 3.0, 77.0, 0)
    assert [value for name, value, _ in rays if name == "diptych_prefill_engine_tokens_total"] == [68]


def test_ray_gets_nothing_where_its_exporter_is_off(
    registry: CollectorRegistry, rays: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_enable_metrics_collection", "0")
    metrics.request_done(answered(), 200, 0.5)
    assert not rays
    assert value(registry, "prompt_tokens_count") == 1


def test_outside_a_replica_there_is_no_ray_to_tell() -> None:
    assert instruments.replica_labels() is None


def test_names_and_units_are_those_of_prometheus() -> None:
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert bool(metric.buckets) == (metric.kind == "histogram"), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)) and all(b > 0 for b in metric.buckets)
        assert metric.help.endswith("."), metric.name
        if metric.kind == "histogram":
            assert metric.name.rpartition("_")[2] in ("seconds", "bytes", "tokens"), metric.name
        assert not TAKEN & set(metric.labels), metric.name


def test_what_a_replica_exports_stays_small(registry: CollectorRegistry) -> None:
    for path in PATHS:
        for status in (200, 400, 499, 503):
            metrics.request_done(answered(path=path), status, 0.5)
    assert len(generate_latest(registry).splitlines()) < 700


def test_the_documentation_has_every_metric_and_no_other() -> None:
    rows = re.findall(r"^\| `diptych_(\w+)` \| (\w+) \|([^|]*)\|([^|]*)\|", DOC.read_text(), re.MULTILINE)
    told = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, _, labels in rows}
    assert len(told) == len(rows)
    assert told == {metric.name: (metric.kind, set(metric.labels)) for metric in METRICS}
