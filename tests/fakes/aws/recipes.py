"""What eksctl's CloudFormation stacks hold: the cluster with its VPC, a managed node group, a pod identity's role.

Logical names and tags are eksctl's. Not here: its outputs beyond those listed, IRSA roles,
Fargate, dual-stack, private clusters' endpoints, more than one NAT gateway.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from diptych.catalog.instances import instance_type
from fakes.aws.eks import EFA_IN_CLUSTER_GROUP_SINCE, Eks
from fakes.aws.machines import Launch
from fakes.aws.nodegroups import NodeGroups
from fakes.aws.stacks import Resource, ResourceFailedError, Stack, Stacks
from fakes.aws.vpc import Vpc, handler_message, remover, tag_specification
from fakes.aws.wire import AwsError

Config = Mapping[str, Any]


def cluster_stack(cluster: str) -> str:
    """Its stack's name."""
    return f"eksctl-{cluster}-cluster"


def nodegroup_stack(cluster: str, nodegroup: str) -> str:
    """Its stack's name."""
    return f"eksctl-{cluster}-nodegroup-{nodegroup}"


@dataclass
class Recipes:
    """Makes the stacks that eksctl makes of a ClusterConfig."""

    eks: Eks
    nodegroups: NodeGroups
    stacks: Stacks
    client: Callable[[str], Any]

    def start_cluster(self, config: Config, *, rollback: bool = True) -> Stack:
        """The stack of the control plane, and of the VPC unless the config names subnets."""
        name = config["metadata"]["name"]
        tags = _tags(config, cluster_stack(name))
        vpc = Vpc(self.client("ec2"), config, tags)
        resources = [
            *vpc.resources(),
            self._role("ServiceRole", f"eksctl-{name}-cluster-ServiceRole", "eks.amazonaws.com", tags),
            Resource(
                "ControlPlane",
                "AWS::EKS::Cluster",
                lambda: self._make_cluster(config, vpc),
                self._remove_cluster,
            ),
        ]
        return self.stacks.start(
            cluster_stack(name),
            resources,
            tags,
            find_outputs=lambda: {
                "VPC": vpc.vpc_id,
                "SubnetsPrivate": ",".join(vpc.private.values()),
                "SubnetsPublic": ",".join(vpc.public.values()),
                "ClusterStackName": cluster_stack(name),
                "ARN": self.eks.arn("cluster", name),
            },
            rollback=rollback,
            description="EKS cluster (dedicated VPC: true, dedicated IAM: true) [created and managed by eksctl]",
        )

    def start_nodegroup(self, config: Config, group: Config, *, rollback: bool = True) -> Stack:
        """The stack of one managed node group."""
        cluster, name = config["metadata"]["name"], group["name"]
        stack_name = nodegroup_stack(cluster, name)
        tags = _tags(config, stack_name) | {
            "alpha.eksctl.io/nodegroup-name": name,
            "alpha.eksctl.io/nodegroup-type": "managed",
            "eksctl.io/v1alpha2/nodegroup-name": name,
        }
        tags |= group.get("tags", {})
        placed: dict[str, str] = {}
        resources = [
            self._role("NodeInstanceRole", f"{stack_name}-NodeInstanceRole", "ec2.amazonaws.com", tags)
        ]
        if group.get("efaEnabled") and not group.get("placement") and not group.get("capacityReservation"):
            resources.append(self._placement_group(stack_name, tags, placed))
        if group.get("efaEnabled") and _version(config) < EFA_IN_CLUSTER_GROUP_SINCE:
            resources.append(self._efa_security_group(cluster, stack_name, tags, placed))
        resources.append(self._launch_template(stack_name, group, tags, placed))
        resources.append(
            Resource(
                "ManagedNodeGroup",
                "AWS::EKS::Nodegroup",
                lambda: self._make_nodegroup(config, group, tags, placed),
                self._remove_nodegroup,
            )
        )
        description = "EKS Managed Nodes (SSH access: false) [created by eksctl]"
        return self.stacks.start(stack_name, resources, tags, rollback=rollback, description=description)

    def start_identity(self, config: Config, about: Config) -> Stack:
        """The stack of a pod identity's role."""
        cluster = config["metadata"]["name"]
        name = f"eksctl-{cluster}-podidentityrole-{about['namespace']}-{about['serviceAccountName']}"
        tags = _tags(config, name)
        role = self._role("PodIdentityAssociationRole", name[:60], "pods.eks.amazonaws.com", tags)
        return self.stacks.start(name, [role], tags, find_outputs=lambda: {"RoleArn": role.physical_id})

    def make_provider(self, cluster: str, tags: Mapping[str, str]) -> str:
        """IAM's OIDC provider of a cluster, which is in no stack; its ARN."""
        issuer = self.eks.clusters[cluster].about["identity"]["oidc"]["issuer"]
        rows = {**tags, "alpha.eksctl.io/cluster-name": cluster}
        answer = self.client("iam").create_open_id_connect_provider(
            Url=issuer,
            ClientIDList=["sts.amazonaws.com"],
            ThumbprintList=["9e99a48a9960b14926bb7f3b02e22da2b0ab7280"],
            Tags=[{"Key": key, "Value": value} for key, value in rows.items()],
        )
        return str(answer["OpenIDConnectProviderArn"])

    def remove_provider(self, cluster: str) -> None:
        """eksctl finds it by the cluster's issuer: where the cluster is gone, the provider stays."""
        if cluster not in self.eks.clusters:
            return
        issuer = self.eks.clusters[cluster].about["identity"]["oidc"]["issuer"].removeprefix("https://")
        iam = self.client("iam")
        for row in iam.list_open_id_connect_providers()["OpenIDConnectProviderList"]:
            if row["Arn"].endswith(issuer):
                iam.delete_open_id_connect_provider(OpenIDConnectProviderArn=row["Arn"])

    # The control plane

    def _make_cluster(self, config: Config, vpc: Vpc) -> str:
        about, access = config["metadata"], config.get("vpc", {}).get("clusterEndpoints", {})
        public = access.get("publicAccess", True)
        asked: dict[str, Any] = {
            "name": about["name"],
            "version": about.get("version", "1.34"),
            "roleArn": f"arn:aws:iam::{self.eks.account}:role/eksctl-{about['name']}-cluster-ServiceRole",
            "resourcesVpcConfig": {
                "subnetIds": [*vpc.public.values(), *vpc.private.values()],
                "securityGroupIds": [vpc.control_plane_group],
                "endpointPublicAccess": public,
                "endpointPrivateAccess": access.get("privateAccess", False),
                "publicAccessCidrs": config.get("vpc", {}).get("publicAccessCIDRs", ["0.0.0.0/0"])
                if public
                else [],
            },
            "tags": _tags(config, cluster_stack(about["name"])),
        }
        try:
            self.eks.create_cluster(asked)
        except AwsError as error:
            raise ResourceFailedError(handler_message(error.message, "InvalidRequest")) from error
        made = self.eks.clusters[about["name"]]
        self.stacks.clock.until(lambda: made.about["status"] != "CREATING")
        return str(about["name"])

    def _remove_cluster(self, name: str) -> None:
        if name not in self.eks.clusters:
            return
        try:
            self.eks.delete_cluster({"name": name})
        except AwsError as error:
            raise ResourceFailedError(handler_message(error.message, "ResourceConflict")) from error
        self.stacks.clock.until(lambda: name not in self.eks.clusters)

    # Node groups

    def _make_nodegroup(
        self, config: Config, group: Config, tags: Mapping[str, str], placed: Mapping[str, str]
    ) -> str:
        cluster, name = config["metadata"]["name"], group["name"]
        target = group.get("capacityReservation", {}).get("capacityReservationTarget", {})
        launch = Launch(
            security_groups=(
                *group.get("securityGroups", {}).get("attachIDs", ()),
                *([placed["efa"]] if "efa" in placed else ()),
            ),
            volume_gib=group.get("volumeSize", 80),
            efa=group.get("efaEnabled", False),
            placement_group=placed.get("name") or group.get("placement", {}).get("groupName"),
            reservation=target.get("capacityReservationID")
            or target.get("capacityReservationResourceGroupARN"),
        )
        asked = self._nodegroup_request(config, group, tags)
        asked["launchTemplate"] = {"id": placed["template"], "version": "1"}
        try:
            self.nodegroups.create_nodegroup(asked, launch)
        except AwsError as error:
            raise ResourceFailedError(handler_message(error.message, "InvalidRequest")) from error
        about = self.eks.clusters[cluster].nodegroups[name]
        self.stacks.clock.until(lambda: about["status"] != "CREATING")
        if about["status"] == "CREATE_FAILED":
            issue = about["health"]["issues"][0]
            text = f"[Issue(Code={issue['code']}, Message={issue['message']}, ResourceIds={issue['resourceIds']})]"
            message = handler_message(
                f"{text} (Service: null, Status Code: 0, Request ID: null)", "GeneralServiceException"
            )
            raise ResourceFailedError(message, f"{cluster}/{name}")
        return f"{cluster}/{name}"

    def _nodegroup_request(self, config: Config, group: Config, tags: Mapping[str, str]) -> dict[str, Any]:
        type_name = group.get("instanceType") or group["instanceTypes"][0]
        kind = instance_type(type_name)
        gpu = kind is not None and kind.gpu is not None
        block = group.get("instanceMarketOptions", {}).get("marketType") == "capacity-block"
        labels = {
            "alpha.eksctl.io/cluster-name": config["metadata"]["name"],
            "alpha.eksctl.io/nodegroup-name": group["name"],
            **group.get("labels", {}),
        }
        taints = [
            {"key": row["key"], "value": row.get("value", ""), "effect": _EFFECTS[row["effect"]]}
            for row in group.get("taints", ())
        ]
        return {
            "clusterName": config["metadata"]["name"],
            "nodegroupName": group["name"],
            "instanceTypes": [type_name],
            "subnets": self._subnets(config, group),
            "nodeRole": f"arn:aws:iam::{self.eks.account}:role/NodeInstanceRole",
            "amiType": "AL2023_x86_64_NVIDIA" if gpu else "AL2023_x86_64_STANDARD",
            "capacityType": "SPOT" if group.get("spot") else "CAPACITY_BLOCK" if block else "ON_DEMAND",
            "scalingConfig": _scaling(group),
            "labels": labels,
            "taints": taints,
            "tags": dict(tags),
        }

    def _subnets(self, config: Config, group: Config) -> list[str]:
        """Private ones in the group's zones, or public ones without `privateNetworking`."""
        if given := group.get("subnets"):
            return list(given)
        cluster = self.eks.clusters[config["metadata"]["name"]]
        known = self.client("ec2").describe_subnets(
            SubnetIds=cluster.about["resourcesVpcConfig"]["subnetIds"]
        )
        role = "internal-elb" if group.get("privateNetworking") else "elb"
        found = [
            subnet["SubnetId"]
            for subnet in known["Subnets"]
            if any(tag["Key"] == f"kubernetes.io/role/{role}" for tag in subnet["Tags"])
            and subnet["AvailabilityZone"] in group.get("availabilityZones", [subnet["AvailabilityZone"]])
        ]
        if not found:
            zones = group.get("availabilityZones", [])
            raise ResourceFailedError(f"mapping doesn't have zone {', '.join(zones)}")
        return found

    def _remove_nodegroup(self, identifier: str) -> None:
        cluster, _, name = identifier.partition("/")
        if cluster not in self.eks.clusters or name not in self.eks.clusters[cluster].nodegroups:
            return
        self.nodegroups.delete_nodegroup({"clusterName": cluster, "nodegroupName": name})
        self.stacks.clock.until(lambda: name not in self.eks.clusters[cluster].nodegroups)

    def _placement_group(self, stack: str, tags: Mapping[str, str], placed: dict[str, str]) -> Resource:
        ec2 = self.client("ec2")
        name = f"{stack}-NodeGroupPlacementGroup"

        def make() -> str:
            ec2.create_placement_group(
                GroupName=name,
                Strategy="cluster",
                TagSpecifications=tag_specification("placement-group", tags),
            )
            placed["name"] = name
            return name

        return Resource(
            "NodeGroupPlacementGroup",
            "AWS::EC2::PlacementGroup",
            make,
            remover(ec2, "delete_placement_group", "GroupName"),
        )

    def _efa_security_group(
        self, cluster: str, stack: str, tags: Mapping[str, str], placed: dict[str, str]
    ) -> Resource:
        """One per node group: EFA reaches the nodes of the group, and no others."""
        ec2 = self.client("ec2")

        def make() -> str:
            identifier = ec2.create_security_group(
                GroupName=f"{stack}-EFASG",
                Description="EFA-enabled security group",
                VpcId=self.eks.clusters[cluster].about["resourcesVpcConfig"]["vpcId"],
                TagSpecifications=tag_specification("security-group", tags),
            )["GroupId"]
            itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": identifier}]}]
            ec2.authorize_security_group_ingress(GroupId=identifier, IpPermissions=itself)
            ec2.authorize_security_group_egress(GroupId=identifier, IpPermissions=itself)
            placed["efa"] = identifier
            return str(identifier)

        return Resource(
            "EFASG", "AWS::EC2::SecurityGroup", make, remover(ec2, "delete_security_group", "GroupId")
        )

    def _launch_template(
        self, stack: str, group: Config, tags: Mapping[str, str], placed: dict[str, str]
    ) -> Resource:
        ec2 = self.client("ec2")
        target = group.get("capacityReservation", {}).get("capacityReservationTarget", {})
        keys = {
            "capacityReservationID": "CapacityReservationId",
            "capacityReservationResourceGroupARN": "CapacityReservationResourceGroupArn",
        }
        reserved = {"CapacityReservationTarget": {keys[key]: value for key, value in target.items()}}

        def make() -> str:
            placed["template"] = str(
                ec2.create_launch_template(
                    LaunchTemplateName=stack,
                    LaunchTemplateData={
                        **({"CapacityReservationSpecification": reserved} if target else {}),
                        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
                        "BlockDeviceMappings": [
                            {
                                "DeviceName": "/dev/xvda",
                                "Ebs": {"VolumeSize": group.get("volumeSize", 80), "VolumeType": "gp3"},
                            }
                        ],
                    },
                    TagSpecifications=tag_specification("launch-template", tags),
                )["LaunchTemplate"]["LaunchTemplateId"]
            )
            return placed["template"]

        remove = remover(ec2, "delete_launch_template", "LaunchTemplateId")
        return Resource("LaunchTemplate", "AWS::EC2::LaunchTemplate", make, remove)

    def _role(self, logical: str, name: str, principal: str, tags: Mapping[str, str]) -> Resource:
        iam = self.client("iam")
        statement = {"Effect": "Allow", "Principal": {"Service": principal}, "Action": "sts:AssumeRole"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})

        def make() -> str:
            rows = [{"Key": key, "Value": value} for key, value in tags.items()]
            iam.create_role(RoleName=name[:64], AssumeRolePolicyDocument=document, Tags=rows)
            return name[:64]

        return Resource(logical, "AWS::IAM::Role", make, remover(iam, "delete_role", "RoleName"))


_EFFECTS = {"NoSchedule": "NO_SCHEDULE", "NoExecute": "NO_EXECUTE", "PreferNoSchedule": "PREFER_NO_SCHEDULE"}


def _version(config: Config) -> tuple[int, ...]:
    return tuple(int(part) for part in config["metadata"].get("version", "1.34").split("."))


def _scaling(group: Config) -> dict[str, int]:
    count = group.get("desiredCapacity", group.get("minSize", 2))
    return {
        "desiredSize": count,
        "minSize": group.get("minSize", count),
        "maxSize": group.get("maxSize", max(count, 1)),
    }


def _tags(config: Config, stack: str) -> dict[str, str]:
    about = config["metadata"]
    return {
        **about.get("tags", {}),
        "alpha.eksctl.io/cluster-name": about["name"],
        "alpha.eksctl.io/cluster-oidc-enabled": str(bool(config.get("iam", {}).get("withOIDC"))).lower(),
        "alpha.eksctl.io/eksctl-version": "0.230.0",
        "eksctl.cluster.k8s.io/v1alpha1/cluster-name": about["name"],
        "aws:cloudformation:stack-name": stack,
    }
