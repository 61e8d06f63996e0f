"""The managed node groups of an EKS cluster, as eksctl's ClusterConfig has them.

There is one group without GPUs, and one for each worker group of the document. What holds for each, and why:

- All are in private subnets of one availability zone each: EFA does not leave its zone.
- No taint: with one on `nvidia.com/gpu`, eksctl's EFA device plugin stays away and `vpc.amazonaws.com/efa` never
  appears. What has no business on GPU nodes is pinned to the system nodes instead.
- No placement group of our own. eksctl makes one per group with EFA, and none where there is a capacity reservation
  (`pkg/cfn/builder/managed_launch_template.go`), since a reservation made outside a placement group can't be used in
  one.
- As many nodes as the document says, no fewer and no more: nothing scales them behind the operator's back.
- `disablePodIMDS` sets the hop limit of instance metadata to 1 and demands tokens (`makeMetadataOptions` in
  `pkg/cfn/builder/nodegroup.go`, for managed groups too). Pods can't reach the node's role; pods on the node's own
  network can.
- Local NVMe disks become one RAID 0 by nodeadm, mounted at /mnt/k8s-disks/0, and containerd's and kubelet's files
  move there (`templates/al2023/runtime/bin/setup-local-disks` of awslabs/amazon-eks-ami). eksctl puts
  `overrideBootstrapCommand` as a NodeConfig in front of the one that EKS adds; nodeadm merges them. Without such
  disks it does nothing, so it stands in every GPU group.
"""

import math
from collections.abc import Sequence
from typing import Any

from diptych.catalog.instances import GIB
from diptych.catalog.nodes import is_reserved_label
from diptych.render import names
from diptych.render.inputs import Facts
from diptych.render.layout import WorkerGroup, zone_of
from diptych.render.staging import LOCAL_DISKS, node_folder
from diptych.spec import Document, NodesSection

AMI_FAMILY = "AmazonLinux2023"
GPU_ROLE = "gpu-worker"

# Root volumes, GiB. The image takes 25 unpacked; what was downloaded for it stays beside it, and a second one must
# fit while it is replaced.
_SYSTEM_GIB = 50
_IMAGE_GIB = 50
_CHECKPOINT_SHARE = 1.2
_UNKNOWN_CHECKPOINT = 100 * GIB
# Where the checkpoint is read from the root volume: four times a gp3 volume's own speed, which 3000 IOPS allow.
_FAST_VOLUME_MIBPS = 500

_NODE_CONFIG = """\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0
"""


def group_name(document: Document, group: WorkerGroup) -> str:
    """The name of a worker group's node group; several services can share a cluster."""
    return f"{document.name}-{group.name}"


def zone(document: Document, facts: Facts, nodes: NodesSection) -> str:
    """The availability zone of a node group; for `auto`, before one was chosen, the region's first letter."""
    return zone_of(document, nodes, facts) or f"{document.eks.region}a"


def system_group(document: Document, facts: Facts, first: WorkerGroup) -> dict[str, Any]:
    """The nodes for Ray's head, the operator and Kubernetes' own pods, in the zone of the `first` worker group.

    In another zone they would serve nobody when that one fails, and pay for traffic across.
    """
    section = document.eks.system_nodes
    return {
        "name": names.SYSTEM,
        **_machines(section.instance_type, section.count, zone(document, facts, first.nodes)),
        **_volume(_SYSTEM_GIB + _IMAGE_GIB),
        **_safety(),
        "labels": {names.PHASE_LABEL: names.SYSTEM},
        "tags": {names.PHASE_LABEL: names.SYSTEM},
    }


