"""T4xx: the way of the KV cache: EFA, its backend, the variables that steer it, and where nodes stand."""

from collections.abc import Iterable

from diptych.catalog.instances import nearest_with_efa
from diptych.check.compatibility import limits
from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import PhaseView, Subject, zone_field
from diptych.render.layout import WorkerGroup, own_zone, wants_efa
from diptych.spec.sizes import format_size

_HUGEPAGE = 2 * 2**20
_HUGEPAGES_OF_EFA_NODES = 5128 * _HUGEPAGE
"""What the EFA driver of EKS' node images sets aside."""

_IGNORED_VARIABLES = {
    "NIXL_BACKEND": "NIXL's backend is chosen by kv_transfer.backend",
    "VLLM_NIXL_BACKEND": "NIXL's backend is chosen by kv_transfer.backend",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "each replica gets its own address",
    "NIXL_ETCD_ENDPOINTS": "vLLM's engines meet over their side channel, not over etcd",
}
_NO_LEASE = "VLLM_NIXL_ABORT_REQUEST_TIMEOUT"


@rule("T401", "error", "LIBFABRIC without EFA")
def libfabric_needs_efa(subject: Subject) -> Iterable[Complaint]:
    if not subject.is_split or subject.document.kv_transfer.backend != "LIBFABRIC":
        return
    if subject.is_local:
        why = "is LIBFABRIC, and this machine has no EFA: libfabric would take TCP in silence"
        yield Complaint("kv_transfer.backend", why, "remove it: engines on one machine use UCX")
        return
    for view, group in _views(subject):
        if group.size.efa == 0 and _efa_is_refused(view, group):
            yield Complaint(
                _efa_field(view),
                "is 0, and kv_transfer.backend is LIBFABRIC: libfabric would take TCP in silence",
                _type_with_efa(group, view),
            )
        elif group.size.efa == 0 and not _is_unknown(group):
            lacks = f"{group.instance_type} has no EFA" if group.instance_type else "its pods ask for no EFA"
            yield Complaint(
                "kv_transfer.backend",
                f"is LIBFABRIC, and {lacks} ({view.name}): libfabric would take TCP in silence",
                _type_with_efa(group, view),
            )


@rule("T402", "warning", "UCX where there is EFA")
def efa_needs_libfabric(subject: Subject) -> Iterable[Complaint]:
    if subject.is_split and subject.document.kv_transfer.backend == "UCX" and wants_efa(subject.document):
        yield Complaint(
            "kv_transfer.backend",
            "is UCX, and both phases have EFA, which UCX can't drive: KV cache goes over TCP at about 0.3 GB/s",
            "remove it (auto takes LIBFABRIC here) or write LIBFABRIC",
        )


@rule("T403", "warning", "EFA on one side only")
def efa_on_both_sides(subject: Subject) -> Iterable[Complaint]:
    views = list(_views(subject))
    with_efa = [view for view, group in views if group.size.efa]
    without = [(view, group) for view, group in views if not group.size.efa and not _is_unknown(group)]
    if subject.document.kv_transfer.backend == "LIBFABRIC" or not with_efa:
        return
    for view, group in without:
        other = f"{with_efa[0].name} has EFA: KV cache goes over TCP"
        if _efa_is_refused(view, group):
            yield Complaint(_efa_field(view), f"is 0, and {other}", _type_with_efa(group, view))
        else:
            kind = group.instance_type or "its node"
            what = f"is {kind} without EFA for {view.name}, and {other}"
            yield Complaint(view.nodes_path("instance_type"), what, _type_with_efa(group, view))


@rule("T404", "warning", "A variable that has no effect")
def ignored_variables(subject: Subject) -> Iterable[Complaint]:
    if not subject.is_local or not subject.is_split:
        return
    for name, why in _IGNORED_VARIABLES.items():
        if name in subject.facts.environ:
            yield Complaint(
                "kv_transfer", f"the variable {name} is set here and ignored: {why}", f"unset {name}"
            )
    if _NO_LEASE in subject.facts.environ and limits(subject.engine.vllm).lease:
        why = (
            f"the variable {_NO_LEASE} is set here, and vLLM {subject.engine.vllm} does not read it any more"
        )
        yield Complaint("kv_transfer", why, f"unset {_NO_LEASE}, and set kv_transfer.lease_s")


@rule("T405", "error", "A variable that breaks KV transfers")
def dangerous_variables(subject: Subject) -> Iterable[Complaint]:
    if not subject.is_local or not subject.is_split:
        return
    environ = subject.facts.environ
    if environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT"):
        why = "the variable VLLM_NIXL_SIDE_CHANNEL_PORT is set here: all replicas would meet on that one port"
        yield Complaint("kv_transfer", why, "unset it: each replica gets a port of its own")


@rule("T409", "error", "Phases in different zones")
def one_zone(subject: Subject) -> Iterable[Complaint]:
    if not subject.is_split or subject.is_local:
        return
    eks = subject.document.eks if subject.document.on == "eks" else None
    shared = None if eks is None or eks.zone == "auto" else eks.zone
    own = [own_zone(view.nodes) for view in subject.phases]
    zones = [zone or shared for zone in own]
    if None not in zones and zones[0] != zones[1]:
        yield Complaint(
            zone_field(subject.phases[1]) if own[1] else "eks.zone",
            f"prefill is in {zones[0]} and decode in {zones[1]}: EFA does not work across zones, and TCP there is slow "
            "and charged",
            "put both phases into one zone",
        )


