"""What is left after `down`: removed where it is ours by tag, else told: what, why, its cost, and the command."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from diptych.eks import costs, inventory, stacks
from diptych.eks.inventory import Inventory, Resource
from diptych.eks.job import EksJob
from diptych.eks.prices import Book, Price
from diptych.errors import AccountError, LeftError
from diptych.kube.waiting import Seen
from diptych.render import names

STAGE = "leftovers"

_USUAL_S = 200.0


@dataclass(frozen=True)
class Leftover:
    """One thing that is left.

    Args:
        price: per hour.
        command: that removes it.
    """

    resource: Resource
    why: str
    price: Price
    command: str


@dataclass(frozen=True)
class Kind:
    """How one kind of resource is removed.

    Args:
        command: for the user, after `aws`; `{id}` and the resource's details stand in it.
        remove: service, operation and the argument that takes the id (or a detail, after a colon); None: never by us.
        state: only in this state; empty: in any.
    """

    command: str
    remove: tuple[str, str, str] | None = None
    state: str = ""


# In the order in which they can go: what holds others comes first.
_KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "load balancer": Kind(
            "elbv2 delete-load-balancer --load-balancer-arn {id}",
            ("elbv2", "delete_load_balancer", "LoadBalancerArn"),
        ),
        "instance": Kind("ec2 terminate-instances --instance-ids {id}"),
        "node group": Kind("eks delete-nodegroup --cluster-name {cluster} --nodegroup-name {id}"),
        "cluster": Kind("eks delete-cluster --name {id}"),
        "NAT gateway": Kind(
            "ec2 delete-nat-gateway --nat-gateway-id {id}",
            ("ec2", "delete_nat_gateway", "NatGatewayId"),
            "available",
        ),
        "network interface": Kind(
            "ec2 delete-network-interface --network-interface-id {id}",
            ("ec2", "delete_network_interface", "NetworkInterfaceId"),
            "available",
        ),
        "volume": Kind(
            "ec2 delete-volume --volume-id {id}", ("ec2", "delete_volume", "VolumeId"), "available"
        ),
        "address": Kind(
            "ec2 release-address --allocation-id {id}", ("ec2", "release_address", "AllocationId")
        ),
        "placement group": Kind(
            "ec2 delete-placement-group --group-name {name}",
            ("ec2", "delete_placement_group", "GroupName:name"),
            "available",
        ),
        "launch template": Kind(
            "ec2 delete-launch-template --launch-template-id {id}",
            ("ec2", "delete_launch_template", "LaunchTemplateId"),
        ),
        "security group": Kind(
            "ec2 delete-security-group --group-id {id}", ("ec2", "delete_security_group", "GroupId")
        ),
        "VPC": Kind("ec2 delete-vpc --vpc-id {id}"),
        "OIDC provider": Kind(
            "iam delete-open-id-connect-provider --open-id-connect-provider-arn {id}",
            ("iam", "delete_open_id_connect_provider", "OpenIDConnectProviderArn"),
        ),
        "stack": Kind("cloudformation delete-stack --stack-name {id}"),
    }
)


def clear(job: EksJob, *, document_only: bool = False) -> str:
    """Prove that nothing is left; what is ours and left is removed, as far as that is safe.

    Args:
        document_only: others use the cluster; only what was made for this document must be gone.

    Raises:
        LeftError: something is left; the message is the table of it.
    """
    left = inventory.take(job, document_only=document_only)
    if job.dry_run:
        for resource in left.resources:
            job.view.say(f"would look for what is left of {resource}")
        return "would be looked for"
    _remove_all(job, left)

    def look() -> Seen:
        found = inventory.take(job, document_only=document_only)
        going = [each for each in found.resources if _is_going(each)]
        return Seen(done=not going, blocker=f"{len(going)} things are on their way out: {going[:1]}")

    if left:
        job.wait(STAGE, look, _USUAL_S)
        left = inventory.take(job, document_only=document_only)
    if left or left.unasked:
        raise LeftError(table(explain(job, left), left.unasked), _hint(left))
    return "an inventory by tag finds nothing"


def explain(job: EksJob, left: Inventory) -> tuple[Leftover, ...]:
    """Why each resource is still there, what it costs, and the command that removes it; the dearest first."""
    book = Book(job.place.region, job.session)
    found = [
        Leftover(each, _why(each), costs.price_of(each, book), _command(job, each)) for each in left.resources
    ]
    return tuple(sorted(found, key=lambda each: -each.price.usd_per_hour))


def table(found: tuple[Leftover, ...], unasked: tuple[str, ...] = ()) -> str:
    """The leftovers as text: a row for each, and the sum."""
    lines = []
    if found:
        whole = Price(tuple(row for each in found for row in each.price.rows))
        least = "" if whole.is_whole and not unasked else "at least "
        source = f" ({', '.join(whole.sources)})" if whole.sources else ""
        lines.append(
            f"{len(found)} things are left; they cost {least}{whole.usd_per_hour:.4g} USD per hour{source}:"
        )
    for each in found:
        lines += [f"  {each.resource}  {_usd(each.price)}  {each.why}", f"    {each.command}"]
    lines += [f"Not looked for, since that may not be asked: {why}" for why in unasked]
    return "\n".join(lines)


def _usd(price: Price) -> str:
    """The price of one row of the table; a question mark where none is known."""
    if not price.is_whole and not price.usd_per_hour:
        return "?"
    return f"{'' if price.is_whole else 'at least '}{price.usd_per_hour:.4g} USD/h"


def _remove_all(job: EksJob, left: Inventory) -> None:
    """Remove what may be: what carries our tag, and free interfaces of the cluster's network plugin."""
    for name, kind in _KINDS.items():
        for resource in left.resources:
            if resource.kind == name and kind.remove and _may_go(resource, kind):
                _remove(job, resource, *kind.remove)
    for resource in left.resources:
        if resource.kind == "stack" and resource.by == "diptych" and resource.state != "DELETE_IN_PROGRESS":
            try:
                stacks.remove(job, STAGE, resource.id)
            except AccountError as error:
                job.view.say(error.message)


