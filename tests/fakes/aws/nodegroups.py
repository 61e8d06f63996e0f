"""EKS's managed node groups: their machines come and go, or can't come. Not here: upgrades of versions."""

import uuid
from collections.abc import Mapping
from typing import Any

from fakes.aws.eks import Cluster, Eks
from fakes.aws.machines import Group, Launch, LaunchError
from fakes.aws.wire import AwsError

Parameters = Mapping[str, Any]
_FAILS_S = 900.0
"""Seconds of AWS's that EKS goes on asking before it gives up."""


class NodeGroups:
    """The operations on node groups."""

    def __init__(self, eks: Eks) -> None:
        self._eks = eks

    def create_nodegroup(self, asked: Parameters, launch: Launch | None = None) -> dict[str, Any]:
        """As boto3's; `launch` is what a launch template would say (CloudFormation's nodes have one)."""
        cluster = self._eks.cluster(asked["clusterName"], active=True)
        name = asked["nodegroupName"]
        if name in cluster.nodegroups:
            message = f"NodeGroup already exists with name {name} and cluster name {cluster.name}"
            raise AwsError("ResourceInUseException", message, 409)
        subnets = self._eks.subnets(asked["subnets"])
        about = self._nodegroup(cluster, asked)
        security = (cluster.about["resourcesVpcConfig"]["clusterSecurityGroupId"],)
        launch = launch or Launch()
        launch = Launch(
            security + launch.security_groups,
            launch.volume_gib,
            launch.efa,
            launch.placement_group,
            launch.reservation,
        )
        zones = {subnet["AvailabilityZone"]: subnet["SubnetId"] for subnet in subnets}
        group = self._eks.machines.add(about, launch, zones)
        about["resources"] = {"autoScalingGroups": [{"name": group.name}]}
        cluster.nodegroups[name] = about
        cluster.groups[name] = group
        self._eks.clock.start(lambda: self._bring_up(about, group))
        return {"nodegroup": about}

    def _nodegroup(self, cluster: Cluster, asked: Parameters) -> dict[str, Any]:
        name, scaling = asked["nodegroupName"], dict(asked.get("scalingConfig", {}))
        scaling = {"minSize": 1, "maxSize": 2, "desiredSize": 2} | scaling
        if not scaling["minSize"] <= scaling["desiredSize"] <= scaling["maxSize"]:
            message = "Minimum capacity can't be greater than desired size, nor desired greater than maximum"
            raise AwsError("InvalidParameterException", message)
        return {
            "nodegroupName": name,
            "nodegroupArn": self._eks.arn("nodegroup", f"{cluster.name}/{name}/{uuid.uuid4()}"),
            "clusterName": cluster.name,
            "version": cluster.about["version"],
            "releaseVersion": f"{cluster.about['version']}.2-20261120",
            "createdAt": self._eks.clock.now(),
            "modifiedAt": self._eks.clock.now(),
            "status": "CREATING",
            "capacityType": asked.get("capacityType", "ON_DEMAND"),
            "scalingConfig": scaling,
            "instanceTypes": list(asked.get("instanceTypes", ["t3.medium"])),
            "subnets": list(asked["subnets"]),
            "amiType": asked.get("amiType", "AL2023_x86_64_STANDARD"),
            "nodeRole": asked["nodeRole"],
            "labels": dict(asked.get("labels", {})),
            "taints": list(asked.get("taints", [])),
            "diskSize": asked.get("diskSize", 20),
            "health": {"issues": []},
            "updateConfig": {"maxUnavailable": 1},
            **({"launchTemplate": asked["launchTemplate"]} if "launchTemplate" in asked else {}),
            "tags": dict(asked.get("tags", {})),
        }

    def _bring_up(self, about: dict[str, Any], group: Group) -> None:
        try:
            self._eks.machines.scale(group, about["scalingConfig"]["desiredSize"])
        except LaunchError as error:
            self._eks.clock.wait(_FAILS_S)
            if about["status"] != "CREATING":
                return
            kind = "Spot" if group.spot else "On-Demand"
            message = f"Could not launch {kind} Instances. {_code(str(error))} - {error}"
            issue = {"code": "AsgInstanceLaunchFailures", "message": message, "resourceIds": [group.name]}
            about["health"]["issues"] = [issue]
            about["status"] = "CREATE_FAILED"
            return
        if about["status"] == "CREATING":
            about["status"] = "ACTIVE"

    def describe_nodegroup(self, asked: Parameters) -> dict[str, Any]:
        return {"nodegroup": self._nodegroup_of(asked)[1]}

    def list_nodegroups(self, asked: Parameters) -> dict[str, Any]:
        names = list(self._eks.cluster(asked["clusterName"]).nodegroups)
        page, token = self._eks.faults.page(names, asked.get("nextToken"), asked.get("maxResults"))
        return {"nodegroups": page, **({"nextToken": token} if token else {})}

    def update_nodegroup_config(self, asked: Parameters) -> dict[str, Any]:
        cluster, about = self._nodegroup_of(asked)
        if about["status"] != "ACTIVE":
            message = f"Nodegroup cannot be updated as it is currently not in Active State: {about['status']}"
            raise AwsError("ResourceInUseException", message, 409)
        scaling = about["scalingConfig"] | dict(asked.get("scalingConfig", {}))
        if not scaling["minSize"] <= scaling["desiredSize"] <= scaling["maxSize"]:
            message = (
                f"desired capacity {scaling['desiredSize']} is not between min {scaling['minSize']} and max"
            )
            raise AwsError("InvalidParameterException", f"{message} {scaling['maxSize']}")
        about["scalingConfig"].update(scaling)
        labels = asked.get("labels", {})
        about["labels"].update(labels.get("addOrUpdateLabels", {}))
        for key in labels.get("removeLabels", ()):
            about["labels"].pop(key, None)
        group, count = cluster.groups[about["nodegroupName"]], scaling["desiredSize"]
        return {
            "update": self._eks.update(
                cluster, "ConfigUpdate", about, lambda: self._eks.machines.scale(group, count)
            )
        }

    def delete_nodegroup(self, asked: Parameters) -> dict[str, Any]:
        cluster, about = self._nodegroup_of(asked)
        if about["status"] != "DELETING":
            about["status"] = "DELETING"
            if about["nodegroupName"] not in self._eks.stuck:
                self._eks.clock.start(lambda: self._delete_nodegroup(cluster, about))
        return {"nodegroup": about}

    def _delete_nodegroup(self, cluster: Cluster, about: dict[str, Any]) -> None:
        name = about["nodegroupName"]
        group = cluster.groups[name]
        if name in self._eks.dangling and group.instances:
            self._leave_interface(cluster, group)
        self._eks.machines.remove(group)
        del cluster.nodegroups[name], cluster.groups[name]

    def _leave_interface(self, cluster: Cluster, group: Group) -> None:
        """A secondary interface of the VPC CNI that nobody detaches in time."""
        instance = next(iter(group.instances))
        tags = {
            "node.k8s.amazonaws.com/instance_id": instance,
            "cluster.k8s.amazonaws.com/name": cluster.name,
        }
        self._eks.client().create_network_interface(
            SubnetId=next(iter(group.zones.values())),
            Groups=list(group.launch.security_groups),
            Description=f"aws-K8S-{instance}",
            TagSpecifications=[
                {
                    "ResourceType": "network-interface",
                    "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
                }
            ],
        )

    def _nodegroup_of(self, asked: Parameters) -> tuple[Cluster, dict[str, Any]]:
        cluster, name = self._eks.cluster(asked["clusterName"]), asked["nodegroupName"]
        if name not in cluster.nodegroups:
            raise AwsError("ResourceNotFoundException", f"No node group found for name: {name}.", 404)
        return cluster, cluster.nodegroups[name]


def _code(message: str) -> str:
    """EC2's error code for an Auto Scaling group's message."""
    for words, code in (
        ("do not have sufficient", "InsufficientInstanceCapacity"),
        ("no Spot capacity", "UnfulfillableCapacity"),
        ("vCPU capacity", "VcpuLimitExceeded"),
        ("not supported in your requested", "Unsupported"),
        ("requested reservation", "ReservationCapacityExceeded"),
    ):
        if words in message:
            return code
    return "InternalError"
