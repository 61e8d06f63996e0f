"""Pods that run where no KV transfer over EFA can join them, whatever Kubernetes says of them."""

from diptych.kube.blocker import Blocker
from diptych.kube.nodes import zone_of
from diptych.kube.objects import EFA, Object, name_of, node_of, phase_of, requests_of
from diptych.kube.snapshot import Snapshot


def placement_blocker(snapshot: Snapshot, pods: tuple[Object, ...]) -> Blocker | None:
    """Workers that run where EFA can't join them: in two zones, or some of them without an interface."""
    workers = [pod for pod in pods if phase_of(pod)]
    with_efa = [pod for pod in workers if requests_of(pod).get(EFA)]
    if not with_efa:
        return None
    without = [pod for pod in workers if pod not in with_efa]
    if without:
        other = name_of(with_efa[0])
        what = f"asks for no EFA interface, and pod {other} has some: KV transfers between them don't go over EFA"
        do = "Give both phases nodes with EFA."
        return Blocker(f"pod {name_of(without[0])}", what, do, phase=phase_of(without[0]))
    zones = {_zone(snapshot, pod): name_of(pod) for pod in workers if _zone(snapshot, pod)}
    if len(zones) > 1:
        places = ", ".join(f"{pod} in {zone}" for zone, pod in sorted(zones.items()))
        what = f"{snapshot.name} has workers in several zones ({places}): EFA does not leave a zone"
        return Blocker("the service", what, "Set one `zone` for the nodes of both phases.")
    return _mounted(workers)


def _mounted(workers: list[Object]) -> Blocker | None:
    """Pods that see all of a node's RDMA devices: libfabric then fails on those that it may not open."""
    for pod in workers:
        for volume in (pod.get("spec") or {}).get("volumes") or []:
            path = str((volume.get("hostPath") or {}).get("path") or "").rstrip("/")
            if path == "/dev/infiniband":
                what = (
                    "mounts all of the node's /dev/infiniband: libfabric may not open all of it and takes TCP"
                )
                do = "Take that volume out: the device plugin hands devices over."
                return Blocker(f"pod {name_of(pod)}", what, do, phase=phase_of(pod))
    return None


def _zone(snapshot: Snapshot, pod: Object) -> str:
    node = snapshot.node(node_of(pod))
    return zone_of(node) if node else ""
