"""All that is there of a cluster, by tag: asked of each service itself, since the tagging API lags behind.

A resource belongs to a cluster by one of these, see `Resource.by`:

- our own tag, which eksctl puts on all that it makes for us;
- eksctl's tag with the cluster's name;
- a tag that Kubernetes or EKS puts on what it makes for a cluster; it does not say for whom.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from diptych.eks import stacks
from diptych.eks.aws import AwsError
from diptych.eks.job import EksJob
from diptych.render import names
from diptych.render.eksctl import CLUSTER_TAG

By = Literal["diptych", "eksctl", "cluster"]

_EKSCTL_TAG = "alpha.eksctl.io/cluster-name"
_NAME_TAGS = (
    "eks:cluster-name",
    "aws:eks:cluster-name",
    "cluster.k8s.amazonaws.com/name",
    "elbv2.k8s.aws/cluster",
)
_OVER = frozenset({"terminated", "deleted", "DELETE_COMPLETE"})
_BATCH = 20
# ARNs that the tagging API tells of and that need no row: asked for directly, or gone with what holds them.
_KNOWN = ("ec2", "eks", "cloudformation", "elasticloadbalancing", "autoscaling", "iam")


@dataclass(frozen=True)
class Resource:
    """One thing in the account.

    Args:
        kind: in words: "volume".
        id: as AWS's commands take it.
        state: AWS's word; empty where it has none.
        by: whose tag it carries.
        details: what its price and its removal depend on.
        made_at: where AWS says it.
    """

    kind: str
    id: str
    state: str
    by: By
    tags: Mapping[str, str]
    details: Mapping[str, Any] = field(default_factory=dict)
    made_at: datetime | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"

    @property
    def is_made_for_us(self) -> bool:
        """Its tags say so: our own, or that of a document on what Kubernetes made for its service."""
        return self.by == "diptych" or names.SERVICE_LABEL in self.tags


@dataclass(frozen=True)
class Inventory:
    """What is there, and what could not be asked, with the reason."""

    resources: tuple[Resource, ...] = ()
    unasked: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.resources)

    @property
    def of_ours(self) -> tuple[Resource, ...]:
        """Without what is somebody else's: on a cluster that we did not make, all that does not say it was made for us.

        Where the cluster has gone, nobody knows whose it was.
        """
        if any(each.kind == "cluster" and each.by == "diptych" for each in self.resources):
            return self.resources
        return tuple(each for each in self.resources if each.is_made_for_us)


def take(job: EksJob, *, document_only: bool = False, paid_only: bool = False) -> Inventory:
    """Everything that is there of the job's cluster.

    Args:
        document_only: only what was made for this document alone, where others go on using the cluster.
        paid_only: only what costs something by itself; fewer services are asked.
    """
    found: dict[tuple[str, str], Resource] = {}
    unasked = []
    for look in _PAID if paid_only else (*_PAID, *_FREE):
        try:
            for resource in look(job):
                if resource.state not in _OVER:
                    found.setdefault((resource.kind, resource.id), resource)
        except AwsError as error:
            if error.kind not in ("denied", "other"):
                raise
            unasked.append(error.message)
    kept = list(found.values())
    if document_only:
        kept = [each for each in kept if each.tags.get(names.SERVICE_LABEL) == job.document.name]
    return Inventory(tuple(kept), tuple(dict.fromkeys(unasked)))


def whose(tags: Mapping[str, str], cluster: str) -> By | None:
    """Whose tag says that a resource is of this cluster; None where none does."""
    if tags.get(CLUSTER_TAG) == cluster:
        return "diptych"
    if tags.get(_EKSCTL_TAG) == cluster:
        return "eksctl"
    if f"kubernetes.io/cluster/{cluster}" in tags or cluster in {tags.get(name) for name in _NAME_TAGS}:
        return "cluster"
    return None


def _cluster(job: EksJob) -> Iterator[Resource]:
    name = job.place.cluster
    answer = job.session.find("eks", "describe_cluster", name=name)
    if answer is not None:
        about = answer["cluster"]
        yield from _one(
            job,
            "cluster",
            name,
            about["status"],
            about.get("tags"),
            made_at=about.get("createdAt"),
            version=about.get("version", ""),
        )


def _node_groups(job: EksJob) -> Iterator[Resource]:
    name = job.place.cluster
    if job.session.find("eks", "describe_cluster", name=name) is None:
        return
    for group in job.session.pages("eks", "list_nodegroups", "nodegroups", clusterName=name):
        told = job.session.find("eks", "describe_nodegroup", clusterName=name, nodegroupName=group)
        if told:
            found = told["nodegroup"]
            yield from _one(job, "node group", group, found["status"], found.get("tags"), cluster=name)


def _stacks(job: EksJob) -> Iterator[Resource]:
    for stack in stacks.of_cluster(job.session, job.place.cluster).values():
        yield from _one(job, "stack", stack.name, stack.status, stack.tags, reason=stack.reason)


def _instances(job: EksJob) -> Iterator[Resource]:
    for reservation in _ec2(job, "describe_instances", "Reservations"):
        for each in reservation["Instances"]:
            yield from _one(
                job,
                "instance",
                each["InstanceId"],
                each["State"]["Name"],
                _tags(each),
                made_at=each.get("LaunchTime"),
                instance_type=each.get("InstanceType", ""),
                zone=each.get("Placement", {}).get("AvailabilityZone", ""),
                market=each.get("InstanceLifecycle", "on-demand"),
            )


def _volumes(job: EksJob) -> Iterator[Resource]:
    for each in _ec2(job, "describe_volumes", "Volumes"):
        yield from _one(
            job,
            "volume",
            each["VolumeId"],
            each["State"],
            _tags(each),
            made_at=each.get("CreateTime"),
            gib=each.get("Size", 0),
            volume_type=each.get("VolumeType", "gp3"),
            mibps=each.get("Throughput", 0),
            iops=each.get("Iops", 0),
        )


def _interfaces(job: EksJob) -> Iterator[Resource]:
    for each in _ec2(job, "describe_network_interfaces", "NetworkInterfaces"):
        tags = _pairs(each.get("TagSet", ()))
        holder = (each.get("Attachment") or {}).get("InstanceId", "")
        yield from _one(
            job, "network interface", each["NetworkInterfaceId"], each.get("Status", ""), tags, holder=holder
        )


def _gateways(job: EksJob) -> Iterator[Resource]:
    for each in _ec2(job, "describe_nat_gateways", "NatGateways", parameter="Filter"):
        yield from _one(
            job,
            "NAT gateway",
            each["NatGatewayId"],
            each["State"],
            _tags(each),
            made_at=each.get("CreateTime"),
        )


def _simple(kind: str, operation: str, key: str, id_key: str) -> Callable[[EksJob], Iterator[Resource]]:
    """Resources of EC2 that have nothing but an id, tags and perhaps a state."""

    def look(job: EksJob) -> Iterator[Resource]:
        for each in _ec2(job, operation, key):
            name = each.get("GroupName") or each.get("LaunchTemplateName") or ""
            yield from _one(job, kind, each[id_key], str(each.get("State", "")), _tags(each), name=name)

    return look


def _load_balancers(job: EksJob) -> Iterator[Resource]:
    found = {
        each["LoadBalancerArn"]: each
        for each in job.session.pages("elbv2", "describe_load_balancers", "LoadBalancers")
    }
    for arns in _batches(found):
        for told in job.session.call("elbv2", "describe_tags", ResourceArns=arns)["TagDescriptions"]:
            each = found[told["ResourceArn"]]
            state = (each.get("State") or {}).get("Code", "")
            yield from _one(
                job,
                "load balancer",
                told["ResourceArn"],
                state,
                _pairs(told["Tags"]),
                made_at=each.get("CreatedTime"),
                version=2,
                type=each.get("Type", "network"),
            )


def _classic_load_balancers(job: EksJob) -> Iterator[Resource]:
    found = {
        each["LoadBalancerName"]: each
        for each in job.session.pages("elb", "describe_load_balancers", "LoadBalancerDescriptions")
    }
    for batch in _batches(found):
        for told in job.session.call("elb", "describe_tags", LoadBalancerNames=batch)["TagDescriptions"]:
            name = told["LoadBalancerName"]
            yield from _one(
                job,
                "load balancer",
                name,
                "",
                _pairs(told["Tags"]),
                made_at=found[name].get("CreatedTime"),
                version=1,
                type="classic",
            )


def _identity_providers(job: EksJob) -> Iterator[Resource]:
    """What IAM trusts the cluster's tokens by; eksctl makes it outside of any stack."""
    listed = job.session.call("iam", "list_open_id_connect_providers")["OpenIDConnectProviderList"]
    for each in listed:
        if "oidc.eks." not in each["Arn"]:
            continue
        told = job.session.find(
            "iam", "list_open_id_connect_provider_tags", OpenIDConnectProviderArn=each["Arn"]
        )
        yield from _one(job, "OIDC provider", each["Arn"], "", _pairs((told or {}).get("Tags", ())))


