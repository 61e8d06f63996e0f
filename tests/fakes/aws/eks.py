"""EKS: clusters, whose states change over time as there; `nodegroups` and `addons` have what is in them.

moto's EKS is ACTIVE at once, takes any version and subnet, and starts no machines; nothing of it is used. Not here:
Fargate, capabilities, insights, identity providers (each an error that says so), upgrades of versions.
"""

import base64
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fakes.aws.clock import Clock
from fakes.aws.faults import Faults
from fakes.aws.machines import Group, LaunchError, Machines
from fakes.aws.nodes import Nodes
from fakes.aws.wire import AwsError

Parameters = Mapping[str, Any]

CLUSTER_S, CLUSTER_DELETE_S = 480.0, 240.0
UPDATE_S = 30.0
EFA_IN_CLUSTER_GROUP_SINCE = (1, 33)

# End of standard and of extended support.
VERSIONS = {
    "1.36": (datetime(2027, 8, 2, tzinfo=UTC), datetime(2028, 8, 2, tzinfo=UTC)),
    "1.35": (datetime(2027, 3, 27, tzinfo=UTC), datetime(2028, 3, 27, tzinfo=UTC)),
    "1.34": (datetime(2026, 12, 2, tzinfo=UTC), datetime(2027, 12, 2, tzinfo=UTC)),
    "1.33": (datetime(2026, 7, 29, tzinfo=UTC), datetime(2027, 7, 29, tzinfo=UTC)),
    "1.32": (datetime(2026, 3, 23, tzinfo=UTC), datetime(2027, 3, 23, tzinfo=UTC)),
}


@dataclass
class Cluster:
    """A cluster and what is in it.

    Attributes:
        about: as DescribeCluster gives it.
        nodegroups, addons, access_entries, identities: by name, as their Describe operations give them.
        groups: the Auto Scaling groups, by node group.
    """

    about: dict[str, Any]
    nodegroups: dict[str, dict[str, Any]] = field(default_factory=dict)
    addons: dict[str, dict[str, Any]] = field(default_factory=dict)
    access_entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    identities: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    updates: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.about["name"])


