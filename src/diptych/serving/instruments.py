"""How a metric is declared, and where its values go.

Each value goes to two places: the registry of `prometheus_client`, which `/metrics` of the replica shows, and, inside
a replica, Ray's metrics, which the node's metrics port shows with the names of deployment, replica and application.
An exporter of Ray's that is off gets nothing.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import prometheus_client
from prometheus_client import CollectorRegistry

PREFIX = "diptych_"
_RAYS_SWITCH = "RAY_enable_metrics_collection"

Labels = Mapping[str, str]
Write = Callable[[float], None]


@dataclass(frozen=True)
class Metric:
    """One metric.

    Args:
        name: without our prefix; ends in its unit, a counter's in `_total`.
        kind: as Prometheus has it.
        help: one sentence.
        labels: names of its labels, each with a bounded set of values.
        buckets: upper bounds of a histogram, above zero.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """The name in the replica's own registry; Ray's port puts `ray_` before it."""
        return PREFIX + self.name


class Instrument:
    """A metric that takes values: a counter adds them, a gauge shows the last, a histogram counts each.

    Args:
        metric: its declaration.
        registry: of `prometheus_client`.
        replica: the labels under which Ray gets the values, too; None: it does not.
    """

    def __init__(self, metric: Metric, registry: CollectorRegistry, replica: Labels | None) -> None:
        self._metric = metric
        self._own = _own_metric(metric, registry)
        self._replica = replica or {}
        self._rays = _rays_metric(metric, tuple(replica)) if replica else None
        self._series: dict[tuple[str, ...], tuple[Write, ...]] = {}

    def put(self, value: float, *labels: str) -> None:
        """Take a value in; `labels` are the values of the metric's labels, in their order."""
        writes = self._series.get(labels)
        if writes is None:
            writes = self._series[labels] = self._writes(labels)
        for write in writes:
            write(value)

    def keep(self, wanted: Callable[[tuple[str, ...]], bool]) -> None:
        """Forget the series whose labels are not wanted; Ray forgets what it is not told by itself."""
        for labels in [labels for labels in self._series if not wanted(labels)]:
            del self._series[labels]
            self._own.remove(*labels)

    def _writes(self, labels: tuple[str, ...]) -> tuple[Write, ...]:
        series = self._own.labels(*labels) if labels else self._own
        writes: list[Write] = [getattr(series, _VERBS[self._metric.kind])]
        if self._rays is not None:
            tags = {**self._replica, **dict(zip(self._metric.labels, labels, strict=True))}
            writes.append(_rays_write(self._rays, self._metric.kind, tags))
        return tuple(writes)


_VERBS = {"counter": "inc", "gauge": "set", "histogram": "observe"}


def replica_labels() -> Labels | None:
    """The labels that Ray Serve gives to what a replica measures; None outside of one, and where nobody exports it."""
    if os.environ.get(_RAYS_SWITCH) in ("0", "false"):
        return None
    from ray import serve
    from ray.serve.exceptions import RayServeException

    try:
        context = serve.get_replica_context()
    except RayServeException:
        return None
    return {
        "deployment": context.deployment,
        "replica": context.replica_tag,
        "application": context.app_name,
    }


def _own_metric(metric: Metric, registry: CollectorRegistry) -> Any:
    kinds = {
        "counter": prometheus_client.Counter,
        "gauge": prometheus_client.Gauge,
        "histogram": prometheus_client.Histogram,
    }
    more = {"buckets": metric.buckets} if metric.buckets else {}
    return kinds[metric.kind](metric.full_name, metric.help, metric.labels, registry=registry, **more)


def _rays_metric(metric: Metric, replica: tuple[str, ...]) -> Any:
    """Of Ray itself: `ray.serve.metrics` would look for its labels again at each value."""
    from ray.util import metrics

    keys = (*replica, *metric.labels)
    if metric.kind == "histogram":
        return metrics.Histogram(
            metric.full_name, metric.help, boundaries=list(metric.buckets), tag_keys=keys
        )
    made = metrics.Counter if metric.kind == "counter" else metrics.Gauge
    return made(metric.full_name, metric.help, tag_keys=keys)


def _rays_write(rays: Any, kind: str, tags: dict[str, str]) -> Write:
    """Ray's counters refuse to be given nothing, and its port shows no gauge that is not a number."""
    take = getattr(rays, _VERBS[kind])
    if kind == "counter":
        return lambda value: take(value, tags=tags) if value > 0 else None
    return lambda value: None if math.isnan(value) else take(value, tags=tags)
