"""The step `cluster`: the EKS cluster with its add-ons and system nodes; what an interrupted run left undone is done.

An existing cluster is compared with the document and used; differences are shown, never overwritten.
"""

from collections.abc import Mapping
from types import MappingProxyType

from diptych.eks import (
    capacity,
    control_plane,
    draining,
    eksctl,
    group_differences,
    groups,
    ownership,
    plugins_of_others,
    stacks,
    workloads,
)
from diptych.eks.control_plane import EksCluster, find, stack_name
from diptych.eks.groups import NodeGroup
from diptych.eks.job import EksJob
from diptych.eks.nodes import config_of
from diptych.eks.ownership import Owner
from diptych.eks.vpc import Vpc, Zones
from diptych.errors import AccountError, ClusterError
from diptych.kube.connection import Cluster
from diptych.kube.job import State, StepStatus
from diptych.kube.waiting import Seen
from diptych.render import names
from diptych.render.write import to_yaml

STEP = "cluster"

USUAL_S = 900.0
"""Seconds that a cluster with its first nodes usually takes: ten minutes for the control plane alone."""
DELETION_S = 900.0

_STATES: Mapping[str, State] = MappingProxyType(
    {"CREATING": "coming", "PENDING": "coming", "UPDATING": "coming", "DELETING": "going"}
)


def up(job: EksJob) -> str:
    """Have a cluster that is ACTIVE, with add-ons and system nodes, and say that this document uses it.

    Raises:
        AccountError: AWS refuses something, or it failed; in words.
    """
    ownership.require_same_place(job)
    found = _settled(job)
    if found is None:
        _make(job)
        found = find(job)
        if found is None:  # a dry run
            return "would be made"
    owner = Owner.of(found.tags)
    ownership.require_same_place(job, owner)
    for difference in control_plane.differences(job, found):
        job.view.say(f"{found.name} differs from the document, and is used as it is: {difference}")
    if owner is None:
        job.view.say(f"{found.name} was not made by Diptych: it is used, not owned, and `down` leaves it.")
    else:
        control_plane.complete(job, found, STEP)
    _have_system_nodes(job)
    _join(job, found)
    return f"{found.name}, Kubernetes {found.version}"


def down(job: EksJob, cluster: Cluster | None) -> str:
    """Remove the cluster if it is ours and nobody else uses it; else only say that this document no longer does.

    Args:
        cluster: to look for what is not ours in it; None where it can't be reached.

    Raises:
        ClusterError: the document's nodes are still in it, something foreign is, or it can't be looked into.
        AccountError: it is in another account or region, or something of it can't be deleted.
    """
    found = find(job)
    owner = Owner.of(found.tags) if found else _owner_of_stack(job)
    ownership.require_same_place(job, owner)
    if found is not None:
        _refuse_own_nodes(job)
        if owner is None:
            return _leave_foreign(job, found, cluster)
        if _users(job, found):
            ownership.leave(job, found.arn)
            found = find(job)  # the others may have left, or removed it, at the same time
    if found is not None:
        if using := _users(job, found):
            control_plane.remove_associations(job, STEP)
            return f"{found.name} stays: {', '.join(using)} uses it"
        if found.runs:
            ownership.join(job, found.arn, found.tags)  # until it goes, somebody must be seen to use it
        _refuse_foreign(job, found, cluster)
        _delete(job, found)
    _remove_stacks(job)
    return f"{job.place.cluster} is gone"


def look(job: EksJob, zones: Zones | None = None) -> StepStatus:
    """What the cluster is like now.

    Args:
        zones: of its subnets, where somebody else asks for them, too.
    """
    found = find(job)
    if found is None:
        return _look_at_stack(job)
    details = {
        "arn": found.arn,
        "version": found.version,
        "documents": sorted(owner.documents) if (owner := Owner.of(found.tags)) else [],
        "differences": [*control_plane.differences(job, found), *_of_system_nodes(job, zones or Zones(job))],
        "made_at": found.made_at.timestamp() if found.made_at else None,
    }
    if found.status != "ACTIVE":
        text = f"{found.name} is {found.status}. {' '.join(found.issues)}".strip()
        return StepStatus(STEP, _STATES.get(found.status, "failed"), text, details)
    text = f"{found.name}, Kubernetes {found.version}"
    if owner is None:
        return StepStatus(STEP, "foreign", f"{text}; not made by Diptych", details)
    if missing := control_plane.missing_addons(job):
        return StepStatus(STEP, "coming", f"{text}; add-ons not there yet: {', '.join(missing)}", details)
    return StepStatus(STEP, "ready", text, details)


