"""The EKS cluster that a document names, where it exists: its subnets, and what lets EFA pass among its nodes."""

from collections.abc import Iterable, Mapping
from typing import Any

from diptych.check.account import ExistingCluster, Interface, SecurityGroup, Subnet
from diptych.check.demand import demands
from diptych.eks.aws import Session
from diptych.spec import Document

_EFA = ["efa", "efa-only"]


def find_cluster(session: Session, document: Document) -> ExistingCluster | None:
    """The cluster and its network; None where there is none of that name.

    Raises:
        AwsError: it may not be looked at.
    """
    answer = session.find("eks", "describe_cluster", name=document.cluster_name)
    if answer is None:
        return None
    cluster: Mapping[str, Any] = answer["cluster"]
    vpc = cluster.get("resourcesVpcConfig", {})
    own = vpc.get("clusterSecurityGroupId", "")
    interfaces = _interfaces(session, document)
    groups = dict.fromkeys([*([own] if own else []), *(name for each in interfaces for name in each.groups)])
    return ExistingCluster(
        name=cluster["name"],
        arn=cluster["arn"],
        version=cluster["version"],
        status=cluster["status"],
        tags=cluster.get("tags", {}),
        vpc=vpc.get("vpcId", ""),
        security_group=own,
        subnets=_subnets(session, vpc.get("subnetIds", ())),
        groups=_groups(session, groups),
        interfaces=interfaces,
    )


def _subnets(session: Session, ids: Iterable[str]) -> tuple[Subnet, ...]:
    asked = list(ids)
    if not asked:
        return ()
    found = session.pages("ec2", "describe_subnets", "Subnets", SubnetIds=asked)
    subnets = (Subnet(s["SubnetId"], s["AvailabilityZone"], s["AvailableIpAddressCount"]) for s in found)
    return tuple(sorted(subnets, key=lambda each: (each.zone, each.id)))


def _interfaces(session: Session, document: Document) -> tuple[Interface, ...]:
    """The EFA interfaces of this document's nodes."""
    groups = [each.node_group for each in demands(document)]
    ours = [
        {"Name": "tag:eks:cluster-name", "Values": [document.cluster_name]},
        {"Name": "tag:eks:nodegroup-name", "Values": groups},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    found = []
    for reservation in session.pages("ec2", "describe_instances", "Reservations", Filters=ours):
        for instance in reservation["Instances"]:
            for each in instance.get("NetworkInterfaces", ()):
                if each.get("InterfaceType") in _EFA:
                    zone = instance["Placement"]["AvailabilityZone"]
                    names = tuple(group["GroupId"] for group in each.get("Groups", ()))
                    found.append(Interface(each["NetworkInterfaceId"], instance["InstanceId"], zone, names))
    return tuple(found)


def _groups(session: Session, ids: Iterable[str]) -> tuple[SecurityGroup, ...]:
    asked = list(ids)
    if not asked:
        return ()
    found = session.pages("ec2", "describe_security_groups", "SecurityGroups", GroupIds=asked)
    return tuple(
        SecurityGroup(
            id=each["GroupId"],
            name=each.get("GroupName", ""),
            from_itself=_names_itself(each["GroupId"], each.get("IpPermissions", ())),
            to_itself=_names_itself(each["GroupId"], each.get("IpPermissionsEgress", ())),
        )
        for each in found
    )


def _names_itself(group: str, rules: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a rule for all protocols names the group's own id; one by addresses is nothing to EFA."""
    return any(
        rule.get("IpProtocol") == "-1"
        and any(pair.get("GroupId") == group for pair in rule.get("UserIdGroupPairs", ()))
        for rule in rules
    )