@dataclass
class Eks:
    """The region's clusters.

    Attributes:
        today: what support's ends are compared with; the true day unless set.
        dangling: node groups that leave a network interface of the VPC CNI behind when they go (eksctl#1849).
        stuck: names of clusters and node groups whose deletion never ends.
    """

    region: str
    account: str
    clock: Clock
    faults: Faults
    machines: Machines
    nodes: Nodes
    client: Callable[[], Any]
    clusters: dict[str, Cluster] = field(default_factory=dict)
    today: datetime | None = None
    dangling: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)

    def arn(self, kind: str, name: str) -> str:
        return f"arn:aws:eks:{self.region}:{self.account}:{kind}/{name}"

    def tagged(self) -> dict[str, dict[str, str]]:
        """Tags by ARN of all that is here."""
        found: dict[str, dict[str, str]] = {}
        for cluster in self.clusters.values():
            found[cluster.about["arn"]] = cluster.about["tags"]
            for group in cluster.nodegroups.values():
                found[group["nodegroupArn"]] = group["tags"]
            for addon in cluster.addons.values():
                found[addon["addonArn"]] = addon["tags"]
            for identity in cluster.identities.values():
                found[identity["associationArn"]] = identity["tags"]
        return found

    def describe_cluster_versions(self, asked: Parameters) -> dict[str, Any]:
        today = self.today or self.clock.now()
        found = []
        for version, (standard, extended) in VERSIONS.items():
            status = (
                "STANDARD_SUPPORT"
                if today < standard
                else "EXTENDED_SUPPORT"
                if today < extended
                else "UNSUPPORTED"
            )
            if status == "UNSUPPORTED" and not asked.get("includeAll"):
                continue
            if version not in (asked.get("clusterVersions") or [version]):
                continue
            found.append(
                {
                    "clusterVersion": version,
                    "clusterType": "eks",
                    "defaultVersion": version == "1.35",
                    "endOfStandardSupportDate": standard,
                    "endOfExtendedSupportDate": extended,
                    "status": status.lower(),
                    "versionStatus": status,
                    "kubernetesPatchVersion": f"{version}.2",
                }
            )
        page, token = self.faults.page(found, asked.get("nextToken"), asked.get("maxResults"))
        return {"clusterVersions": page, **({"nextToken": token} if token else {})}

    def create_cluster(self, asked: Parameters) -> dict[str, Any]:
        name = asked["name"]
        if name in self.clusters:
            raise AwsError("ResourceInUseException", f"Cluster already exists with name: {name}", 409)
        if not re.fullmatch(r"[0-9A-Za-z][A-Za-z0-9_-]{0,99}", name):
            raise AwsError("InvalidParameterException", f"The cluster name {name} is invalid")
        version = asked.get("version", "1.35")
        supported = {row["clusterVersion"] for row in self.describe_cluster_versions({})["clusterVersions"]}
        if version not in supported:
            raise AwsError("InvalidParameterException", f"unsupported Kubernetes version {version}")
        subnets = self.subnets(asked["resourcesVpcConfig"].get("subnetIds", []), apart=True)
        vpc = subnets[0]["VpcId"]
        group = self._cluster_security_group(name, vpc, version)
        access = asked["resourcesVpcConfig"]
        about = {
            "name": name,
            "arn": self.arn("cluster", name),
            "createdAt": self.clock.now(),
            "version": version,
            "roleArn": asked["roleArn"],
            "resourcesVpcConfig": {
                "subnetIds": [subnet["SubnetId"] for subnet in subnets],
                "securityGroupIds": list(access.get("securityGroupIds", [])),
                "clusterSecurityGroupId": group,
                "vpcId": vpc,
                "endpointPublicAccess": access.get("endpointPublicAccess", True),
                "endpointPrivateAccess": access.get("endpointPrivateAccess", False),
                "publicAccessCidrs": list(access.get("publicAccessCidrs", ["0.0.0.0/0"])),
            },
            "kubernetesNetworkConfig": {"serviceIpv4Cidr": "10.100.0.0/16", "ipFamily": "ipv4"},
            "identity": {
                "oidc": {
                    "issuer": f"https://oidc.eks.{self.region}.amazonaws.com/id/{uuid.uuid4().hex.upper()}"
                }
            },
            "status": "CREATING",
            "tags": dict(asked.get("tags", {})),
            "platformVersion": "eks.9",
            "health": {"issues": []},
            "accessConfig": {"authenticationMode": "API_AND_CONFIG_MAP"},
            "upgradePolicy": {"supportType": "EXTENDED"},
        }
        self.clusters[name] = Cluster(about)
        self.clock.later(CLUSTER_S, lambda: self._activate(about))
        return {"cluster": about}

    def _activate(self, about: dict[str, Any]) -> None:
        server, authority = self.nodes.address()
        about["endpoint"] = server
        about["certificateAuthority"] = {"data": base64.b64encode(authority).decode()}
        about["status"] = "ACTIVE"

    def describe_cluster(self, asked: Parameters) -> dict[str, Any]:
        return {"cluster": self.cluster(asked["name"]).about}

    def list_clusters(self, asked: Parameters) -> dict[str, Any]:
        page, token = self.faults.page(list(self.clusters), asked.get("nextToken"), asked.get("maxResults"))
        return {"clusters": page, **({"nextToken": token} if token else {})}

    def delete_cluster(self, asked: Parameters) -> dict[str, Any]:
        cluster = self.cluster(asked["name"])
        if cluster.nodegroups:
            raise AwsError("ResourceInUseException", "Cluster has nodegroups attached", 409)
        if cluster.about["status"] == "CREATING":
            message = f"Cannot delete because cluster {cluster.name} currently has an update in progress"
            raise AwsError("ResourceInUseException", message, 409)
        if cluster.about["status"] != "DELETING":
            cluster.about["status"] = "DELETING"
            if cluster.name not in self.stuck:
                self.clock.later(CLUSTER_DELETE_S, lambda: self._delete_cluster(cluster))
        return {"cluster": cluster.about}

    def _delete_cluster(self, cluster: Cluster) -> None:
        group = cluster.about["resourcesVpcConfig"]["clusterSecurityGroupId"]
        if not self.machines.ec2.interfaces("group-id", group):
            self.client().delete_security_group(GroupId=group)
        self.nodes.forget_all()
        del self.clusters[cluster.name]

    def update_cluster_config(self, asked: Parameters) -> dict[str, Any]:
        cluster = self.cluster(asked["name"], active=True)
        cluster.about["resourcesVpcConfig"].update(
            {
                key: value
                for key, value in asked.get("resourcesVpcConfig", {}).items()
                if key in {"endpointPublicAccess", "endpointPrivateAccess", "publicAccessCidrs"}
            }
        )
        return {"update": self.update(cluster, "EndpointAccessUpdate", cluster.about, lambda: None)}

    def describe_update(self, asked: Parameters) -> dict[str, Any]:
        updates = self.cluster(asked["name"]).updates
        if asked["updateId"] not in updates:
            raise AwsError("ResourceNotFoundException", f"No update found for ID: {asked['updateId']}", 404)
        return {"update": updates[asked["updateId"]]}

    def cluster(self, name: str, *, active: bool = False) -> Cluster:
        if name not in self.clusters:
            raise AwsError("ResourceNotFoundException", f"No cluster found for name: {name}.", 404)
        cluster = self.clusters[name]
        if active and cluster.about["status"] != "ACTIVE":
            raise AwsError("InvalidRequestException", f"Cluster '{name}' is not in ACTIVE status")
        return cluster

    def update(
        self, cluster: Cluster, kind: str, about: dict[str, Any], work: Callable[[], None]
    ) -> dict[str, Any]:
        update: dict[str, Any] = {
            "id": str(uuid.uuid4()),
            "status": "InProgress",
            "type": kind,
            "params": [],
            "createdAt": self.clock.now(),
            "errors": [],
        }
        cluster.updates[update["id"]] = update
        about["status"] = "UPDATING"

        def go() -> None:
            self.clock.wait(UPDATE_S)
            try:
                work()
                update["status"] = "Successful"
            except LaunchError as error:
                update["status"] = "Failed"
                update["errors"] = [{"errorCode": "AsgInstanceLaunchFailures", "errorMessage": str(error)}]
            if about["status"] == "UPDATING":
                about["status"] = "ACTIVE"

        self.clock.start(go)
        return update

    def subnets(self, ids: list[str], *, apart: bool = False) -> list[dict[str, Any]]:
        known = {subnet["SubnetId"]: subnet for subnet in self.client().describe_subnets()["Subnets"]}
        for one in ids:
            if one not in known:
                raise AwsError("InvalidParameterException", f"The subnet ID '{one}' does not exist")
        found = [known[one] for one in ids]
        if apart and len({subnet["AvailabilityZone"] for subnet in found}) < 2:
            raise AwsError(
                "InvalidParameterException", "Subnets specified must be in at least two different AZs"
            )
        return found

    def _cluster_security_group(self, name: str, vpc: str, version: str) -> str:
        """EKS's own: all of its members reach each other; EFA too from 1.33 on, which needs a rule each way."""
        ec2 = self.client()
        tags = [
            {"Key": "Name", "Value": f"eks-cluster-sg-{name}-1234567"},
            {"Key": f"kubernetes.io/cluster/{name}", "Value": "owned"},
            {"Key": "aws:eks:cluster-name", "Value": name},
        ]
        group = ec2.create_security_group(
            GroupName=f"eks-cluster-sg-{name}-{uuid.uuid4().hex[:8]}",
            Description="EKS created security group applied to ENI that is attached to EKS Control Plane master nodes",
            VpcId=vpc,
            TagSpecifications=[{"ResourceType": "security-group", "Tags": tags}],
        )["GroupId"]
        itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself)
        if tuple(int(part) for part in version.split(".")) >= EFA_IN_CLUSTER_GROUP_SINCE:
            ec2.authorize_security_group_egress(GroupId=group, IpPermissions=itself)
        return str(group)
