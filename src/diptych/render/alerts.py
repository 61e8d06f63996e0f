"""The alerts on a service: when each fires, and what to do then. The table is `data/alerts.yaml`.

They tell what an operator can act on: a phase that is gone, a KV transfer that does not happen, a phase that can't keep
up, a service that answers with errors, and metrics that are not there to tell.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml

from diptych.render.layout import group_name
from diptych.render.queries import for_service
from diptych.spec import Document


@dataclass(frozen=True)
class Alert:
    """One alert of the table, whose comment explains the words.

    Args:
        query: PromQL; it fires for each series of the result.
        after: how long the query must hold ("for" in the table).
        description: what it means and what to do.
        each, topology, phase: where it makes sense; None: everywhere.
    """

    name: str
    severity: Literal["critical", "warning"]
    query: str
    after: str
    summary: str
    description: str
    each: Literal["phase", "phase with several replicas"] | None = None
    topology: Literal["split"] | None = None
    phase: str | None = None


@cache
def alerts() -> tuple[Alert, ...]:
    """The table."""
    text = files("diptych.render").joinpath("data/alerts.yaml").read_text(encoding="utf-8")
    return tuple(Alert(after=entry.pop("for"), **entry) for entry in yaml.safe_load(text))


def rules(document: Document) -> list[dict[str, Any]]:
    """The alerts that make sense for the document, as PrometheusRule has them."""
    return [_rule(document, alert, words) for alert in alerts() for words in _uses(document, alert)]


def _uses(document: Document, alert: Alert) -> Iterator[dict[str, str]]:
    """For each rule that the alert becomes, its words. A phase that may have no replicas is never missed."""
    words = {"<service>": document.name}
    wanted = {
        group_name(document, phase): section.least_replicas for phase, section in document.phases.items()
    }
    if alert.each:
        fewest = 2 if alert.each == "phase with several replicas" else 1
        for phase, replicas in wanted.items():
            if replicas >= fewest:
                yield words | {"<phase>": phase, "<Phase>": phase.capitalize(), "<wanted>": str(replicas)}
    elif alert.topology in (None, document.topology) and (alert.phase is None or wanted.get(alert.phase)):
        yield words


def _rule(document: Document, alert: Alert, words: dict[str, str]) -> dict[str, Any]:
    query = for_service(alert.query, document.kubernetes.namespace, document.name)
    return {
        "alert": _with(words, alert.name),
        "expr": _with(words, query),
        "for": alert.after,
        "labels": {"severity": alert.severity, "diptych_service": document.name},
        "annotations": {
            "summary": f"{document.name}: {_with(words, alert.summary)}",
            "description": _with(words, alert.description),
        },
    }


def _with(words: dict[str, str], text: str) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text