def _others(job: EksJob) -> Iterator[Resource]:
    """Whatever else carries our tag, of services that nobody is asked above. It may have gone a while ago."""
    filters = [{"Key": CLUSTER_TAG, "Values": [job.place.cluster]}]
    listed = job.session.pages(
        "resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", TagFilters=filters
    )
    for each in listed:
        service = each["ResourceARN"].split(":")[2]
        if service not in _KNOWN:
            yield from _one(job, service, each["ResourceARN"], "", _pairs(each["Tags"]))


_PAID: tuple[Callable[[EksJob], Iterator[Resource]], ...] = (
    _cluster,
    _instances,
    _load_balancers,
    _classic_load_balancers,
    _gateways,
    _volumes,
    _simple("address", "describe_addresses", "Addresses", "AllocationId"),
)
_FREE: tuple[Callable[[EksJob], Iterator[Resource]], ...] = (
    _node_groups,
    _interfaces,
    _simple("placement group", "describe_placement_groups", "PlacementGroups", "GroupId"),
    _simple("launch template", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
    _simple("security group", "describe_security_groups", "SecurityGroups", "GroupId"),
    _simple("VPC", "describe_vpcs", "Vpcs", "VpcId"),
    _identity_providers,
    _stacks,
    _others,
)


def _ec2(job: EksJob, operation: str, key: str, parameter: str = "Filters") -> Iterator[Any]:
    """What EC2 lists of all that has one of the tags that may name the cluster."""
    keys = [CLUSTER_TAG, _EKSCTL_TAG, f"kubernetes.io/cluster/{job.place.cluster}", *_NAME_TAGS]
    arguments: dict[str, Any] = {parameter: [{"Name": "tag-key", "Values": keys}]}
    return job.session.pages("ec2", operation, key, **arguments)


def _one(
    job: EksJob,
    kind: str,
    identity: str,
    state: str,
    tags: Mapping[str, str] | None,
    made_at: datetime | None = None,
    **details: Any,
) -> Iterator[Resource]:
    by = whose(tags or {}, job.place.cluster)
    if by is not None:
        yield Resource(kind, identity, state, by, tags or {}, details, made_at)


def _tags(answer: Mapping[str, Any]) -> dict[str, str]:
    return _pairs(answer.get("Tags", ()))


def _pairs(tags: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag.get("Value", "") for tag in tags}


def _batches(items: Iterable[str]) -> Iterator[list[str]]:
    rest = list(items)
    for start in range(0, len(rest), _BATCH):
        yield rest[start : start + _BATCH]
