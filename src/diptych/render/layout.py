"""How a document's replicas lie on nodes: one worker pod per node, and what each pod takes of it.

A pod takes all GPUs and EFA interfaces of its node. Replicas that need fewer GPUs share a pod, replicas that need
more span several. On EKS the instance type says what a node has; on another cluster the document's `resources` do,
or defaults for each GPU.
"""

import math
from dataclasses import dataclass

from diptych.catalog.instances import DEFAULT_INSTANCE_TYPE, GIB, InstanceType, instance_type
from diptych.catalog.nodes import INSTANCE_TYPE_LABELS, ZONE_LABEL
from diptych.render.inputs import Facts
from diptych.spec import Document, NodesSection, Phase, PhaseSection

_CPUS_PER_GPU = 8
_MEMORY_PER_GPU = 64 * GIB
_SHARED_MEMORY = 8 * GIB
# What the pods of daemon sets (network, device plugins, log agents) ask for beside the worker.
_DAEMONS_CPU_MILLIS = 850
_DAEMONS_MEMORY = 2 * GIB
_MOST_GPUS_PER_NODE = 8


@dataclass(frozen=True)
class PodSize:
    """What one worker pod has: whole CPU cores, bytes of memory (shared memory included), GPUs, EFA interfaces."""

    cpus: int
    memory: int
    shared_memory: int
    gpus: int
    efa: int
    hugepages_2mi: int = 0


@dataclass(frozen=True)
class WorkerGroup:
    """The worker pods of one phase.

    Args:
        name: "prefill", "decode" or "aggregated".
        phase: the section of the document that describes it.
        size: of each pod.
        nodes: the phase's nodes, shared settings included.
        instance: what the instance type has, where the document names one that is known.
        instance_type: its name, where the document (or, on EKS, the default) names one.
        gpus_per_replica: tensor x pipeline x data parallel size.
        least_pods, most_pods: for the fewest and the most replicas.
        count: nodes to have.
    """

    name: str
    phase: Phase
    size: PodSize
    nodes: NodesSection
    instance: InstanceType | None
    instance_type: str | None
    gpus_per_replica: int
    least_pods: int
    most_pods: int
    count: int

    @property
    def replicas_per_pod(self) -> int:
        """Replicas that one pod can hold; 0 where a replica spans several pods."""
        return self.size.gpus // self.gpus_per_replica

    @property
    def pods_per_replica(self) -> int:
        """Pods that one replica takes a part of."""
        return math.ceil(self.gpus_per_replica / self.size.gpus)


def worker_groups(document: Document) -> tuple[WorkerGroup, ...]:
    """The worker groups of a document that is served on a cluster, in the order of its phases."""
    return tuple(_group(document, phase, section) for phase, section in document.phases.items())


def group_name(document: Document, phase: Phase) -> str:
    """What the engines of `phase` are called: "aggregated" where one does both."""
    return "aggregated" if document.topology == "aggregated" else phase


def gpus_per_replica(document: Document, phase: Phase) -> int:
    """GPUs of one replica: tensor x pipeline x data parallel size, each 1 unless it is a whole number above 0."""
    kwargs = document.engine_kwargs_for(phase)
    names = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    return math.prod(parallel_size(kwargs.get(name)) for name in names)


def parallel_size(value: object) -> int:
    """`value` where it is a parallel size, else 1."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


def pods_for(replicas: int, gpus_per_replica: int, gpus_per_pod: int) -> int:
    """Pods that hold `replicas`.

    >>> pods_for(3, 4, 8), pods_for(2, 16, 8)
    (2, 4)
    """
    if gpus_per_replica > gpus_per_pod:
        return replicas * math.ceil(gpus_per_replica / gpus_per_pod)
    return math.ceil(replicas / (gpus_per_pod // gpus_per_replica))


def wants_efa(document: Document) -> bool:
    """Whether every worker pod has EFA interfaces, so that the KV cache can go over them."""
    return document.on != "local" and all(group.size.efa > 0 for group in worker_groups(document))


def zone_of(document: Document, nodes: NodesSection, facts: Facts) -> str | None:
    """The availability zone of a phase's `nodes`; None where it isn't given, and on EKS not chosen yet.

    On EKS `auto` follows the phase that has a zone: EFA does not leave it.
    """
    own = own_zone(nodes)
    if own or document.on != "eks":
        return own
    if document.eks.zone != "auto":
        return document.eks.zone
    others = (own_zone(document.nodes_for(phase)) for phase in document.phases)
    return next(filter(None, others), facts.zone)


def own_zone(nodes: NodesSection) -> str | None:
    """The zone that nodes are given themselves: by their field, or by the label that every node has."""
    return nodes.zone or (nodes.selector or {}).get(ZONE_LABEL)


def labelled_type(nodes: NodesSection) -> str | None:
    """The instance type that the selector names by the label that every node has; None if it is not a known one."""
    selector = nodes.selector or {}
    named = (selector.get(label, "") for label in INSTANCE_TYPE_LABELS)
    return next((name for name in named if instance_type(name)), None)


def free_cpu_millis(instance: InstanceType) -> int:
    """Thousandths of a core that a node has for one of our pods, beside those of daemon sets."""
    return instance.allocatable_cpu_millis - _DAEMONS_CPU_MILLIS


def free_memory(instance: InstanceType) -> int:
    """Bytes that a node has for one of our pods, beside those of daemon sets."""
    return instance.allocatable_memory_bytes - _DAEMONS_MEMORY


def _group(document: Document, phase: Phase, section: PhaseSection) -> WorkerGroup:
    nodes = document.nodes_for(phase)
    default = DEFAULT_INSTANCE_TYPE if document.on == "eks" else None
    type_name = nodes.instance_type or labelled_type(nodes) or default
    instance = instance_type(type_name) if type_name else None
    gpus = gpus_per_replica(document, phase)
    size = _pod_size(section, instance, gpus)
    least = pods_for(section.least_replicas, gpus, size.gpus)
    most = pods_for(section.most_replicas, gpus, size.gpus)
    return WorkerGroup(
        name=group_name(document, phase),
        phase=phase,
        size=size,
        nodes=nodes,
        instance=instance,
        instance_type=type_name,
        gpus_per_replica=gpus,
        least_pods=least,
        most_pods=most,
        count=nodes.count or most,
    )


def _pod_size(section: PhaseSection, instance: InstanceType | None, gpus_per_replica: int) -> PodSize:
    asked = section.resources
    if instance is not None:
        gpus = asked.gpus or max(1, instance.gpus)
        cpus = max(1, free_cpu_millis(instance) // 1000)
        memory = max(GIB, free_memory(instance) // GIB * GIB)
        efa = instance.efa_interfaces
    else:
        gpus = asked.gpus or min(gpus_per_replica, _MOST_GPUS_PER_NODE)
        cpus, memory, efa = gpus * _CPUS_PER_GPU, gpus * _MEMORY_PER_GPU, 0
    return PodSize(
        cpus=asked.cpus or cpus,
        memory=asked.memory or memory,
        shared_memory=asked.shared_memory or _SHARED_MEMORY,
        gpus=gpus,
        efa=efa if asked.efa is None else asked.efa,
        hugepages_2mi=asked.hugepages_2mi or 0,
    )
