"""Small parts that Kubernetes objects are made of."""

from collections.abc import Mapping
from typing import Any

from diptych.render import names
from diptych.spec import Document

_UNITS = (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def quantity(size: int) -> str:
    """`size` bytes as Kubernetes writes them, exactly.

    >>> quantity(8 * 2**30), quantity(1536 * 2**20), quantity(1000)
    ('8Gi', '1536Mi', '1000')
    """
    for unit, factor in _UNITS:
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def variables(values: Mapping[str, str]) -> list[dict[str, Any]]:
    """A container's `env`, in the given order."""
    return [{"name": name, "value": value} for name, value in values.items()]


def metadata(
    document: Document, name: str, *, annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Name, namespace and labels of an object that belongs to the service."""
    found: dict[str, Any] = {
        "name": name,
        "namespace": document.kubernetes.namespace,
        "labels": names.labels(document),
    }
    return found | ({"annotations": dict(annotations)} if annotations else {})