def _may_go(resource: Resource, kind: Kind) -> bool:
    if kind.state and resource.state != kind.state:
        return False
    if resource.by == "cluster":
        return resource.kind == "network interface" or _is_own_load_balancer(resource)
    return resource.by == "diptych"  # eksctl's tag says nothing about who had it made


def _is_own_load_balancer(resource: Resource) -> bool:
    return resource.kind == "load balancer" and names.SERVICE_LABEL in resource.tags


def _remove(job: EksJob, resource: Resource, service: str, operation: str, argument: str) -> None:
    name, _, detail = argument.partition(":")
    value = resource.details.get(detail, "") if detail else resource.id
    if service == "elbv2" and resource.details.get("version") == 1:
        service, name = "elb", "LoadBalancerName"
    job.tell("detail", STAGE, f"removing the {resource}")
    try:
        job.change(service, operation, str(resource), **{name: value})
    except AccountError as error:  # it stays, and the table says so
        job.view.say(error.message)


def _is_going(resource: Resource) -> bool:
    return resource.state.lower() in ("shutting-down", "deleting", "delete_in_progress")


def _why(resource: Resource) -> str:
    special: Mapping[str, Callable[[Resource], str]] = {
        "volume": lambda each: "it may hold somebody's data: a claim in the cluster made it",
        "load balancer": lambda each: "a Service in the cluster made it, and nobody told it to go",
        "network interface": lambda each: f"in use by {each.details.get('holder') or 'somebody'}",
        "stack": lambda each: each.details.get("reason") or f"it is {each.state}",
        "security group": lambda each: "something still carries it",
    }
    if resource.by == "cluster" and resource.kind in special:
        return special[resource.kind](resource)
    if resource.kind in ("network interface", "stack", "security group"):
        return special[resource.kind](resource)
    return f"it is {resource.state}" if resource.state else "AWS did not remove it with the rest"


def _command(job: EksJob, resource: Resource) -> str:
    kind = _KINDS.get(resource.kind)
    if kind is None:
        return f"aws resourcegroupstaggingapi get-resources (it may have gone already): {resource.id}"
    words: dict[str, Any] = {"cluster": job.place.cluster, **resource.details, "id": resource.id}
    text = kind.command.format(**words)
    if resource.details.get("version") == 1:
        text = f"elb delete-load-balancer --load-balancer-name {resource.id}"
    return f"aws {text} --region {job.place.region}"


def _hint(left: Inventory) -> str:
    if not left:
        return "Nothing was found, but not everything may be looked for: use credentials that may list it."
    return "Run the commands above, or `diptych down` again once what holds them is gone."
