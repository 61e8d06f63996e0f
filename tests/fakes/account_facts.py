"""What an AWS account and a cluster with nothing wrong look like to the rules, and the one thing wrong per code."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import Any

from diptych.check import Account, ClusterFacts
from diptych.check.account import (
    ExistingCluster,
    Identity,
    Image,
    Interface,
    Offer,
    Program,
    Quota,
    Release,
    Reservation,
    SecurityGroup,
    Subnet,
    Unasked,
)
from diptych.check.cluster import Node, Operator, Right
from diptych.render.image import TESTED_IMAGE

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
ZONES = ("us-east-2a", "us-east-2b", "us-east-2c")
G_QUOTA = "L-DB2E81BA"
GIB = 2**30

IDENTITY = Identity("111122223333", "arn:aws:iam::111122223333:user/ada", profile="dev")
QUOTA = Quota("ec2", G_QUOTA, "Running On-Demand G and VT instances", 128, 0)
OFFERS = {
    "g6.8xlarge": Offer("g6.8xlarge", frozenset(ZONES[:2]), 32, 1),
    "g6e.8xlarge": Offer("g6e.8xlarge", frozenset(ZONES[2:]), 32, 1),
    "m7i.xlarge": Offer("m7i.xlarge", frozenset(ZONES), 4, 0),
}
RESERVATION = Reservation("cr-0123456789abcdef0", "g6.8xlarge", "us-east-2b", "active", 2, 2)
OPEN = SecurityGroup("sg-0a1", "eks-cluster-sg-llm", from_itself=True, to_itself=True)
HALF_OPEN = replace(OPEN, to_itself=False)
OTHER = SecurityGroup("sg-0b2", "eks-cluster-sg-other", from_itself=True, to_itself=True)
INTERFACES = (
    Interface("eni-1", "i-1", "us-east-2a", ("sg-0a1",)),
    Interface("eni-2", "i-2", "us-east-2a", ("sg-0a1",)),
)
CLUSTER = ExistingCluster(
    "diptych",
    "arn:aws:eks:us-east-2:111122223333:cluster/diptych",
    "1.35",
    "ACTIVE",
    security_group="sg-0a1",
    subnets=(Subnet("subnet-1", "us-east-2a", 8000), Subnet("subnet-2", "us-east-2b", 8000)),
    groups=(OPEN,),
    interfaces=INTERFACES,
)
ACCOUNT = Account(
    region="us-east-2",
    asked_at=NOW,
    identity=IDENTITY,
    configured_region="us-east-2",
    expected="111122223333",
    denied=(),
    quotas=(QUOTA,),
    zones=ZONES,
    offers=OFFERS,
    reservations={RESERVATION.id: (RESERVATION,)},
    releases=(
        Release("1.33", "extended", date(2026, 7, 29), date(2027, 7, 29)),
        Release("1.34", "standard", date(2026, 12, 2), date(2027, 12, 2)),
        Release("1.35", "standard", date(2027, 3, 27), date(2028, 3, 27)),
        Release("1.36", "standard", date(2027, 8, 1), date(2028, 8, 1)),
    ),
    image=Image(TESTED_IMAGE, True, size_bytes=12 * GIB),
    programs=(Program("helm", "4.1.4"), Program("eksctl", "0.230.0")),
    clock_ahead_s=0.4,
)

GPU_NODE = Node(
    "gpu-1",
    {
        "pool": "gpu",
        "topology.kubernetes.io/zone": "us-east-2a",
        "node.kubernetes.io/instance-type": "g6.8xlarge",
    },
    gpus=1,
    efa=1,
    cpu_millis=31850,
    memory_bytes=118 * GIB,
    taints=({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},),
)
ON_CLUSTER = ClusterFacts(
    context="lab",
    server="https://lab:6443",
    version="1.35",
    has_namespace=True,
    nodes=(GPU_NODE, replace(GPU_NODE, name="gpu-2"), Node("plain", cpu_millis=3920, memory_bytes=14 * GIB)),
    operators=(Operator("kuberay-system", "1.7.0", ours=True),),
    image=Image(TESTED_IMAGE, True),
    programs=(Program("helm", "4.1.4"),),
)


def account(**changes: Any) -> dict[str, Account]:
    """Facts of an account in which only these things are otherwise."""
    return {"account": replace(ACCOUNT, **changes)}


def cluster(**changes: Any) -> dict[str, ClusterFacts]:
    """Facts of a cluster in which only these things are otherwise."""
    return {"cluster": replace(ON_CLUSTER, **changes)}


def nodes(**changes: Any) -> dict[str, ClusterFacts]:
    """Facts of a cluster in which every GPU node is otherwise in these things."""
    return cluster(nodes=tuple(replace(each, **changes) for each in ON_CLUSTER.nodes or () if each.gpus))


def existing(**changes: Any) -> dict[str, Account]:
    """Facts of an account that has the cluster already, in which these things are otherwise."""
    return account(cluster=replace(CLUSTER, **changes))


_REFUSED = Unasked("the account", "the AWS sign-in (SSO) has expired", "run aws sso login --profile dev")

WRONG: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        "N101": account(identity=None, refused=_REFUSED),
        "N102": account(identity=replace(IDENTITY, expires=NOW + timedelta(minutes=20))),
        "N103": account(expected="444455556666"),
        "N104": account(configured_region="eu-west-1"),
        "N105": account(denied=("iam:CreateRole", "ec2:CreateVpc")),
        "N106": account(quotas=(replace(QUOTA, limit=64, used=32),)),
        "N110": account(),
        "N111": account(),
        "N112": account(),
        "N113": account(offers={**OFFERS, "g6.8xlarge": replace(OFFERS["g6.8xlarge"], efa_interfaces=0)}),
        "N114": account(),
        "N115": account(
            reservations={RESERVATION.id: (replace(RESERVATION, ends=NOW + timedelta(hours=5)),)}
        ),
        "N120": account(releases=(ACCOUNT.releases or ())[:3]),
        "N121": account(
            releases=(*(ACCOUNT.releases or ())[:3], Release("1.36", "standard", date(2026, 12, 20)))
        ),
        "N130": account(
            image=Image("registry.example.com/ray:1", False, "registry.example.com has no ray with 1")
        ),
        "N140": existing(status="DELETING"),
        "N141": existing(groups=(HALF_OPEN,)),
        "N142": existing(subnets=CLUSTER.subnets[:1]),
        "N143": existing(
            groups=(OPEN, OTHER), interfaces=(INTERFACES[0], replace(INTERFACES[1], groups=("sg-0b2",)))
        ),
        "N150": account(programs=(Program("eksctl", None, "The program eksctl is not in PATH.", "get one"),)),
        "N160": account(clock_ahead_s=-190.0),
        "N190": account(
            unasked=(Unasked("the quotas", "AWS does not let you servicequotas:GetServiceQuota"),)
        ),
        "N201": {"cluster": ClusterFacts("lab", refused=Unasked("the cluster", "lab does not answer"))},
        "N202": cluster(version="1.24"),
        "N203": cluster(
            denied=(Right("create", "rayservices", "ray.io"), Right("list", "nodes", everywhere=True))
        ),
        "N204": nodes(gpus_used=1),
        "N205": nodes(efa=0),
        "N206": nodes(efa=2),
        "N207": nodes(),
        "N208": nodes(),
        "N209": cluster(
            nodes=(
                GPU_NODE,
                replace(
                    GPU_NODE,
                    name="gpu-2",
                    labels={**GPU_NODE.labels, "topology.kubernetes.io/zone": "us-east-2b"},
                ),
                replace(GPU_NODE, name="gpu-3"),
            )
        ),
        "N210": cluster(operators=(Operator("ray", "1.7.0", watches=("llm",)),)),
    }
)
"""By code, what an example is told beside its text."""

RIGHT: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("N101", "N102", "N103", "N105", "N106", "N113", "N115", "N130", "N150", "N160", "N190"),
            account(),
        ),
        **dict.fromkeys(("N140", "N141", "N143"), existing()),
        **dict.fromkeys(("N201", "N202", "N203", "N204", "N205", "N206"), cluster()),
    }
)
"""By code, what is told beside the fixed text, where the fix lies outside the document; else the same as before."""
