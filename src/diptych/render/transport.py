"""What the service is told was asked of the KV transfer, so that it can prove it: `transport` of `build_app`."""

from typing import Any

from diptych.catalog.instances import TCP_FLOW_GBPS, InstanceType
from diptych.render.engine import kv_backend
from diptych.render.layout import WorkerGroup, wants_efa, worker_groups
from diptych.spec import Document

_EFA_BACKEND = "LIBFABRIC"
_OVER_TCP = ("UCX", _EFA_BACKEND)
"""Backends that take TCP between nodes on EC2 without EFA; UCX with it, too, since it can't drive it."""
_BYTES_PER_GBIT = 1e9 / 8


def transport(document: Document) -> dict[str, Any]:
    """What is known of it: backend, provider, the nodes' EFA or what TCP has there, and whether a fallback is allowed.

    What is not known or asked is left out; nothing without a split.
    """
    if document.topology == "aggregated":
        return {}
    backend = kv_backend(document)
    found: dict[str, Any] = {"backend": backend} if backend else {}
    if document.on != "local":
        groups = worker_groups(document)
        if backend == _EFA_BACKEND and wants_efa(document):
            found |= _efa(groups)
        elif backend in _OVER_TCP:
            found |= _tcp(groups)
    if document.kv_transfer.allow_fallback:
        found["allow_fallback"] = True
    return found


def _efa(groups: tuple[WorkerGroup, ...]) -> dict[str, Any]:
    """Of the weaker phase: a KV transfer takes what both have. RDMA counters move where both have GPUDirect RDMA."""
    found: dict[str, Any] = {"provider": "efa", "rails": min(group.size.efa for group in groups)}
    instances = _instances(groups)
    if instances:
        found["rdma_counters"] = all(each.gpudirect_rdma for each in instances)
        found["bandwidth_bytes_per_s"] = min(map(_replicas_gbps, groups, instances)) * _BYTES_PER_GBIT
    return found


def _tcp(groups: tuple[WorkerGroup, ...]) -> dict[str, Any]:
    """What a replica of the weaker phase has, and what of it one TCP flow may take; nothing of types not known."""
    instances = _instances(groups)
    if not instances:
        return {}
    return {
        "bandwidth_bytes_per_s": min(map(_replicas_gbps, groups, instances)) * _BYTES_PER_GBIT,
        "flow_bytes_per_s": TCP_FLOW_GBPS * _BYTES_PER_GBIT,
    }


def _instances(groups: tuple[WorkerGroup, ...]) -> list[InstanceType]:
    """Of all groups; none where one is not known."""
    known = [group.instance for group in groups if group.instance is not None]
    return known if len(known) == len(groups) else []


def _replicas_gbps(group: WorkerGroup, instance: InstanceType) -> float:
    """One replica's share of its node's network, by its share of the GPUs; of several nodes it has one's at least."""
    share = group.gpus_per_replica / max(1, instance.gpus)  # a slice of a GPU counts as none
    return instance.network_gbps * min(1.0, share)


def slowest_network(document: Document) -> tuple[float | None, bool | None]:
    """Of the nodes of a document on a cluster: the smallest one's 10^9 bits per second, and whether all have GPUDirect.

    None twice where an instance type is not known.
    """
    known = _instances(worker_groups(document))
    if not known:
        return None, None
    return min(each.network_gbps for each in known), all(each.gpudirect_rdma for each in known)
