"""The EKS cluster that a document stands for, as eksctl's ClusterConfig (v1alpha5, strict: eksctl 0.230.0).

What is not written here is EKS's own default, which does what an expert would ask for: Kubernetes' data is encrypted
with a key of AWS's (`secretsEncryption` is for a key of one's own), the nodes' role can pull images and no more.
"""

import json
from collections.abc import Sequence
from typing import Any

from diptych.catalog.engines import minor
from diptych.catalog.regions import ZONE_LETTERS
from diptych.render import names
from diptych.render.inputs import Facts
from diptych.render.layout import wants_efa, worker_groups, zone_of
from diptych.render.node_groups import gpu_group, system_group, zone
from diptych.spec import Document, is_bucket

VPC_CIDR = "192.168.0.0/16"
"""Addresses of the VPC, eksctl's default; written down since NetworkPolicies speak of it."""

POD_IDENTITY_AGENT = "169.254.170.23/32"
"""Where pods get the credentials of an EKS Pod Identity, port 80."""

ACCOUNT_TAG = f"{names.DOMAIN}/account"
REGION_TAG = f"{names.DOMAIN}/region"
CLUSTER_TAG = f"{names.DOMAIN}/cluster"
"""On all that is made for a cluster: its name. What carries it is Diptych's to change and to delete."""
DOCUMENT_TAG = f"{names.DOMAIN}/document/"
"""With a document's name: that document uses the cluster."""

_EFA_IN_CLUSTER_GROUP_SINCE = (1, 33)


def cluster_config(
    document: Document,
    facts: Facts,
    security_groups: Sequence[str] = (),
    *,
    zones: Sequence[str] = (),
    account: str | None = None,
) -> dict[str, Any]:
    """The cluster with its node groups, as `eksctl create cluster -f` and `create nodegroup -f` take it.

    Args:
        security_groups: ids of further security groups for the GPU nodes; see `efa_security_group`.
        zones: that the cluster gets subnets in as well, so that nodes can move there.
        account: the AWS account, where it is known.
    """
    groups = worker_groups(document)
    return {
        "apiVersion": "eksctl.io/v1alpha5",
        "kind": "ClusterConfig",
        "metadata": {
            "name": document.cluster_name,
            "region": document.eks.region,
            "version": document.eks.kubernetes_version,
            "tags": cluster_tags(document, account),
        },
        "availabilityZones": list(cluster_zones(document, facts, zones)),
        "vpc": {"cidr": VPC_CIDR, "nat": {"gateway": "Single"}, **_api_access(document, facts)},
        "iam": {"withOIDC": True, **_model_access(document)},
        "addonsConfig": {"disableDefaultAddons": True},
        "addons": _addons(document),
        "managedNodeGroups": [
            system_group(document, facts, groups[0]),
            *(gpu_group(document, facts, group, security_groups) for group in groups),
        ],
    }


def cluster_tags(document: Document, account: str | None = None) -> dict[str, str]:
    """The tags of all that is made for a cluster: the document's own, and ours, which nobody else may set."""
    own = {key: value for key, value in document.eks.tags.items() if not key.startswith(f"{names.DOMAIN}/")}
    return {**own, **ownership_tags(document, account)}


def ownership_tags(document: Document, account: str | None = None) -> dict[str, str]:
    """Tags of all that is made for a cluster: where it was meant to be, and who uses it."""
    where = {ACCOUNT_TAG: account} if account else {}
    return {
        **where,
        REGION_TAG: document.eks.region,
        CLUSTER_TAG: document.cluster_name,
        f"{DOCUMENT_TAG}{document.name}": document.kubernetes.namespace,
    }


def cluster_zones(document: Document, facts: Facts, further: Sequence[str] = ()) -> tuple[str, ...]:
    """The zones of the cluster's subnets: those of its nodes, `further` ones, and a second one, which EKS demands.

    The second is the next letter that every account has in the region. It holds no nodes.
    """
    own = (zone(document, facts, group.nodes) for group in worker_groups(document))
    zones = tuple(dict.fromkeys((*own, *further)))
    if len(zones) > 1:
        return zones
    letters = ZONE_LETTERS.get(document.eks.region, "ab")
    spare = next(letter for letter in letters if not zones[0].endswith(letter))
    return (*zones, f"{document.eks.region}{spare}")


def api_access_cidrs(document: Document, facts: Facts) -> tuple[str, ...]:
    """Who reaches the cluster's API from outside the VPC; empty: nobody."""
    if document.eks.private_access_only:
        return ()
    return tuple(document.eks.public_access_cidrs) or facts.public_access_cidrs


def notes(document: Document, facts: Facts) -> tuple[str, ...]:
    """What a reader of the file must know before applying it by hand: sentences for its header."""
    found = []
    if not api_access_cidrs(document, facts):
        do = "" if document.eks.private_access_only else "; set eks.public_access_cidrs to your own address"
        found.append(f"The cluster's API is open to the VPC alone: eksctl must run inside it{do}.")
    guessed = [group for group in worker_groups(document) if zone_of(document, group.nodes, facts) is None]
    if guessed:
        name = zone(document, facts, guessed[0].nodes)
        found.append(f"eks.zone is auto and nobody has looked yet: {name} may not offer the instance types.")
    return tuple(found)


