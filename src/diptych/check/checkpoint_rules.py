"""M3xx: whether the checkpoint fits where it is read from and read into: the pod's memory, the node's disk."""

from collections.abc import Iterable

from diptych.catalog.instances import GIB
from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import PhaseView, Subject
from diptych.render.layout import free_memory
from diptych.spec.sizes import format_size


@rule("M308", "error", "A pod smaller than the checkpoint")
def checkpoint_fits_pod(subject: Subject) -> Iterable[Complaint]:
    for view, checkpoint, memory, per_pod in _pods(subject):
        if memory < per_pod:
            yield Complaint(
                _memory_field(view),
                f"gives a pod {format_size(memory)}, and the checkpoint has {_gib(checkpoint)}: its own pages push "
                "each other out while it is read",
                _more_memory(view, per_pod + 8 * GIB),
            )


@rule("M309", "warning", "A pod without room for the page cache")
def page_cache_has_room(subject: Subject) -> Iterable[Complaint]:
    for view, checkpoint, memory, per_pod in _pods(subject):
        group = view.group
        shared = group.size.shared_memory if group else 0
        needed = per_pod + shared + 4 * GIB
        if per_pod <= memory < needed:
            field, do = _memory_field(view), _more_memory(view, needed)
            room = (memory - per_pod - 4 * GIB) // GIB * GIB
            if view.section.resources.shared_memory is not None and room > 0:
                field, do = f"{view.name}.resources.shared_memory", f"lower it to {format_size(room)} or less"
            yield Complaint(
                field,
                f"a pod of {view.name} has {format_size(memory)}, and the checkpoint ({_gib(checkpoint)}), shared "
                f"memory ({format_size(shared)}) and the engines' own need {_gib(needed)}: a restart reads the disk "
                "again",
                do,
            )


@rule("M310", "error", "A disk smaller than the checkpoint")
def checkpoint_fits_disk(subject: Subject) -> Iterable[Complaint]:
    checkpoint = subject.checkpoint_bytes
    if subject.document.on != "eks" or checkpoint is None or not subject.document.staging.enabled:
        return
    for view in subject.phases:
        instance = view.group.instance if view.group else None
        if instance is None:
            continue
        on_nvme = subject.document.staging.path is None and instance.nvme_bytes > 0
        volume = view.nodes.volume_size
        if on_nvme and instance.nvme_bytes < checkpoint:
            nvme = _gb(instance.nvme_bytes)
            what = f"{instance.name} has {nvme} of local NVMe, and the checkpoint has {_gb(checkpoint)}"
            do = "set staging.path to a folder on the root volume, and nodes.volume_size to hold it"
            yield Complaint("staging.path", what, do)
        elif not on_nvme and volume is not None and volume < checkpoint + 60 * GIB:
            size = format_size(volume)
            what = f"is {size}, and the checkpoint ({_gib(checkpoint)}), the image and the system need more"
            do = f"give {format_size(_ceil_gib(checkpoint + 80 * GIB))}, or remove it"
            yield Complaint(view.nodes_path("volume_size"), what, do)


def _pods(subject: Subject) -> Iterable[tuple[PhaseView, int, int, int]]:
    """Each phase with pods of a size that the document gives: checkpoint, the pod's memory, the pod's part of it."""
    checkpoint = subject.checkpoint_bytes
    for view in subject.phases:
        if view.group is not None and checkpoint is not None:
            yield view, checkpoint, view.group.size.memory, checkpoint // view.group.pods_per_replica


def _memory_field(view: PhaseView) -> str:
    """What decides over the pod's memory."""
    asked = view.section.resources.memory is not None
    return f"{view.name}.resources.memory" if asked else view.nodes_path("instance_type")


def _more_memory(view: PhaseView, needed: int) -> str:
    """How a pod gets `needed` bytes: more of its node where that has them, else a larger node."""
    node = view.group.instance if view.group else None
    if node is not None and _ceil_gib(needed) > free_memory(node):
        return f"use an instance type with more memory: {format_size(_ceil_gib(needed))} or more for pods"
    return f"give it {format_size(_ceil_gib(needed))} or more: {view.name}.resources.memory"


def _ceil_gib(size: int) -> int:
    return -(-size // GIB) * GIB


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def _gb(size: float) -> str:
    return f"{size / 1e9:.0f} GB"
