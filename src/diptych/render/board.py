"""The Grafana board of a service, as Grafana's JSON. The table is `data/board.yaml`."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml

from diptych.render.queries import for_service
from diptych.spec import Document

SCHEMA_VERSION = 39
_COLUMNS = 24
_HEIGHTS = {"stat": 5, "timeseries": 8}
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_PHASE_COLOURS = {"prefill": "blue", "decode": "orange", "aggregated": "green", "head": "text"}


@dataclass(frozen=True)
class Panel:
    """One panel of the table, whose comment explains the words."""

    title: str
    queries: Mapping[str, str]
    kind: Literal["stat", "timeseries"] = "timeseries"
    unit: str = "short"
    width: int = 12
    description: str = ""
    stack: bool = False
    red_above: float | None = None
    red_below: float | None = None


@cache
def rows() -> tuple[tuple[str, tuple[Panel, ...]], ...]:
    """The table: title and panels of each row."""
    text = files("diptych.render").joinpath("data/board.yaml").read_text(encoding="utf-8")
    return tuple(
        (entry["row"], tuple(Panel(**panel) for panel in entry["panels"])) for entry in yaml.safe_load(text)
    )


def board(document: Document) -> dict[str, Any]:
    """The board, whose variables begin at the document's service and can be set to any other that Prometheus sees."""
    identity = hashlib.sha256(f"{document.kubernetes.namespace}/{document.name}".encode()).hexdigest()
    return {
        "uid": f"diptych-{identity[:12]}",
        "title": f"Diptych: {document.name}",
        "tags": ["diptych"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,
        "templating": {"list": _variables(document)},
        "panels": _panels(),
    }


def _variables(document: Document) -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    namespace = _variable("namespace", "Namespace", 'up{diptych_service!=""}', document.kubernetes.namespace)
    service = _variable(
        "diptych_service", "Service", 'up{namespace="$namespace",diptych_service!=""}', document.name
    )
    return [source, namespace, service]


def _variable(label: str, title: str, series: str, value: str) -> dict[str, Any]:
    query = f"label_values({series}, {label})"
    return {
        "name": label,
        "label": title,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": label},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "current": {"text": value, "value": value},
    }


def _panels() -> list[dict[str, Any]]:
    """Rows and panels from left to right and top to bottom."""
    found: list[dict[str, Any]] = []
    top = 0
    for title, panels in rows():
        found.append(
            _placed({"type": "row", "title": title, "collapsed": False}, len(found), 0, top, _COLUMNS, 1)
        )
        top, left, height = top + 1, 0, 0
        for panel in panels:
            if left + panel.width > _COLUMNS:
                top, left = top + height, 0
            height = _HEIGHTS[panel.kind]
            found.append(_placed(_panel(panel), len(found), left, top, panel.width, height))
            left += panel.width
        top += height
    return found


def _placed(
    panel: dict[str, Any], number: int, left: int, top: int, width: int, height: int
) -> dict[str, Any]:
    return {"id": number + 1, "gridPos": {"x": left, "y": top, "w": width, "h": height}, **panel}


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + number),
            "datasource": _DATASOURCE,
            "expr": for_service(query, "$namespace", "$diptych_service"),
            "legendFormat": legend,
        }
        for number, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": _field(panel), "overrides": _phase_colours()},
        "options": _OPTIONS[panel.kind],
    }


_OPTIONS: dict[str, dict[str, Any]] = {
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background", "graphMode": "area"},
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["mean", "max", "lastNotNull"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
}


def _field(panel: Panel) -> dict[str, Any]:
    field: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.kind == "stat":
        return field | {"color": {"mode": "thresholds"}, "thresholds": _thresholds(panel)}
    stacking = {"mode": "normal" if panel.stack else "none"}
    return field | {
        "custom": {"fillOpacity": 20 if panel.stack else 5, "stacking": stacking, "spanNulls": False}
    }


def _thresholds(panel: Panel) -> dict[str, Any]:
    steps: list[tuple[str, float | None]] = [("green", None)]
    if panel.red_above is not None:
        steps = [("green", None), ("red", panel.red_above)]
    elif panel.red_below is not None:
        steps = [("red", None), ("green", panel.red_below)]
    return {"mode": "absolute", "steps": [{"color": colour, "value": value} for colour, value in steps]}


def _phase_colours() -> list[dict[str, Any]]:
    """One colour per phase, the same in every panel; shades tell its lines apart."""
    return [
        {
            "matcher": {"id": "byRegexp", "options": f"/^{phase}/"},
            "properties": [{"id": "color", "value": {"mode": "shades", "fixedColor": colour}}],
        }
        for phase, colour in _PHASE_COLOURS.items()
    ]
