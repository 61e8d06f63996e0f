"""K5xx: replicas, their autoscaling, and whether the nodes hold them."""

import math
from collections.abc import Iterable

from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import PhaseView, Subject
from diptych.render.layout import WorkerGroup, free_cpu_millis, free_memory
from diptych.spec.sizes import format_size

DEFAULT_TARGET_ONGOING_REQUESTS = 2
"""Ray Serve's own."""


@rule("K505", "error", "Autoscaling that never adds a replica")
def target_can_be_reached(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        scaling, most = view.section.autoscaling_config, view.section.max_ongoing_requests
        if scaling is None or most is None:
            continue
        target = scaling.target_ongoing_requests or DEFAULT_TARGET_ONGOING_REQUESTS
        if most < target:
            yield Complaint(
                f"{view.name}.max_ongoing_requests",
                f"is {most}, below target_ongoing_requests ({target:g}): a replica never has so many that another is "
                "added",
                f"raise it to {math.ceil(target)} or more, or lower "
                f"{view.name}.autoscaling_config.target_ongoing_requests",
            )


@rule("K506", "error", "Autoscaling bounds that contradict each other")
def bounds_agree(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        scaling = view.section.autoscaling_config
        if scaling is None:
            continue
        least, first, most = scaling.min_replicas, scaling.initial_replicas, scaling.max_replicas
        field = f"{view.name}.autoscaling_config"
        if least > most:
            what = f"is {least}, above max_replicas ({most})"
            yield Complaint(f"{field}.min_replicas", what, "give min_replicas the smaller number")
        elif first is not None and not least <= first <= most:
            what = f"is {first}, outside of min_replicas ({least}) to max_replicas ({most})"
            yield Complaint(f"{field}.initial_replicas", what, "choose one between them")


@rule("K507", "error", "More replicas than the nodes hold")
def nodes_hold_replicas(subject: Subject) -> Iterable[Complaint]:
    for view, group in _views(subject):
        count = group.nodes.count
        if count is not None and group.most_pods > count:
            scaled = view.section.autoscaling_config is not None
            field = "autoscaling_config.max_replicas" if scaled else "num_replicas"
            yield Complaint(
                f"{view.name}.{field}",
                f"is {view.section.most_replicas}, which takes {group.most_pods} pods of {_gpus(group.size.gpus)}, and "
                f"nodes.count is {count}: one pod per node",
                f"set {view.nodes_path('count')} to {group.most_pods}, or lower {field}",
            )


@rule("K508", "warning", "GPUs that no replica uses")
def no_idle_gpus(subject: Subject) -> Iterable[Complaint]:
    for view, group in _views(subject):
        replicas, pods = view.section.most_replicas, group.most_pods
        idle = pods * group.size.gpus - replicas * group.gpus_per_replica
        if idle:
            stay = "stays" if idle == 1 else "stay"
            count = "one replica takes" if replicas == 1 else f"{replicas} replicas take"
            fields = (f"{view.name}.resources.gpus", f"{view.name}.num_replicas")
            written = (field for field in fields if subject.is_written(field))
            yield Complaint(
                next(written, view.nodes_path("instance_type")),
                f"{count} {_gpus(replicas * group.gpus_per_replica)}, and {pods} {'pod' if pods == 1 else 'pods'} of "
                f"{view.name} {'has' if pods == 1 else 'have'} {pods * group.size.gpus}: {idle} {stay} idle",
                "add replicas, choose parallel sizes that divide the node's GPUs, or a smaller instance type",
            )


@rule("K509", "error", "Pods that are larger than their nodes")
def pods_fit_nodes(subject: Subject) -> Iterable[Complaint]:
    for view, group in _views(subject):
        instance, asked = group.instance, view.section.resources
        if instance is None:
            continue
        cores = free_cpu_millis(instance) // 1000
        wanted = (
            ("gpus", asked.gpus, max(1, instance.gpus), str),
            ("cpus", asked.cpus, cores, str),
            ("memory", asked.memory, free_memory(instance), format_size),
        )
        for name, amount, most, show in wanted:
            if amount is not None and amount > most:
                what = f"is {show(amount)}, and {instance.name} has {show(most)} for one pod: its pods wait for ever"
                yield Complaint(
                    f"{view.name}.resources.{name}", what, f"write {show(most)} at most, or remove it"
                )


@rule("K510", "error", "A replica on several nodes without EFA")
def spanning_needs_efa(subject: Subject) -> Iterable[Complaint]:
    for view, group in _views(subject):
        known = group.instance is not None
        if _tensor_parallel_spans(view, group) and group.size.efa == 0 and known:
            yield Complaint(
                view.path("tensor_parallel_size"),
                f"is {view.tensor_parallel}, and a pod has {_gpus(group.size.gpus)}: each token would cross the "
                f"network twice per layer, and {group.instance_type} has no EFA",
                f"set {view.nodes_path('instance_type')} to a type with {view.tensor_parallel} GPUs, or EFA",
            )


@rule("K511", "warning", "Tensor parallelism across nodes")
def tensor_parallel_in_one_node(subject: Subject) -> Iterable[Complaint]:
    for view, group in _views(subject):
        if _tensor_parallel_spans(view, group) and (group.size.efa or group.instance is None):
            yield Complaint(
                view.path("tensor_parallel_size"),
                f"is {view.tensor_parallel}, and a pod has {_gpus(group.size.gpus)}: each token crosses the network "
                "twice per layer",
                "use a type with more GPUs; or pipeline_parallel_size between nodes, with topology: aggregated",
            )


@rule("K512", "error", "An upgrade that needs GPUs twice")
def upgrade_has_room(subject: Subject) -> Iterable[Complaint]:
    if subject.is_local or subject.document.kubernetes.upgrade != "new-cluster":
        return
    for view, group in _views(subject):
        count = group.count if subject.document.on == "eks" else group.nodes.count
        if count is not None and count < 2 * group.least_pods:
            said = (
                f"nodes.count is {count}" if group.nodes.count else f"there are as many as its pods, {count}"
            )
            yield Complaint(
                "kubernetes.upgrade",
                f"is new-cluster, which needs {2 * group.least_pods} nodes for {view.name} while it changes over, and "
                f"{said}: the new cluster waits for ever",
                f"use in-place, or set {view.nodes_path('count')} to {2 * group.least_pods}",
            )


@rule("K527", "warning", "An upgrade that may need more GPUs than there are")
def upgrade_may_have_room(subject: Subject) -> Iterable[Complaint]:
    if subject.document.on != "kubernetes" or subject.document.kubernetes.upgrade != "new-cluster":
        return
    uncounted = [(view, group) for view, group in _views(subject) if group.nodes.count is None]
    if uncounted:
        needed = " and ".join(f"{2 * group.least_pods} for {view.name}" for view, group in uncounted)
        yield Complaint(
            "kubernetes.upgrade",
            f"is new-cluster, which takes twice the nodes while it changes over ({needed}), and nodes.count does not "
            "say how many there are",
            "use in-place, or set nodes.count to the nodes of each phase",
        )


@rule("K513", "warning", "Two ways to say how many replicas")
def one_way_to_count(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        field = f"{view.name}.num_replicas"
        if view.section.autoscaling_config is not None and subject.is_written(field):
            what = f"is {view.section.num_replicas}, and autoscaling_config takes its place"
            yield Complaint(field, what, "remove one of the two")


@rule("K514", "warning", "A phase that may have no replica")
def one_replica_stays(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        scaling = view.section.autoscaling_config
        if scaling is not None and scaling.min_replicas == 0:
            yield Complaint(
                f"{view.name}.autoscaling_config.min_replicas",
                "is 0: the first request after a pause waits until an engine has started, minutes",
                "write 1 if anybody waits for answers",
            )


def _tensor_parallel_spans(view: PhaseView, group: WorkerGroup) -> bool:
    return view.tensor_parallel > group.size.gpus


def _views(subject: Subject) -> Iterable[tuple[PhaseView, WorkerGroup]]:
    return ((view, view.group) for view in subject.phases if view.group is not None)


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
