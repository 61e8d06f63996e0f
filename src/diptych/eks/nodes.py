"""The step `nodes`: a group of GPU nodes for each phase, in one zone, with all that its pods ask for allocatable."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from diptych.eks import (
    capacity,
    draining,
    efa,
    group_differences,
    groups,
    ownership,
    plugins,
    plugins_of_others,
    stacks,
    workloads,
)
from diptych.eks.capacity import ShortageError
from diptych.eks.groups import NodeGroup
from diptych.eks.job import EksJob
from diptych.eks.vpc import Vpc, Zones
from diptych.errors import ClusterError
from diptych.kube.connection import Cluster
from diptych.kube.job import StepStatus
from diptych.kube.nodes import device_blockers, node_trouble
from diptych.kube.waiting import Seen
from diptych.render.eksctl import cluster_config
from diptych.render.layout import WorkerGroup, worker_groups
from diptych.render.node_groups import group_name

STEP = "nodes"


def up(job: EksJob, cluster: Cluster) -> str:
    """Bring the GPU nodes up; a changed count resizes their group in place. Says what is there.

    Raises:
        ShortageError: no zone that may be used has them now.
        AccountError, ClusterError: something else; in words.
    """
    _refuse_forgotten(job)
    network = Vpc.find(job)
    found = _zone_in_use(job, network)
    plugins_of_others.note(job, cluster)
    made = _in_some_zone(job, cluster, network, found)
    for group in worker_groups(job.document):
        there = made.get(group_name(job.document, group))
        if there is not None:
            _compare(job, group, there, Zones(job, network))
            _resize(job, cluster, there, group.count)
    if made:  # else it is a dry run, and eksctl would install them
        plugins.install_missing(job, cluster, worker_groups(job.document), STEP)
    usual_s = groups.USUAL_S + 5 * sum(group.count for group in worker_groups(job.document))
    job.wait(STEP, lambda: allocatable(job, cluster), usual_s)
    return _summary(job, cluster)


def down(job: EksJob, cluster: Cluster | None) -> str:
    """Remove this document's node groups, dead ones included, and nobody else's.

    Args:
        cluster: None where there is none any more to look into.

    Raises:
        ClusterError: the service is still up, or somebody else's pods are on them.
    """
    own = [group for group in groups.ours(job) if ownership.is_of_document(job, group.tags)]
    if cluster is not None:
        _refuse_use(job, cluster, own)
    going = sorted({group.name for group in own} | _stacked(job))
    for name in going:  # all at once, and then each to its end
        stacks.begin_removal(job, STEP, groups.stack_name(job, name))
    for name in going:
        groups.remove(job, STEP, name)
    efa.remove(job, STEP)
    return f"{', '.join(going)} removed" if going else "there were none"


def look(job: EksJob, cluster: Cluster | None, zones: Zones | None = None) -> StepStatus:
    """What the GPU nodes are like now.

    Args:
        zones: of the cluster's subnets, where somebody else asks for them, too.
    """
    zones = zones or Zones(job)
    wanted = {group_name(job.document, group): group for group in worker_groups(job.document)}
    there = {group.name: group for group in groups.ours(job) if ownership.is_of_document(job, group.tags)}
    details = {name: _details(job, there.get(name), group, zones) for name, group in wanted.items()}
    missing = [name for name in wanted if name not in there]
    if not there:
        return StepStatus(STEP, "absent", "no node groups of this document", details)
    broken = [group for group in there.values() if group.is_broken]
    if broken:
        text = f"{broken[0].name} is {broken[0].status}: {' '.join(broken[0].issues)}"
        return StepStatus(STEP, "failed", text.rstrip(": "), details)
    if any(group.status == "DELETING" for group in there.values()):
        return StepStatus(STEP, "going", "node groups are being removed", details)
    if missing:
        return StepStatus(STEP, "coming", f"not there yet: {', '.join(missing)}", details)
    seen = (
        allocatable(job, cluster)
        if cluster is not None
        else Seen(done=False, blocker="nobody can look inside")
    )
    if not seen.done:
        return StepStatus(STEP, "coming", seen.blocker, details)
    return StepStatus(STEP, "ready", _summary(job, cluster), details)


def in_their_zone(job: EksJob) -> EksJob:
    """The job with the zone that its nodes are in: capacity may have led to another than was thought of."""
    zone = zone_in_use(job)
    return replace(job, facts=replace(job.facts, zone=zone)) if zone is not None else job


def zone_in_use(job: EksJob) -> str | None:
    """Where this document's nodes are; None where there are none."""
    return _zone_in_use(job, Vpc.find(job))


