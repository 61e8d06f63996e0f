"""Where a replica runs: its node as Ray and Kubernetes name it."""

import contextlib
import os
from typing import Any

NODE_NAME_ENV, ZONE_ENV = "DIPTYCH_NODE_NAME", "DIPTYCH_ZONE"
"""Set in the pods that `diptych render` writes: Kubernetes' node, and its zone where that is known before."""

# KubeRay puts the pod's name into the first; Ray knows a zone by this label where the cluster has told it.
_POD_NAME_ENV, _ZONE_LABEL = "RAY_CLOUD_INSTANCE_ID", "ray.io/availability-zone"


def surroundings() -> dict[str, str | None]:
    """Of this process: `host` (the Ray node's address), `node_id` (Ray's), `node_name` (Kubernetes'), `pod`, `zone`."""
    import ray
    from ray.util import get_node_ip_address

    in_kubernetes = "KUBERNETES_SERVICE_HOST" in os.environ
    pod = os.environ.get(_POD_NAME_ENV) or os.environ.get("HOSTNAME")
    context = ray.get_runtime_context()
    return {
        "host": get_node_ip_address(),
        "node_id": context.get_node_id(),
        "node_name": os.environ.get(NODE_NAME_ENV),
        "pod": pod if in_kubernetes else None,
        "zone": os.environ.get(ZONE_ENV) or _label(context, _ZONE_LABEL),
    }


def _label(context: Any, name: str) -> str | None:
    labels: Any = {}
    with contextlib.suppress(Exception):  # older ones have none
        labels = context.get_node_labels()
    value = labels.get(name)
    found = value[0] if isinstance(value, list) and value else value
    return str(found) if found else None
