"""What the service is told was asked of the KV transfer, so that it can prove it: `transport` of `build_app`."""

from typing import Any

from diptych.render.engine import kv_backend
from diptych.render.layout import WorkerGroup, wants_efa, worker_groups
from diptych.spec import Document

_EFA_BACKEND = "LIBFABRIC"
_BYTES_PER_GBIT = 1e9 / 8


def transport(document: Document) -> dict[str, Any]:
    """What is known of it: backend, provider, the nodes' EFA, and whether a fallback is allowed.

    What is not known or asked is left out; nothing without a split.
    """
    if document.topology == "aggregated":
        return {}
    backend = kv_backend(document)
    found: dict[str, Any] = {"backend": backend} if backend else {}
    if backend == _EFA_BACKEND and wants_efa(document):
        found |= _efa(worker_groups(document))
    if document.kv_transfer.allow_fallback:
        found["allow_fallback"] = True
    return found


def _efa(groups: tuple[WorkerGroup, ...]) -> dict[str, Any]:
    """Of the weaker phase: a KV transfer takes what both have. RDMA counters move where both have GPUDirect RDMA."""
    found: dict[str, Any] = {"provider": "efa", "rails": min(group.size.efa for group in groups)}
    instances = [group.instance for group in groups if group.instance is not None]
    if len(instances) == len(groups):
        found["rdma_counters"] = all(each.gpudirect_rdma for each in instances)
        found["bandwidth_bytes_per_s"] = min(each.network_gbps for each in instances) * _BYTES_PER_GBIT
    return found