def allocatable(job: EksJob, cluster: Cluster | None) -> Seen:
    """Whether each node of each group is there, ready, and has what the instance table says of its type."""
    if cluster is None:
        return Seen(done=False, blocker="There is no cluster.")
    pods = cluster.list("Pod", namespace="kube-system")
    for group in worker_groups(job.document):
        name = group_name(job.document, group)
        nodes = draining.nodes_of(cluster, name)
        ready = [node for node in nodes if not node_trouble(node) and not node["spec"].get("unschedulable")]
        if len(ready) != group.count:
            return _lacking(job, name, f"{name}: {len(ready)} of {group.count} nodes are ready.")
        found = device_blockers(ready, pods, efa=group.size.efa > 0)
        if found:
            return Seen(done=False, blocker=f"{name}: {found[0].text}", hint=found[0].do)
    return Seen(done=True)


def _lacking(job: EksJob, name: str, blocker: str) -> Seen:
    """Why a group has not as many nodes as it should: a shortage ends the wait, other issues are told with it."""
    there = groups.find(job, name)
    words = " ".join(there.issues) if there is not None else ""
    shortage = capacity.shortage_in(words, name)
    if shortage is not None:
        return Seen(done=False, blocker=shortage.message, fatal=shortage.message, hint=shortage.hint)
    return Seen(done=False, blocker=f"{blocker} {words}".rstrip())


def config_of(job: EksJob, network: Vpc | None, security_groups: Sequence[str] = ()) -> dict[str, Any]:
    """eksctl's configuration of the cluster with all its groups, as this job would have it."""
    zones = capacity.offering_zones(job)[:3] if capacity.is_zone_ours_to_choose(job) else ()
    config = cluster_config(job.document, job.facts, security_groups, zones=zones, account=job.place.account)
    return network.into(config) if network is not None and not network.is_eksctls else config


def _in_some_zone(
    job: EksJob, cluster: Cluster, network: Vpc | None, found: str | None
) -> dict[str, NodeGroup]:
    """Have all groups in the first zone that has the instances; what was made in another one is removed again."""
    used = _in_use(job, cluster)
    zones = capacity.zones_to_try(job, network.zones if network else (), found)
    tried: list[ShortageError] = []
    for zone in zones or (job.facts.zone,):
        here = replace(job, facts=replace(job.facts, zone=zone))
        try:
            return _make_all(here, network)
        except ShortageError as error:
            tried.append(error)
            job.view.say(f"{error.message}")
            _clear(here, used)
            if used or not error.elsewhere:
                raise
    untried = [
        zone for zone in capacity.offering_zones(job, network.zones if network else ()) if zone not in zones
    ]
    raise capacity.exhausted(job, tried, untried)


def _make_all(job: EksJob, network: Vpc | None) -> dict[str, NodeGroup]:
    config = config_of(job, network, efa.security_groups(job, STEP, network))
    return groups.ensure(
        job, STEP, config, [group_name(job.document, group) for group in worker_groups(job.document)]
    )


def _refuse_forgotten(job: EksJob) -> None:
    """Groups of this document that it has no use for any more would run on and be paid for.

    Raises:
        ClusterError: there are some, as after a change of the topology.
    """
    wanted = {group_name(job.document, group) for group in worker_groups(job.document)}
    own = {group.name for group in groups.ours(job) if ownership.is_of_document(job, group.tags)}
    if forgotten := sorted(own - wanted):
        name = job.document.name
        raise ClusterError(
            f"The document has no use any more for {', '.join(forgotten)}: they would run on and be paid for.",
            f"Take them down first: diptych down --name {name} --step service --step nodes; then `up` again.",
        )


