"""On EKS: node groups in place of labels of nodes, and the instance type that fits the GPU that was asked for."""

from collections.abc import Mapping
from typing import Any

from diptych.catalog.instances import InstanceType, instance_type, instance_types
from diptych.catalog.nodes import INSTANCE_TYPE_LABELS, ZONE_LABEL
from diptych.spec.convert.application import Engine, Engines
from diptych.spec.convert.parts import Remark
from diptych.spec.convert.pods import Pod
from diptych.spec.fields import Phase

_REGION_LABEL = "topology.kubernetes.io/region"
_SPOT = {"eks.amazonaws.com/capacityType": "SPOT", "karpenter.sh/capacity-type": "spot"}
_READ_LABELS = frozenset({*INSTANCE_TYPE_LABELS, ZONE_LABEL, _REGION_LABEL, *_SPOT})
_NO_POD = Pod({}, {}, {}, [], privileged=False, token_secret=None)


def eks_nodes(
    engines: Engines, pods: Mapping[Phase, Pod], given: str | None, remarks: list[Remark]
) -> tuple[dict[Phase, dict[str, Any]], dict[Phase, dict[str, Any]], dict[str, Any]]:
    """Each phase's `nodes` and `resources`, and the document's `eks`; `given` is the instance type of all nodes."""
    nodes: dict[Phase, dict[str, Any]] = {}
    resources: dict[Phase, dict[str, Any]] = {}
    zones: set[str] = set()
    regions: set[str] = set()
    for phase, engine in engines.items():
        pod = pods.get(phase, _NO_POD)
        type_name = given or labelled_type(pod)[1] or _fitting(phase, engine, pod, len(engines) > 1, remarks)
        spot = any(pod.selector.get(label) == value for label, value in _SPOT.items())
        nodes[phase] = {"instance_type": type_name, "market": "spot" if spot else None}
        resources[phase] = _less_than_all(pod, instance_type(type_name or ""))
        zones |= {str(pod.selector[ZONE_LABEL])} if ZONE_LABEL in pod.selector else set()
        regions |= {str(pod.selector[_REGION_LABEL])} if _REGION_LABEL in pod.selector else set()
        _remark_on_pod(phase, pod, remarks)
    zone = zones.pop() if len(zones) == 1 else None
    region = zone[:-1] if zone else next(iter(regions), None)
    if region is None:
        remarks.append(Remark("region", "a manifest names none", "set eks.region; default: us-east-2"))
    return nodes, resources, {"region": region, "zone": zone}


def labelled_type(pod: Pod) -> tuple[str, str | None]:
    """The label of a pod's nodes that names their instance type, and the type; None if no known one is named."""
    for label in INSTANCE_TYPE_LABELS:
        name = pod.selector.get(label)
        if isinstance(name, str) and instance_type(name):
            return label, name
    return "", None


def _fitting(phase: Phase, engine: Engine, pod: Pod, split: bool, remarks: list[Remark]) -> str | None:
    """The smallest instance type with the engine's GPU, as many as it asks for, and EFA if KV cache is transferred."""
    where = f"{phase}: nodes.instance_type"
    if engine.accelerator is None:
        why = "the manifest names no instance type and no accelerator_type"
        remarks.append(Remark(where, why, "set nodes.instance_type"))
        return None
    gpus = pod.resources.get("gpus") or engine.engine_kwargs.get("tensor_parallel_size", 1)
    fitting = [
        each
        for each in instance_types().values()
        if each.accelerator_type == engine.accelerator and each.gpus >= gpus and (each.has_efa or not split)
    ]
    if not fitting:
        remarks.append(
            Remark(where, f"no instance type with {gpus} × {engine.accelerator} is known", "set it")
        )
        return None
    smallest = min(fitting, key=lambda each: (each.gpus, each.vcpus, each.memory_bytes))
    why = f"{smallest.name} was chosen, the smallest with {gpus} × {engine.accelerator}"
    remarks.append(Remark(where, why + (" and EFA" if split else ""), "set another if you have it"))
    return smallest.name


def _less_than_all(pod: Pod, instance: InstanceType | None) -> dict[str, Any]:
    """What the pod is given beside all of its node, or where that is less than all."""
    whole = {"gpus": instance.gpus, "efa": instance.efa_interfaces} if instance else {}
    return {
        name: value
        for name, value in pod.resources.items()
        if name not in ("cpus", "memory", "gpus", "efa") or (name in whole and value != whole[name])
    }


def _remark_on_pod(phase: Phase, pod: Pod, remarks: list[Remark]) -> None:
    labels = sorted(set(pod.selector) - _READ_LABELS)
    if labels:
        why = f"Diptych makes the nodes, and labels them itself ({', '.join(labels)})"
        remarks.append(Remark(f"{phase}: nodeSelector", why))
    if pod.tolerations:
        remarks.append(Remark(f"{phase}: tolerations", "Diptych's nodes have no taints"))
    if pod.resources.keys() & {"cpus", "memory"}:
        remarks.append(Remark(f"{phase}: cpu and memory", "a worker gets all that its node can give"))
