"""N2xx: a Kubernetes cluster that exists: its version, what its RBAC allows, its nodes, the operator.

Rules look at what `diptych.kube.facts.gather` found out, and stay silent about what it could not (N190 says that
once).
"""

from collections.abc import Iterable, Mapping

from diptych.catalog.engines import KUBERAY_VERSIONS
from diptych.catalog.instances import instance_type
from diptych.catalog.nodes import INSTANCE_TYPE_LABELS, ZONE_LABEL
from diptych.check.cluster import ClusterFacts, Node
from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import PhaseView, Subject
from diptych.render.layout import WorkerGroup
from diptych.spec.sizes import format_size

OLDEST_KUBERNETES = (1, 27)
"""The first that has all that is applied: `unhealthyPodEvictionPolicy` of a PodDisruptionBudget."""

TOLERATED: tuple[Mapping[str, str | None], ...] = (
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "aws.amazon.com/efa", "operator": "Exists", "effect": "NoSchedule"},
)
"""What worker pods tolerate where the document names nothing, as they are rendered."""

_DEVICE_PLUGINS = {
    "gpus": "the NVIDIA device plugin (nvidia-device-plugin-daemonset)",
    "efa": "the EFA device plugin, aws-efa-k8s-device-plugin; it stays off nodes whose taint it does not tolerate",
}


@rule("N201", "error", "A cluster that nobody is let into")
def cluster_answers(subject: Subject) -> Iterable[Complaint]:
    cluster = cluster_of(subject)
    if cluster is not None and cluster.refused is not None:
        yield Complaint("kubernetes.context", f"leads nowhere: {cluster.refused.why}", cluster.refused.do)


@rule("N202", "error", "A version of Kubernetes that is too old")
def cluster_is_new_enough(subject: Subject) -> Iterable[Complaint]:
    cluster = cluster_of(subject)
    version = _number(cluster.version) if cluster is not None and cluster.version else None
    if cluster is not None and version is not None and version < OLDEST_KUBERNETES:
        oldest = ".".join(map(str, OLDEST_KUBERNETES))
        yield Complaint(
            "kubernetes.context",
            f"is {cluster.context}, which runs Kubernetes {cluster.version}, and {oldest} is the oldest that will do",
            "upgrade the cluster, or use another one",
        )


@rule("N203", "error", "Rights that the cluster does not give")
def rights_are_given(subject: Subject) -> Iterable[Complaint]:
    cluster = cluster_of(subject)
    if cluster is None or not cluster.denied:
        return
    everywhere = [str(each) for each in cluster.denied if each.everywhere]
    inside = [str(each) for each in cluster.denied if not each.everywhere]
    namespace = subject.document.kubernetes.namespace
    parts = [
        *([f"in the namespace {namespace}: {', '.join(inside)}"] if inside else []),
        *([f"in the whole cluster: {', '.join(everywhere)}"] if everywhere else []),
    ]
    first = next(iter(cluster.denied))
    where = "" if first.everywhere else f" -n {namespace}"
    yield Complaint(
        "kubernetes.namespace",
        f"is {namespace}, and these credentials may not, {'; '.join(parts)}",
        f"have them allowed by a Role or ClusterRole; kubectl auth can-i {first}{where} asks again",
    )


@rule("N204", "error", "GPUs that the cluster does not have")
def gpus_are_there(subject: Subject) -> Iterable[Complaint]:
    yield from _short(subject, "gpus", "GPUs")


@rule("N205", "error", "EFA that the cluster does not have")
def efa_is_there(subject: Subject) -> Iterable[Complaint]:
    yield from _short(subject, "efa", "EFA interfaces")


@rule("N206", "warning", "EFA interfaces other than the instance type has")
def efa_is_as_the_type_has(subject: Subject) -> Iterable[Complaint]:
    """A device plugin that counts other devices too, or misses some."""
    cluster = cluster_of(subject)
    if not any(group.size.efa for group in subject.groups):
        return
    for node in (cluster.nodes if cluster else None) or ():
        name = next((node.labels[label] for label in INSTANCE_TYPE_LABELS if label in node.labels), "")
        known = instance_type(name)
        if known is not None and node.efa and node.efa != known.efa_interfaces:
            yield Complaint(
                "kubernetes.context",
                f"is {cluster.context if cluster else ''}, whose node {node.name} ({name}) offers {node.efa} EFA "
                f"interfaces, and the type has {known.efa_interfaces}",
                "update the EFA device plugin: from 0.5.10 on it counts EFA devices only",
            )