def _of_system_nodes(job: EksJob, zones: Zones) -> tuple[str, ...]:
    there = groups.find(job, names.SYSTEM)
    return group_differences.of_system(job, there, zones) if there is not None else ()


def _look_at_stack(job: EksJob) -> StepStatus:
    """Where EKS knows of no cluster: what its stack is about to be, or has been."""
    stack = stacks.find(job.session, stack_name(job))
    if stack is None:
        return StepStatus(STEP, "absent", "there is no cluster of that name")
    state: State = "failed"
    if stack.is_moving:
        state = "coming" if stack.status.startswith("CREATE") else "going"
    return StepStatus(STEP, state, f"its stack is {stack.status}. {stack.reason}".strip())


def _make(job: EksJob) -> None:
    """Have eksctl make the control plane, the network, the add-ons and the system nodes."""
    config = config_of(job, None)
    system = [group for group in config["managedNodeGroups"] if group["name"] == names.SYSTEM]
    file = job.folder / "cluster.yaml"
    finished = eksctl.run(
        job,
        STEP,
        ["create", "cluster", f"--config-file={file}", "--write-kubeconfig=false"],
        files={file: to_yaml({**config, "managedNodeGroups": system})},
        prefix=f"eksctl-{job.place.cluster}-",
        usual_s=USUAL_S,
    )
    if finished.code == 0:
        return
    found = find(job)
    names_of = stacks.of_cluster(job.session, job.place.cluster)
    why = stacks.failure(job.session, names_of) or finished.last(3)
    shortage = capacity.shortage_in(why, names.SYSTEM)
    state = f"is {found.status}" if found else "did not come up"
    raise shortage or AccountError(
        f"The cluster {job.place.cluster} {state}: {why}",
        "Set that right and run the same command again: it goes on from what is there. "
        f"All that eksctl printed is in {job.log('eksctl')}.",
    )


def _settled(job: EksJob) -> EksCluster | None:
    """Wait until nobody is at the cluster; one that died, of ours, is removed."""
    stack = stacks.settle(job, STEP, stack_name(job), USUAL_S)

    def look() -> Seen:
        found = find(job)
        if found is None or found.status in ("ACTIVE", "FAILED"):
            return Seen(done=True)
        return Seen(done=False, blocker=f"The cluster {found.name} is {found.status}.")

    job.wait(STEP, look, USUAL_S)
    found = find(job)
    if found is not None and found.status == "FAILED" and stack is None:
        raise AccountError(
            f"The cluster {found.name} is FAILED: {' '.join(found.issues) or 'EKS does not say why'}",
            f"Remove it: aws eks delete-cluster --name {found.name} --region {job.place.region}",
        )
    if stack is not None and (stack.is_dead or found is None):
        owner = Owner.of(stack.tags)
        if owner is None:
            raise AccountError(
                f"The stack {stack.name} is {stack.status}, and Diptych did not make it.",
                "Delete it yourself, or take another name: eks.cluster.",
            )
        ownership.require_same_place(job, owner)
        if found is not None and found.status != "FAILED":  # it may serve other documents
            raise AccountError(
                f"{stack.name} is {stack.status}, and the cluster {found.name} is {found.status}.",
                "`diptych down` finishes the removal.",
            )
        job.view.say(f"{stack.name} died earlier ({stack.status}): it is removed, and the cluster made anew.")
        _remove_stacks(job)
        found = find(job)
    return found


def _have_system_nodes(job: EksJob) -> None:
    """Have the group for Ray's head and the operator; as many nodes as it has stay, where others use it, too."""
    there = groups.find(job, names.SYSTEM)
    network = Vpc.find(job)
    made = groups.ensure(job, STEP, config_of(job, network), [names.SYSTEM])
    group = made.get(names.SYSTEM)
    count = job.document.eks.system_nodes.count
    if group is not None and (there is None or group.desired < count):
        groups.grow(job, STEP, group, max(count, group.desired))
    for difference in (
        group_differences.of_system(job, there, Zones(job, network)) if there is not None else ()
    ):
        job.view.say(f"{job.place.cluster} differs from the document, and is used as it is: {difference}")


def _join(job: EksJob, found: EksCluster) -> None:
    if Owner.of(found.tags) is not None:
        ownership.join(job, found.arn, found.tags)
    group = groups.find(job, names.SYSTEM)
    if group is not None:
        ownership.join(job, group.arn, group.tags)