@rule("T410", "error", "More EFA interfaces than a node has")
def interfaces_are_there(subject: Subject) -> Iterable[Complaint]:
    for view, group in _with_pods(subject):
        asked = view.section.resources.efa
        if asked and group.instance and asked > group.instance.efa_interfaces:
            yield Complaint(
                f"{view.name}.resources.efa",
                f"is {asked}, and {group.instance.name} has {group.instance.efa_interfaces}: its pods wait for ever",
                f"write {group.instance.efa_interfaces} or remove it",
            )


@rule("T411", "error", "Huge pages that nodes don't have")
def hugepages_are_there(subject: Subject) -> Iterable[Complaint]:
    for view, group in _with_pods(subject):
        asked = group.size.hugepages_2mi
        field = f"{view.name}.resources.hugepages_2mi"
        if asked % _HUGEPAGE:
            what = f"is {format_size(asked)}, which is no multiple of 2 MiB: Kubernetes refuses the pods"
            yield Complaint(field, what, f"write {format_size((asked // _HUGEPAGE + 1) * _HUGEPAGE)}")
        elif asked and group.instance and not group.instance.has_efa:
            size, node = format_size(asked), group.instance.name
            what = f"is {size}, and only nodes with EFA set huge pages aside: {node} has none"
            yield Complaint(field, f"{what}, and its pods wait for ever", "remove it")
        elif asked > _HUGEPAGES_OF_EFA_NODES:
            most = format_size(_HUGEPAGES_OF_EFA_NODES // 2**20 * 2**20)
            what = f"is {format_size(asked)}, and nodes with EFA set {most} aside: its pods wait for ever"
            yield Complaint(field, what, "write 5GiB, or remove it: EFA works without")


@rule("T412", "warning", "Privileged pods without a reason")
def privileged_for_efa_only(subject: Subject) -> Iterable[Complaint]:
    if subject.is_local or subject.document.kubernetes.privileged != "always":
        return
    if not any(group.size.efa for group in subject.groups):
        yield Complaint(
            "kubernetes.privileged",
            "is always, and no pod has EFA: nothing else may need it",
            "remove it: auto starts without",
        )


@rule("T413", "error", "Memory that NIXL can't register")
def buffer_device_is_there(subject: Subject) -> Iterable[Complaint]:
    if subject.is_split and subject.document.kv_transfer.kv_buffer_device == "cuda" and not subject.on_gpu:
        yield Complaint(
            "kv_transfer.kv_buffer_device",
            "is cuda, and the engines here compute on CPUs",
            "remove it: auto takes the memory that the engine computes in",
        )


@rule("T414", "warning", "KV cache through host memory")
def buffer_on_gpu(subject: Subject) -> Iterable[Complaint]:
    if subject.is_split and subject.document.kv_transfer.kv_buffer_device == "cpu" and subject.on_gpu:
        yield Complaint(
            "kv_transfer.kv_buffer_device",
            "is cpu, and the engines compute on GPUs: each KV transfer is copied through host memory on both sides",
            "remove it, unless a transfer from GPU to GPU is known to fail",
        )


@rule("T418", "warning", "EFA that is turned off")
def efa_is_used(subject: Subject) -> Iterable[Complaint]:
    views = list(_views(subject))
    if any(group.size.efa for _, group in views) or subject.document.kv_transfer.backend == "LIBFABRIC":
        return  # T403 and T401 say so
    for view, group in views:
        if _efa_is_refused(view, group) and group.instance is not None and group.instance.has_efa:
            what = f"is 0, and {group.instance.name} has EFA: KV cache goes over TCP at about 0.3 GB/s"
            yield Complaint(_efa_field(view), what, "remove it")


@rule("T431", "warning", "KV cache over TCP")
def network_is_fast(subject: Subject) -> Iterable[Complaint]:
    views = list(_views(subject))
    slow = [group.instance is not None and not group.instance.has_efa for _, group in views]
    if subject.document.kv_transfer.backend != "auto" or not all(slow):
        return
    for view, group in views:
        yield Complaint(
            view.nodes_path("instance_type"),
            f"is {group.instance_type}, which has no EFA: KV cache goes over TCP at about 0.3 GB/s",
            _type_with_efa(group, view),
        )


def _with_pods(subject: Subject) -> Iterable[tuple[PhaseView, WorkerGroup]]:
    """The phases that have worker pods."""
    return ((view, view.group) for view in subject.phases if view.group is not None)


def _views(subject: Subject) -> Iterable[tuple[PhaseView, WorkerGroup]]:
    """The phases that have worker pods and exchange KV cache."""
    return _with_pods(subject) if subject.is_split else ()


def _efa_field(view: PhaseView) -> str:
    return f"{view.name}.resources.efa"


def _efa_is_refused(view: PhaseView, group: WorkerGroup) -> bool:
    """The document says 0 where there may be some."""
    lacks = group.instance is not None and not group.instance.has_efa
    return view.section.resources.efa == 0 and not lacks


def _is_unknown(group: WorkerGroup) -> bool:
    """Its instance type is not in the table: C802 says so, and nothing is known of its EFA."""
    return group.instance_type is not None and group.instance is None


def _type_with_efa(group: WorkerGroup, view: PhaseView) -> str:
    field = view.nodes_path("instance_type")
    if group.instance is not None and group.instance.has_efa:
        return f"remove {_efa_field(view)}: {group.instance.name} has EFA"
    if group.instance_type is None:
        return f"set {_efa_field(view)} to the EFA interfaces of a node"
    nearest = nearest_with_efa(group.instance_type)
    named = f"{field}: {nearest.name}" if nearest else f"another {field}: see docs/checks.md"
    return f"use {named}"