@rule("N207", "error", "Huge pages that the nodes don't have")
def huge_pages_are_there(subject: Subject) -> Iterable[Complaint]:
    """Nobody can make them later: a pod that asks for them waits for ever."""
    for view, group, nodes in _phases(subject):
        asked = group.size.hugepages_2mi
        most = max((node.hugepages_2mi for node in nodes), default=0)
        if asked and nodes and most < asked:
            yield Complaint(
                f"{view.name}.resources.hugepages_2mi",
                f"is {format_size(asked)}, and no node for {group.name} has more than {format_size(most)} set aside",
                "remove it: libfabric does without; or set vm.nr_hugepages on the nodes and restart their kubelet",
            )


@rule("N208", "error", "Pods that no node is large enough for")
def pods_fit(subject: Subject) -> Iterable[Complaint]:
    for view, group, nodes in _phases(subject):
        size = group.size
        able = [node for node in nodes if node.gpus >= size.gpus and node.efa >= size.efa]
        if not able:
            continue  # N204 and N205 say so
        cpus, memory = max(node.cpu_millis for node in able), max(node.memory_bytes for node in able)
        fits = any(n.cpu_millis >= size.cpus * 1000 and n.memory_bytes >= size.memory for n in able)
        if not fits:
            yield Complaint(
                f"{view.name}.resources",
                f"asks for {size.cpus} CPU cores and {format_size(size.memory)} for each pod of {group.name}, and its "
                f"nodes give {cpus // 1000} and {format_size(memory)} at most",
                f"lower {view.name}.resources.cpus and memory: other pods need some too",
            )


@rule("N209", "error", "Phases with EFA on nodes of different zones")
def efa_stays_in_zone(subject: Subject) -> Iterable[Complaint]:
    """EFA does not leave its zone, and nothing says so: transfers hang."""
    phases = [(view, group, nodes) for view, group, nodes in _phases(subject) if group.size.efa]
    zones = {node.labels[ZONE_LABEL] for _, _, nodes in phases for node in nodes if ZONE_LABEL in node.labels}
    if len(zones) > 1:
        yield Complaint(
            phases[0][0].nodes_path("selector"),
            f"chooses nodes with EFA in {', '.join(sorted(zones))}, and EFA does not leave its zone",
            f"add {ZONE_LABEL}: {min(zones)} to it",
        )


@rule("N210", "error", "An operator that will not do")
def operator_will_do(subject: Subject) -> Iterable[Complaint]:
    cluster = cluster_of(subject)
    namespace = subject.document.kubernetes.namespace
    oldest = KUBERAY_VERSIONS[0]
    for each in (cluster.operators if cluster else None) or ():
        if each.ours:
            continue  # `up` upgrades it and widens what it watches
        if each.watches and namespace not in each.watches:
            yield Complaint(
                "kubernetes.namespace",
                f"is {namespace}, and the KubeRay operator in {each.namespace} watches {', '.join(each.watches)} only",
                f"write {each.watches[0]}, or have its watchNamespace widened",
            )
        elif each.version and _number(each.version) < _number(oldest):
            yield Complaint(
                "kubernetes.kuberay_version",
                f"does not count: others run KubeRay {each.version} in {each.namespace}, and {oldest} is the "
                "oldest that will do",
                "have it upgraded, or removed so that Diptych installs its own",
            )


def cluster_of(subject: Subject) -> ClusterFacts | None:
    """The cluster's facts, where the document is for a cluster that exists and they were asked for."""
    return subject.facts.cluster if subject.document.on == "kubernetes" else None


