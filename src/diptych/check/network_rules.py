"""N14x: the network of an EKS cluster that exists already: its subnets, and what lets EFA pass.

EFA passes only by rules that name a security group, in both directions: a rule to 0.0.0.0/0 lets TCP out, and EFA
not. Groups must be attached to the interfaces, not only be there.
"""

from collections.abc import Iterable

from diptych.check.account import ExistingCluster, SecurityGroup
from diptych.check.account_rules import account_of, with_profile
from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import Subject
from diptych.render.eksctl import needs_efa_security_group
from diptych.render.inputs import Facts
from diptych.render.layout import wants_efa, worker_groups, zone_of

_ADDRESSES_PER_NODE = 12
"""A node's own, and those that the VPC CNI sets aside for pods before any is asked for."""


@rule("N140", "error", "A cluster that is not usable now")
def cluster_is_usable(subject: Subject) -> Iterable[Complaint]:
    cluster = _cluster(subject)
    if cluster is not None and cluster.status in ("DELETING", "FAILED"):
        do = {"DELETING": "wait until it is gone, or set eks.cluster to another name"}
        yield Complaint(
            "eks.cluster",
            f"is {cluster.name}, and that cluster is {cluster.status}",
            do.get(cluster.status, "remove it with diptych down, or set eks.cluster to another name"),
        )


@rule("N141", "error", "Security groups that keep EFA out")
def efa_passes(subject: Subject) -> Iterable[Complaint]:
    account, cluster = account_of(subject), _cluster(subject)
    if account is None or cluster is None or not wants_efa(subject.document):
        return
    for who, names in _carriers(subject, cluster):
        attached = [group for group in cluster.groups if group.id in names]
        if any(group.lets_efa_pass for group in attached):
            continue
        near = max(attached, key=lambda group: group.from_itself + group.to_itself, default=None)
        yield Complaint(
            "eks.cluster",
            f"is {cluster.name}, and no security group of {who} lets EFA pass in both directions{_lacks(near)}",
            _remedy(near, account.region, with_profile(account)),
        )


@rule("N143", "error", "EFA interfaces without a security group in common")
def efa_has_common_group(subject: Subject) -> Iterable[Complaint]:
    account, cluster = account_of(subject), _cluster(subject)
    if account is None or cluster is None or not cluster.interfaces or not wants_efa(subject.document):
        return
    passing = {group.id for group in cluster.groups if group.lets_efa_pass}
    carried = [passing.intersection(each.groups) for each in cluster.interfaces]
    if all(carried) and not frozenset.intersection(*map(frozenset, carried)):
        named = ", ".join(sorted(set().union(*carried)))
        yield Complaint(
            "eks.cluster",
            f"is {cluster.name}, and its EFA interfaces carry {named}: each lets its own members pass, and none is "
            "on all of them",
            "attach one of them to every GPU node group: by Diptych, nodes that are made anew",
        )


@rule("N142", "error", "Subnets that can't hold the nodes")
def subnets_have_room(subject: Subject) -> Iterable[Complaint]:
    account, cluster = account_of(subject), _cluster(subject)
    if account is None or cluster is None or not cluster.subnets:
        return
    document = subject.document
    for group in worker_groups(document):
        zone = zone_of(document, group.nodes, Facts())
        there = [each for each in cluster.subnets if zone is None or each.zone == zone]
        zones = ", ".join(sorted({each.zone for each in cluster.subnets}))
        if not there:
            yield Complaint(
                "eks.zone",
                f"is {zone}, and the subnets of the cluster {cluster.name} are in {zones}",
                f"write one of {zones}",
            )
            continue
        needed = group.count * _ADDRESSES_PER_NODE
        most = max(each.free_addresses for each in there)
        if most < needed:
            yield Complaint(
                "eks.cluster",
                f"is {cluster.name}, whose subnets in {zone or zones} have {most} free addresses at most, and "
                f"{group.count} nodes ({group.name}) take about {needed}",
                "free some, or add a subnet to the cluster with aws eks update-cluster-config --name "
                f"{cluster.name} --resources-vpc-config subnetIds=… --region {account.region}{with_profile(account)}",
            )


def _cluster(subject: Subject) -> ExistingCluster | None:
    account = account_of(subject)
    return account.cluster if account is not None else None


def _carriers(subject: Subject, cluster: ExistingCluster) -> Iterable[tuple[str, tuple[str, ...]]]:
    """Who must let EFA pass, and by which groups: interfaces that are there, else the group that nodes will get."""
    for each in cluster.interfaces:
        yield f"{each.id} ({each.instance})", each.groups
    if not cluster.interfaces and not needs_efa_security_group(subject.document):
        yield "the cluster itself", (cluster.security_group,)


def _lacks(group: SecurityGroup | None) -> str:
    if group is None:
        return ": it has none"
    ways = [way for way, has in (("from", group.from_itself), ("to", group.to_itself)) if not has]
    return f": {group.id} has no rule {' and '.join(ways)} itself"


def _remedy(group: SecurityGroup | None, region: str, profile: str) -> str:
    if group is None:
        return "attach a security group with rules from and to itself to the node group"
    rules = f"--group-id {group.id} --ip-permissions IpProtocol=-1,UserIdGroupPairs=[{{GroupId={group.id}}}]"
    ways = (("ingress", group.from_itself), ("egress", group.to_itself))
    commands = [
        f"aws ec2 authorize-security-group-{way} {rules} --region {region}{profile}"
        for way, has in ways
        if not has
    ]
    return f"run {' and '.join(commands)}"