def _in_use(job: EksJob, cluster: Cluster) -> frozenset[str]:
    """The live groups of this document that have pods on them, by name: they stay, whatever else is lacking."""
    own = [group for group in groups.ours(job) if ownership.is_of_document(job, group.tags)]
    return frozenset(
        group.name
        for group in own
        if not group.is_broken and workloads.pods_on(cluster, draining.node_names(cluster, group.name))
    )


def _clear(job: EksJob, used: Collection[str]) -> None:
    """Remove what is dead or was made for nothing; groups that were in `used` before stay."""
    for group in worker_groups(job.document):
        name = group_name(job.document, group)
        if name not in used:
            groups.remove(job, STEP, name)


def _zone_in_use(job: EksJob, network: Vpc | None) -> str | None:
    """Where this document's nodes are already."""
    if network is None:
        return None
    for group in groups.ours(job):
        if ownership.is_of_document(job, group.tags) and not group.is_broken:
            for subnet in group.subnets:
                if subnet in network.subnets:
                    return network.subnets[subnet]
    return None


def _compare(job: EksJob, group: WorkerGroup, there: NodeGroup, zones: Zones) -> None:
    """What differs and stays is said; what can't be changed in place, and matters to the service, stops.

    Raises:
        ClusterError: the instance type or the market is another one than the document's.
    """
    if differences := group_differences.of_machines(group, there):
        raise ClusterError(
            f"The node group {there.name} can't become what the document says: {'; '.join(differences)}.",
            "Make it anew: diptych down --step nodes (the service goes first), then diptych up.",
        )
    of_zone = group_differences.of_zone(job, group, there, zones)
    for difference in (*of_zone, *group_differences.of_template(job, group, there)):
        job.view.say(
            f"{there.name} differs from the document, and is used as it is: {difference}. To have it made anew: "
            f"diptych down --step service --step nodes, then diptych up."
        )


def _resize(job: EksJob, cluster: Cluster, there: NodeGroup, count: int) -> None:
    if there.desired > count:
        draining.shrink(job, cluster, STEP, there, count)
        there = groups.find(job, there.name) or there
    groups.grow(job, STEP, there, count)


def _refuse_use(job: EksJob, cluster: Cluster, own: Sequence[NodeGroup]) -> None:
    nodes = [name for group in own for name in draining.node_names(cluster, group.name)]
    pods = [pod for pod in workloads.pods_on(cluster, nodes) if workloads.is_of_diptych(pod)]
    if pods and not job.dry_run:
        raise ClusterError(
            f"The service {job.document.name} is still up on these nodes: {len(pods)} pods.",
            "Take it down first: diptych down --step service, or diptych down for all of it.",
        )
    workloads.refuse(workloads.on_nodes(cluster, nodes), f"Removing the nodes of {job.document.name}")


def _stacked(job: EksJob) -> set[str]:
    """Names of this document's groups of which only a stack is left: a dead one, or one that is being deleted."""
    start = groups.stack_name(job, "")
    return {
        name.removeprefix(start)
        for name, stack in stacks.of_cluster(job.session, job.place.cluster).items()
        if name.startswith(start) and ownership.is_of_document(job, stack.tags)
    }


def _details(job: EksJob, there: NodeGroup | None, group: WorkerGroup, zones: Zones) -> dict[str, Any]:
    differences: tuple[str, ...] = ()
    if there is not None:
        machines = group_differences.of_machines(group, there)
        differences = (*machines, *group_differences.of_zone(job, group, there, zones))
    return {
        "instance_type": group.instance_type,
        "wanted": group.count,
        "desired": there.desired if there else 0,
        "status": there.status if there else "absent",
        "issues": list(there.issues) if there else [],
        "differences": list(differences),
    }


def _summary(job: EksJob, cluster: Cluster | None) -> str:
    """How many nodes there are of which type, and in which zone."""
    counts = [
        f"{group.count} × {group.instance_type} for {group.name}" for group in worker_groups(job.document)
    ]
    zones = {
        (node["metadata"].get("labels") or {}).get("topology.kubernetes.io/zone", "")
        for group in worker_groups(job.document)
        for node in (draining.nodes_of(cluster, group_name(job.document, group)) if cluster else ())
    }
    where = f" in {', '.join(sorted(filter(None, zones)))}" if any(zones) else ""
    return f"{', '.join(counts)}{where}"