def _short(subject: Subject, resource: str, what: str) -> Iterable[Complaint]:
    """Phases whose nodes don't have what their pods ask for: none at all, too little, or taken by others."""
    cluster = cluster_of(subject)
    taken: dict[str, int] = {}
    for view, group, nodes in _phases(subject):
        asked = getattr(group.size, resource)
        if cluster is None or cluster.nodes is None or not asked:
            continue
        field = f"{view.name}.resources.{resource}"
        if not nodes:
            if resource == "gpus":
                yield Complaint(view.nodes_path("selector"), *_nowhere(view, cluster))
            continue
        whole = [node for node in nodes if getattr(node, resource) >= asked]
        if not whole:
            most = max(getattr(node, resource) for node in nodes)
            name = {"gpus": "nvidia.com/gpu", "efa": "vpc.amazonaws.com/efa"}[resource]
            do = f"install {_DEVICE_PLUGINS[resource]}" if most == 0 else f"set {field} to {most}"
            lacks = f"none offers {name}" if most == 0 else f"the most that one offers ({name}) is {most}"
            yield Complaint(
                field, f"is {asked} for each pod, and of {len(nodes)} nodes for {group.name} {lacks}", do
            )
            continue
        free = [n for n in whole if getattr(n, resource) - getattr(n, f"{resource}_used") >= asked]
        free = [n for n in free if taken.get(n.name, 0) == 0]
        for node in free[: group.least_pods]:
            taken[node.name] = asked
        if len(free) < group.least_pods:
            used = len(whole) - len(free)
            yield Complaint(
                field,
                f"is {asked} for each of {group.least_pods} pods of {group.name}, and {len(free)} of {len(whole)} "
                f"nodes have as many {what} free: {used} are used by other pods",
                "free them, add nodes, or choose others with the phase's nodes.selector",
            )


def _nowhere(view: PhaseView, cluster: ClusterFacts) -> tuple[str, str]:
    """What is wrong and what to do where no node is meant for a phase's pods."""
    gpus = [node for node in cluster.nodes or () if node.gpus]
    selector = ", ".join(f"{key}: {value}" for key, value in (view.nodes.selector or {}).items())
    if not gpus:
        plugin = _DEVICE_PLUGINS["gpus"]
        return (
            "finds no node with a GPU: no node offers nvidia.com/gpu",
            f"add GPU nodes, or install {plugin}",
        )
    ready = [node for node in gpus if node.ready]
    if not ready:
        named = ", ".join(node.name for node in gpus[:3])
        return f"finds GPU nodes that are not ready or cordoned: {named}", "see kubectl describe node"
    taints = {
        f"{t.get('key')}:{t.get('effect')}" for node in ready for t in node.taints if not _tolerates(view, t)
    }
    if taints:
        return f"finds GPU nodes with taints that nothing tolerates: {', '.join(sorted(taints))}", (
            "add nodes.tolerations for them"
        )
    return f"chooses no GPU node: none has the labels {selector}", "see kubectl get nodes --show-labels"


def _phases(subject: Subject) -> Iterable[tuple[PhaseView, WorkerGroup, list[Node]]]:
    """Each phase with the nodes that its pods may stand on."""
    cluster = cluster_of(subject)
    for view in subject.phases:
        if cluster is not None and cluster.nodes is not None and view.group is not None:
            nodes = [node for node in cluster.nodes if node.ready and _meant(view, view.group, node)]
            yield view, view.group, nodes


def _meant(view: PhaseView, group: WorkerGroup, node: Node) -> bool:
    wanted = dict(view.nodes.selector or {})
    if view.nodes.zone:
        wanted[ZONE_LABEL] = view.nodes.zone
    if view.nodes.instance_type:
        wanted[INSTANCE_TYPE_LABELS[0]] = view.nodes.instance_type
    labelled = all(node.labels.get(key) == value for key, value in wanted.items())
    has_gpus = bool(wanted) or node.gpus > 0
    return labelled and has_gpus and all(_tolerates(view, taint) for taint in node.taints)


def _tolerates(view: PhaseView, taint: Mapping[str, str]) -> bool:
    """Whether a phase's pods may stand on a node with this taint; a taint that only prefers keeps nobody off."""
    if taint.get("effect") == "PreferNoSchedule":
        return True
    own = view.nodes.tolerations
    tolerations = TOLERATED if own is None else [each.model_dump() for each in own]
    return any(_matches(each, taint) for each in tolerations)


def _matches(toleration: Mapping[str, str | None], taint: Mapping[str, str]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    return toleration.get("key") == taint.get("key") and (toleration.get("value") or "") == taint.get(
        "value", ""
    )


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.lstrip("v").split(".")[:3] if part.isdigit())
