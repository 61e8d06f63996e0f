"""What the Prometheus operator and Grafana need to watch both phases: PodMonitor, PrometheusRule, a board."""

import json
from typing import Any

from diptych.render import alerts, board, names
from diptych.render.objects import metadata
from diptych.spec import Document

METRICS_PORT_NAME = "metrics"
"""The name of the pods' port with Ray's metrics; KubeRay adds it where a template has none."""

PROMETHEUS_RELEASE = "kube-prometheus-stack"
"""That chart's Prometheus, installed under its own name, selects what has this value in the label `release`."""

_POD_LABEL = "__meta_kubernetes_pod_label_"
# Ray's own inner workings: most of the series that a node exports, and in no alert, here or in Ray's boards.
_DROPPED = "ray_(grpc_server|grpc_client|operation|io_context|health_check_rpc)_.+"


def pod_monitors(document: Document) -> list[dict[str, Any]]:
    """One PodMonitor: the head and the workers have the same port.

    Every series gets the labels `phase` (the worker group, or "head"), `diptych_service` and `ray_io_cluster` (as in
    KubeRay's own monitors). What engines export comes from the pod that they run on, so `phase` is theirs.
    """
    endpoint = {
        "port": METRICS_PORT_NAME,
        "path": "/metrics",
        "interval": "15s",
        "relabelings": [
            _label("phase", "ray_io_node_type"),
            _label("phase", _as_label(names.PHASE_LABEL)),
            _label("diptych_service", _as_label(names.SERVICE_LABEL)),
            _label("ray_io_cluster", "ray_io_cluster"),
        ],
        "metricRelabelings": [{"action": "drop", "sourceLabels": ["__name__"], "regex": _DROPPED}],
    }
    selector = {"matchLabels": {names.SERVICE_LABEL: document.name, "ray.io/is-ray-node": "yes"}}
    spec = {"selector": selector, "podMetricsEndpoints": [endpoint]}
    return [_monitoring_object(document, "PodMonitor", spec)]


def alert_rules(document: Document) -> dict[str, Any]:
    """The PrometheusRule with the alerts of `data/alerts.yaml`."""
    group = {
        "name": f"diptych.{document.kubernetes.namespace}.{document.name}",
        "rules": alerts.rules(document),
    }
    return _monitoring_object(document, "PrometheusRule", {"groups": [group]})


def dashboard(document: Document) -> dict[str, Any]:
    """The board of `data/board.yaml` in a ConfigMap, as Grafana's sidecar finds it."""
    about = metadata(document, f"{document.name}-board", annotations={"grafana_folder": "Diptych"})
    about["labels"] |= {"grafana_dashboard": "1"}
    text = json.dumps(board.board(document), indent=1, ensure_ascii=False)
    file = f"diptych-{document.kubernetes.namespace}-{document.name}.json"
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {file: f"{text}\n"}}


def _monitoring_object(document: Document, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    about = metadata(document, document.name)
    about["labels"] |= {"release": PROMETHEUS_RELEASE}
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": kind, "metadata": about, "spec": spec}


def _label(target: str, pod_label: str) -> dict[str, Any]:
    """Copy a pod's label, where it has it; a later rule for the same target wins."""
    return {
        "action": "replace",
        "sourceLabels": [f"{_POD_LABEL}{pod_label}"],
        "regex": "(.+)",
        "targetLabel": target,
        "replacement": "$1",
    }


def _as_label(key: str) -> str:
    """A Kubernetes label as Prometheus writes it.

    >>> _as_label("diptych.dev/phase")
    'diptych_dev_phase'
    """
    return "".join(letter if letter.isalnum() else "_" for letter in key)