def _users(job: EksJob, found: EksCluster) -> tuple[str, ...]:
    """The other documents that use the cluster: by its tags, and by node groups that they have in it."""
    of_groups = {group.tags.get(names.SERVICE_LABEL, "") for group in groups.ours(job)}
    named = {*ownership.others(job, found.tags), *of_groups} - {"", job.document.name}
    return tuple(sorted(named))


def _leave_foreign(job: EksJob, found: EksCluster, cluster: Cluster | None) -> str:
    """On somebody else's cluster only the system nodes and device plugins are ours; they go with the last document."""
    group = groups.find(job, names.SYSTEM)
    if group is not None and ownership.is_ours(job, group.tags):
        using = ownership.others(job, group.tags)
        if using:
            ownership.leave(job, group.arn)
        else:
            _clear_nodes(job, found, group, cluster)
            # They cost: nothing that may be refused inside the cluster comes before, and its tags last until they end.
            stacks.begin_removal(job, STEP, groups.stack_name(job, names.SYSTEM))
            if cluster is not None:
                plugins_of_others.remove_ours(job, cluster, group.tags, STEP)
            groups.remove(job, STEP, names.SYSTEM)
    return f"{job.place.cluster} was not made by Diptych: it is left as it is"


def _clear_nodes(job: EksJob, found: EksCluster, group: NodeGroup, cluster: Cluster | None) -> None:
    """Have nothing of anybody's on the nodes of a group that is to go."""
    if not found.runs or group.status == "DELETING":
        return
    there = _require_look(found, cluster)
    nodes = draining.node_names(there, group.name)
    workloads.refuse(workloads.on_nodes(there, nodes), f"Removing the nodes of {group.name}")
    for node in nodes:
        draining.drain(job, there, STEP, node)


def _refuse_own_nodes(job: EksJob) -> None:
    """The document's own nodes go first: with pods on them that end in order."""
    own = [group.name for group in groups.ours(job) if ownership.is_of_document(job, group.tags)]
    if own and not job.dry_run:
        raise ClusterError(
            f"{job.document.name} still has nodes in {job.place.cluster}: {', '.join(own)}.",
            "Take them down first: diptych down --step nodes, or diptych down for all of it.",
        )


def _refuse_foreign(job: EksJob, found: EksCluster, cluster: Cluster | None) -> None:
    if not found.runs:
        return
    there = _require_look(found, cluster)
    foreign = [group.name for group in groups.all_of(job) if not ownership.is_ours(job, group.tags)]
    found_in = [workloads.Foreign(f"node group {name}", "not ours") for name in foreign]
    workloads.refuse([*found_in, *workloads.in_cluster(there, job.document.name)], f"Removing {found.name}")
    for budget in workloads.blocking_budgets(there):
        job.view.say(f"The disruption budget {budget} lets no pod go: the nodes go without asking it.")


def _require_look(found: EksCluster, cluster: Cluster | None) -> Cluster:
    if cluster is None:
        raise ClusterError(
            f"{found.name} can't be looked into, so nobody knows whether somebody else's work is in it.",
            "Run `down` from where its API can be reached (eks.public_access_cidrs).",
        )
    return cluster


def _delete(job: EksJob, found: EksCluster) -> None:
    """Have eksctl delete it. What it can't do is seen by looking, not by its exit code."""
    if found.status == "DELETING":
        stacks.settle(job, STEP, stack_name(job), DELETION_S)
    else:
        eksctl.run(
            job,
            STEP,
            [
                *("delete", "cluster", f"--name={found.name}", f"--region={job.place.region}"),
                *("--wait", "--disable-nodegroup-eviction"),
            ],
            prefix=f"eksctl-{found.name}-",
            usual_s=DELETION_S,
        )
    control_plane.distrust_tokens(job, found)


def _remove_stacks(job: EksJob) -> None:
    """Remove the stacks that are left, the cluster's own last: it holds the network of the others."""
    left = stacks.of_cluster(job.session, job.place.cluster)
    for name in sorted(left, key=lambda name: name == stack_name(job)):
        if ownership.is_ours(job, left[name].tags):
            stacks.remove(job, STEP, name)


def _owner_of_stack(job: EksJob) -> Owner | None:
    """What the cluster's stack says, where the cluster itself has gone already."""
    stack = stacks.find(job.session, stack_name(job))
    return Owner.of(stack.tags) if stack else None