def efa_security_group(document: Document) -> dict[str, Any] | None:
    """A CloudFormation template with a security group for EFA among this service's GPU nodes; None without EFA.

    Parameter `VpcId`; output `SecurityGroupId`, which goes into `cluster_config` as one of `security_groups`.

    What it does: EFA passes only by rules that name a security group, in both directions; one that every GPU node of
    the service carries, with both rules on itself, lets prefill and decode reach each other's EFA. Below Kubernetes
    1.33 that is needed: eksctl gives each node group a group of its own, which lets nodes reach their own phase
    only. From 1.33 on eksctl relies on the cluster's security group instead, and this one keeps EFA working where
    someone tightens that.

    What it does not: keep others out. Rules of several security groups add up, and eksctl puts the cluster's own
    security group, which admits all of its members, on every managed node (`SecurityGroups` in `pkg/vpc/importer.go`).
    So the cluster is the boundary: every node of the cluster with EFA can reach these nodes' EFA, and nothing outside
    can. NetworkPolicies do not see EFA. Give a service whose KV cache must be kept from other tenants a cluster of
    its own, which is the default.
    """
    if document.on != "eks" or not wants_efa(document):
        return None
    itself = {"Fn::GetAtt": ["EfaSecurityGroup", "GroupId"]}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"EFA between the GPU nodes of {document.name}",
        "Parameters": {"VpcId": {"Type": "AWS::EC2::VPC::Id", "Description": "The cluster's VPC"}},
        "Resources": {
            "EfaSecurityGroup": {
                "Type": "AWS::EC2::SecurityGroup",
                "Properties": {
                    "GroupDescription": f"EFA between the GPU nodes of {document.name}",
                    "VpcId": {"Ref": "VpcId"},
                    # No kubernetes.io/cluster tag: the load balancer controller wants one group with it per node.
                    "Tags": [{"Key": names.SERVICE_LABEL, "Value": document.name}],
                },
            },
            "EfaFromItself": {
                "Type": "AWS::EC2::SecurityGroupIngress",
                "Properties": {"GroupId": itself, "SourceSecurityGroupId": itself, "IpProtocol": "-1"},
            },
            "EfaToItself": {
                "Type": "AWS::EC2::SecurityGroupEgress",
                "Properties": {"GroupId": itself, "DestinationSecurityGroupId": itself, "IpProtocol": "-1"},
            },
        },
        "Outputs": {"SecurityGroupId": {"Value": itself}},
    }


def needs_efa_security_group(document: Document) -> bool:
    """Whether prefill and decode can't reach each other's EFA without `efa_security_group`."""
    version = tuple(int(part) for part in minor(document.eks.kubernetes_version).split("."))
    return efa_security_group(document) is not None and version < _EFA_IN_CLUSTER_GROUP_SINCE


def _api_access(document: Document, facts: Facts) -> dict[str, Any]:
    """From inside always; from outside for the named addresses only, and not at all where there are none.

    An address that nobody has would not do: EKS refuses reserved ones, and takes an empty list for everybody.
    """
    cidrs = list(api_access_cidrs(document, facts))
    endpoints = {"clusterEndpoints": {"privateAccess": True, "publicAccess": bool(cidrs)}}
    return {**endpoints, "publicAccessCIDRs": cidrs} if cidrs else endpoints


def _addons(document: Document) -> list[dict[str, Any]]:
    """The cluster's add-ons, all of them.

    The VPC CNI enforces NetworkPolicies only when told to. CoreDNS stays off the GPU nodes, which have no taint. The
    monitoring agent sees broken GPUs, so that node repair replaces more than nodes that have gone silent.
    """
    addons = [
        {"name": "vpc-cni", "configurationValues": json.dumps({"enableNetworkPolicy": "true"})},
        {
            "name": "coredns",
            "configurationValues": json.dumps({"nodeSelector": {names.PHASE_LABEL: names.SYSTEM}}),
        },
        {"name": "kube-proxy"},
        {"name": "eks-node-monitoring-agent"},
    ]
    if is_bucket(document.model.source):
        addons.append({"name": "eks-pod-identity-agent"})
    return addons


def _model_access(document: Document) -> dict[str, Any]:
    """Reading the model's folder in S3, and nothing else, for the workers' service account."""
    if not is_bucket(document.model.source):
        return {}
    partition = _partition(document.eks.region)
    bucket, _, folder = document.model.source.removeprefix("s3://").partition("/")
    folder = folder.strip("/")
    inside = f"{folder}/*" if folder else "*"
    bucket_arn = f"arn:{partition}:s3:::{bucket}"
    listing: dict[str, Any] = {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": bucket_arn}
    if folder:
        listing["Condition"] = {"StringLike": {"s3:prefix": [folder, inside]}}
    reading = {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": f"{bucket_arn}/{inside}"}
    return {
        "podIdentityAssociations": [
            {
                "namespace": document.kubernetes.namespace,
                "serviceAccountName": names.service_account(document),
                "permissionPolicy": {"Version": "2012-10-17", "Statement": [listing, reading]},
            }
        ]
    }


def _partition(region: str) -> str:
    partitions = {"cn": "aws-cn", "us-gov": "aws-us-gov"}
    return next((name for start, name in partitions.items() if region.startswith(f"{start}-")), "aws")
