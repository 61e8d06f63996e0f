"""Nodes against the rest of the document: how many, which ones, where, what their disks hold, what they may pull."""

from collections.abc import Iterable

from diptych.catalog.instances import GIB
from diptych.catalog.nodes import INSTANCE_TYPE_LABELS, ZONE_LABEL
from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import PhaseView, Subject
from diptych.render.layout import WorkerGroup, own_zone
from diptych.spec.sizes import format_size

_SYSTEM = 20 * GIB
"""The snapshot that the nodes' root volumes are made from."""

_SYSTEM_AND_IMAGE = 60 * GIB
"""Beside it the image: 25 GiB unpacked, what was downloaded for it, and what kubelet keeps free."""


@rule("K541", "warning", "Nodes that no replica uses")
def nodes_are_used(subject: Subject) -> Iterable[Complaint]:
    idle: dict[str, list[tuple[str, int, int]]] = {}
    upgrade = subject.document.kubernetes.upgrade == "new-cluster"
    for view, group in _on_eks(subject):
        used = group.most_pods * (2 if upgrade else 1)
        if group.count > used:
            idle.setdefault(view.nodes_path("count"), []).append((group.name, used, group.count - used))
    for field, groups in idle.items():
        taken = " and ".join(f"{name} takes {_nodes(used)}" for name, used, _ in groups)
        left = sum(each for _, _, each in groups)
        count = groups[0][1] + groups[0][2]
        yield Complaint(
            field,
            f"is {count}{' for each phase' if len(groups) > 1 else ''}, and {taken}: {_nodes(left)} with GPUs "
            f"{'stands' if left == 1 else 'stand'} idle, and must be paid for",
            "remove it, or raise num_replicas",
        )


@rule("K542", "error", "A selector that contradicts the nodes")
def selector_agrees(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases if not subject.is_local else ():
        selector, nodes = view.nodes.selector or {}, view.nodes
        type_name = nodes.instance_type or (
            view.group.instance_type if subject.document.on == "eks" and view.group else None
        )
        said = [(label, type_name, "instance_type") for label in INSTANCE_TYPE_LABELS]
        for label, value, field in (*said, (ZONE_LABEL, nodes.zone, "zone")):
            asked = selector.get(label)
            if asked is not None and value is not None and asked != value:
                yield Complaint(
                    view.nodes_path("selector"),
                    f"asks for nodes with {label}: {asked}, and {view.nodes_path(field)} is {value}",
                    f"keep one of the two: remove the label, or write {field}: {asked}",
                )


@rule("M322", "error", "A root volume smaller than its system")
def volume_holds_image(subject: Subject) -> Iterable[Complaint]:
    for view, group in _on_eks(subject):
        volume = view.nodes.volume_size
        on_disks = group.instance is None or group.instance.nvme_bytes > 0  # then the image lies there
        least = _SYSTEM if on_disks else _SYSTEM_AND_IMAGE
        if volume is not None and volume < least:
            needs = (
                "the nodes' own image needs"
                if on_disks
                else "the system and the engines' image (25 GiB) need"
            )
            yield Complaint(
                view.nodes_path("volume_size"),
                f"is {format_size(volume)}, and {needs} {format_size(least)}, without the model",
                f"give {format_size(least)} or more, or remove it: the default has room for the model too",
            )


@rule("K543", "warning", "Images that new nodes may not pull")
def images_are_pulled(subject: Subject) -> Iterable[Complaint]:
    if subject.document.on == "eks" and subject.document.image.pull_policy == "Never":
        yield Complaint(
            "image.pull_policy",
            "is Never, and nodes on EKS start without the image: their pods wait for ever",
            "remove it: IfNotPresent pulls once per node",
        )


@rule("C821", "warning", "A reservation whose zone is not named")
def reservation_has_a_zone(subject: Subject) -> Iterable[Complaint]:
    if subject.document.eks.zone != "auto" or any(own_zone(view.nodes) for view in subject.phases):
        return
    for view, _ in _on_eks(subject):
        reservation = view.nodes.capacity_reservation
        if reservation is not None:
            yield Complaint(
                view.nodes_path("capacity_reservation"),
                f"is {reservation}, which holds nodes in one zone, and eks.zone is auto: another one may be taken",
                "set eks.zone to the zone of the reservation",
            )


@rule("C822", "error", "One reservation for two instance types")
def reservation_has_one_type(subject: Subject) -> Iterable[Complaint]:
    views = list(_on_eks(subject))
    if len(views) < 2:
        return
    (prefill, first), (decode, second) = views
    reservation = decode.nodes.capacity_reservation
    shared = reservation is not None and reservation == prefill.nodes.capacity_reservation
    if shared and str(reservation).startswith("cr-") and first.instance_type != second.instance_type:
        yield Complaint(
            decode.nodes_path("capacity_reservation"),
            f"is {reservation} for both phases, and a reservation holds one instance type: prefill has "
            f"{first.instance_type}, decode {second.instance_type}",
            "give each phase a reservation of its own, or both the same instance type",
        )


@rule("C823", "error", "A namespace of Kubernetes itself")
def namespace_is_no_systems(subject: Subject) -> Iterable[Complaint]:
    namespace = subject.document.kubernetes.namespace
    if not subject.is_local and namespace.startswith("kube-"):
        yield Complaint(
            "kubernetes.namespace",
            f"is {namespace}: names that begin with kube- belong to Kubernetes, and our policies would hold for its "
            "own pods",
            "choose another one, like diptych",
        )


@rule("C824", "warning", "The namespace that everybody uses")
def namespace_is_own(subject: Subject) -> Iterable[Complaint]:
    if not subject.is_local and subject.document.kubernetes.namespace == "default":
        yield Complaint(
            "kubernetes.namespace",
            "is default, where others have their pods too",
            "choose one of its own, like diptych",
        )


def _on_eks(subject: Subject) -> Iterable[tuple[PhaseView, WorkerGroup]]:
    """The phases whose nodes Diptych makes."""
    views = subject.phases if subject.document.on == "eks" else ()
    return ((view, view.group) for view in views if view.group is not None)


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"
