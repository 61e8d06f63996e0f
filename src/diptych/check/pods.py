"""K5xx: shared memory of the worker pods, which is a part of their memory and holds Ray's object store."""

from collections.abc import Iterable

from diptych.catalog.instances import GIB
from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import Subject
from diptych.render.pods import LEAST_OBJECT_STORE
from diptych.spec.sizes import format_size

ENOUGH_FOR_RANKS = GIB
"""Ranks of one replica exchange data there (NCCL, and vLLM's own broadcast)."""


@rule("K530", "error", "Shared memory that can't be")
def shared_memory_can_be(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        if view.group is None:
            continue
        shared, memory = view.group.size.shared_memory, view.group.size.memory
        field = f"{view.name}.resources.shared_memory"
        if shared < LEAST_OBJECT_STORE:
            least = format_size(LEAST_OBJECT_STORE)
            what = f"is {format_size(shared)}, and Ray's object store alone needs {least} of it: Ray does not start"
            yield Complaint(field, what, "write 8GiB, or remove it")
        elif shared >= memory:
            what = f"is {format_size(shared)}, and the pod has {format_size(memory)} of memory, which it is a part of"
            yield Complaint(field, what, "write 8GiB, or remove it")


@rule("K531", "warning", "Little shared memory for several GPUs")
def ranks_have_shared_memory(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        if view.group is None or view.group.gpus_per_replica == 1:
            continue
        shared = view.group.size.shared_memory
        if LEAST_OBJECT_STORE <= shared < ENOUGH_FOR_RANKS:
            yield Complaint(
                f"{view.name}.resources.shared_memory",
                f"is {format_size(shared)}, and a replica's {view.group.gpus_per_replica} GPUs exchange data there",
                "write 8GiB, or remove it",
            )
