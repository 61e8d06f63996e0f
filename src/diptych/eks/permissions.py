"""What `up` and `down` ask of AWS, by step, and IAM's own word on whether the caller may."""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from diptych.check.account import Identity
from diptych.eks.aws import AwsError, Session

ACTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cluster": (
            "cloudformation:CreateStack",
            "cloudformation:DescribeStackEvents",
            "cloudformation:DescribeStacks",
            "ec2:AllocateAddress",
            "ec2:AuthorizeSecurityGroupEgress",
            "ec2:AuthorizeSecurityGroupIngress",
            "ec2:CreateNatGateway",
            "ec2:CreateSecurityGroup",
            "ec2:CreateSubnet",
            "ec2:CreateTags",
            "ec2:CreateVpc",
            "ec2:DescribeAvailabilityZones",
            "ec2:DescribeSecurityGroups",
            "ec2:DescribeSubnets",
            "eks:CreateAddon",
            "eks:CreateCluster",
            "eks:DescribeCluster",
            "eks:DescribeClusterVersions",
            "eks:ListAddons",
            "eks:ListPodIdentityAssociations",
            "eks:TagResource",
            "iam:AttachRolePolicy",
            "iam:CreateOpenIDConnectProvider",
            "iam:CreateRole",
            "iam:ListOpenIDConnectProviders",
            "iam:PassRole",
        ),
        "nodes": (
            "autoscaling:TerminateInstanceInAutoScalingGroup",
            "ec2:CreateLaunchTemplate",
            "ec2:CreatePlacementGroup",
            "ec2:DescribeCapacityReservations",
            "ec2:DescribeInstanceTypeOfferings",
            "ec2:DescribeInstanceTypes",
            "ec2:DescribeInstances",
            "ec2:RunInstances",
            "eks:CreateNodegroup",
            "eks:DescribeNodegroup",
            "eks:ListNodegroups",
            "eks:UpdateNodegroupConfig",
        ),
        "down": (
            "cloudformation:DeleteStack",
            "cloudformation:ListStackResources",
            "ec2:DeleteLaunchTemplate",
            "ec2:DeleteNatGateway",
            "ec2:DeleteNetworkInterface",
            "ec2:DeletePlacementGroup",
            "ec2:DeleteSecurityGroup",
            "ec2:DeleteVolume",
            "ec2:DeleteVpc",
            "ec2:DescribeNetworkInterfaces",
            "ec2:ReleaseAddress",
            "eks:DeleteCluster",
            "eks:DeleteNodegroup",
            "eks:DeletePodIdentityAssociation",
            "eks:UntagResource",
            "elasticloadbalancing:DeleteLoadBalancer",
            "elasticloadbalancing:DescribeLoadBalancers",
            "elasticloadbalancing:DescribeTags",
            "iam:DeleteOpenIDConnectProvider",
            "iam:DeleteRole",
            "iam:ListOpenIDConnectProviderTags",
            "tag:GetResources",
        ),
    }
)
"""The actions without which `up` or `down` ends early: our own, and the first ones of what eksctl makes by stacks."""

_ASSUMED = re.compile(r"arn:(?P<partition>[\w-]+):sts::(?P<account>\d+):assumed-role/(?P<role>[^/]+)/.*")
_MOST_AT_ONCE = 50


def denied(session: Session, identity: Identity, actions: Iterable[str] | None = None) -> tuple[str, ...]:
    """The actions that the caller's policies deny, by IAM's simulation over all resources.

    A simulation knows nothing of the organisation's limits on resources, and says no where a policy allows some
    resources only.

    Raises:
        AwsError: the caller may not simulate, or is nobody whose policies could be.
    """
    if identity.arn.endswith(":root"):
        return ()
    asked = [*actions] if actions is not None else [each for step in ACTIONS.values() for each in step]
    source = principal(session, identity)
    found: list[str] = []
    for start in range(0, len(asked), _MOST_AT_ONCE):
        results = session.pages(
            "iam",
            "simulate_principal_policy",
            "EvaluationResults",
            PolicySourceArn=source,
            ActionNames=asked[start : start + _MOST_AT_ONCE],
        )
        found += [each["EvalActionName"] for each in results if each["EvalDecision"] != "allowed"]
    return tuple(found)


def principal(session: Session, identity: Identity) -> str:
    """The ARN of the user or role whose policies hold for the caller.

    The session of a role names the role without its path, which IAM is asked for: SSO's roles have one.

    Raises:
        AwsError: the role may not be looked at, or it is a federated user.
    """
    assumed = _ASSUMED.fullmatch(identity.arn)
    if assumed:
        role = session.call("iam", "get_role", RoleName=assumed["role"])["Role"]
        return str(role["Arn"])
    if ":federated-user/" in identity.arn:
        message = f"{identity.arn} is a federated user, whose policies can't be simulated"
        raise AwsError(message, "", "other", action="iam:SimulatePrincipalPolicy")
    return identity.arn