def gpu_group(
    document: Document, facts: Facts, group: WorkerGroup, security_groups: Sequence[str] = ()
) -> dict[str, Any]:
    """The nodes of one worker group.

    Args:
        security_groups: ids of further security groups for their network interfaces.
    """
    type_name = group.instance_type or ""
    asked = {key: value for key, value in (group.nodes.selector or {}).items() if not is_reserved_label(key)}
    own = {names.PHASE_LABEL: group.name, names.SERVICE_LABEL: document.name}
    labels = {"role": GPU_ROLE} | asked | own  # what the pods select by, and ours over it, as on the pods
    found = {
        "name": group_name(document, group),
        **_machines(type_name, group.count, zone(document, facts, group.nodes)),
        **_market(group.nodes),
        **_root_volume(document, facts, group),
        **_safety(),
        "labels": labels,
        "tags": {names.PHASE_LABEL: group.name, names.SERVICE_LABEL: document.name},
        "overrideBootstrapCommand": _NODE_CONFIG,
    }
    if group.size.efa:
        found["efaEnabled"] = True
    if security_groups:
        found["securityGroups"] = {"attachIDs": list(security_groups)}
    return found


def volume_gib(document: Document, facts: Facts, group: WorkerGroup) -> int:
    """GiB of the root volume: the document's, else room for what lies on it.

    The image lies there where there are no local disks, the checkpoint where it is neither staged nor unpacked on
    them. A checkpoint of unknown size can't be larger than the GPUs that hold it.
    """
    if group.nodes.volume_size is not None:
        return math.ceil(group.nodes.volume_size / GIB)
    size = _SYSTEM_GIB + (0 if _has_local_disks(group) else _IMAGE_GIB)
    if not _holds_checkpoint(document, group):
        return size
    room = math.ceil(_CHECKPOINT_SHARE * _most_checkpoint_bytes(facts, group) / GIB)
    return size + math.ceil(room / 10) * 10


def _machines(instance_type: str, count: int, zone_name: str) -> dict[str, Any]:
    return {
        "instanceType": instance_type,
        "amiFamily": AMI_FAMILY,
        "desiredCapacity": count,
        "minSize": count,
        "maxSize": count,
        "availabilityZones": [zone_name],
        "privateNetworking": True,
    }


def _safety() -> dict[str, Any]:
    return {
        "disableIMDSv1": True,
        "disablePodIMDS": True,
        "nodeRepairConfig": {"enabled": True, "maxParallelNodesRepairedCount": 1},
    }


def _market(nodes: NodesSection) -> dict[str, Any]:
    """Spot, a reservation or a capacity block. A block without its reservation is refused by eksctl, never bought."""
    found: dict[str, Any] = {"spot": True} if nodes.market == "spot" else {}
    reservation = nodes.capacity_reservation
    if reservation:
        by_id = reservation.startswith("cr-")
        key = "capacityReservationID" if by_id else "capacityReservationResourceGroupARN"
        found["capacityReservation"] = {"capacityReservationTarget": {key: reservation}}
    if nodes.market == "capacity-block":
        found["instanceMarketOptions"] = {"marketType": "capacity-block"}
    return found


def _root_volume(document: Document, facts: Facts, group: WorkerGroup) -> dict[str, Any]:
    found = _volume(volume_gib(document, facts, group))
    if _holds_checkpoint(document, group):
        found["volumeThroughput"] = _FAST_VOLUME_MIBPS
    return found


def _volume(gib: int) -> dict[str, Any]:
    return {"volumeSize": gib, "volumeType": "gp3", "volumeEncrypted": True}


def _has_local_disks(group: WorkerGroup) -> bool:
    return group.instance is not None and group.instance.nvme_bytes > 0


def _holds_checkpoint(document: Document, group: WorkerGroup) -> bool:
    if not _has_local_disks(group):
        return True
    return document.staging.enabled and not node_folder(document, group).startswith(LOCAL_DISKS)


def _most_checkpoint_bytes(facts: Facts, group: WorkerGroup) -> int:
    if facts.checkpoint_bytes is not None:
        return facts.checkpoint_bytes
    if group.instance is None:
        return _UNKNOWN_CHECKPOINT
    return group.gpus_per_replica * group.instance.gpu_memory_bytes
