"""Auto Scaling groups of EKS's node groups: instances that start, or can't, and stop.

Instances are moto's. Not here: warm pools, health checks, rebalancing, the choice among several instance types
(the first is taken), open reservations that a launch gets without naming them.
"""

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from diptych.catalog.instances import InstanceType, instance_type
from fakes.aws.clock import Clock
from fakes.aws.ec2 import Ec2
from fakes.aws.nodes import Nodes
from fakes.aws.wire import AwsError

Parameters = Mapping[str, Any]
_START_S, _JOIN_S, _STOP_S = 30.0, 40.0, 45.0


class LaunchError(Exception):
    """Instances could not be launched; the message is the Auto Scaling group's."""


@dataclass(frozen=True)
class Launch:
    """How a group's instances are launched: what eksctl's launch template says.

    Attributes:
        security_groups: ids.
        volume_gib: root volume.
        efa: an EFA interface per instance.
        placement_group: its name.
        reservation: id of a capacity reservation, or ARN of a resource group of some.
    """

    security_groups: tuple[str, ...] = ()
    volume_gib: int = 80
    efa: bool = False
    placement_group: str | None = None
    reservation: str | None = None


@dataclass
class Group:
    """An Auto Scaling group.

    Attributes:
        nodegroup: EKS's node group, as DescribeNodegroup gives it.
        zones: subnet ids by zone.
        instances: id → node name.
    """

    name: str
    nodegroup: dict[str, Any]
    launch: Launch
    zones: dict[str, str]
    instances: dict[str, str] = field(default_factory=dict)
    activities: list[dict[str, Any]] = field(default_factory=list)

    @property
    def type_name(self) -> str:
        return str(self.nodegroup["instanceTypes"][0])

    @property
    def market(self) -> str:
        """ "ON_DEMAND", "SPOT" or "CAPACITY_BLOCK"."""
        return str(self.nodegroup["capacityType"])

    @property
    def spot(self) -> bool:
        return self.market == "SPOT"


@dataclass
class Machines:
    """All groups.

    Attributes:
        left: how many more instances of a type a zone has; unlimited where nothing is said.
        quotas: Service Quotas' values by code.
        groups: by name.
    """

    clock: Clock
    ec2: Ec2
    nodes: Nodes
    quotas: Mapping[str, float]
    client: Callable[[], Any]
    left: dict[tuple[str, str], int] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    _starting: threading.Lock = field(default_factory=threading.Lock)

    def add(self, nodegroup: dict[str, Any], launch: Launch, zones: dict[str, str]) -> Group:
        """A new group, without instances."""
        name = f"eks-{nodegroup['nodegroupName']}-{uuid.uuid4()}"
        self.groups[name] = Group(name, nodegroup, launch, zones)
        return self.groups[name]

    def scale(self, group: Group, count: int) -> None:
        """Start or stop instances until there are so many; raises LaunchError where one can't be started."""
        while len(group.instances) < count:
            self.clock.wait(_START_S)
            try:
                self._start(group)
            except (LaunchError, AwsError) as error:
                self._record(group, "Failed", "Launching a new EC2 instance", str(error))
                raise LaunchError(str(error)) from error
        while len(group.instances) > count:
            # As documented: the group chooses, and does not ask who has drained what.
            self.stop(group, next(iter(group.instances)))
        if group.instances and count:
            self.clock.wait(_JOIN_S)

    def remove(self, group: Group) -> None:
        """Stop all instances and forget the group."""
        for instance in list(group.instances):
            self.stop(group, instance, wait=False)
        self.clock.wait(_STOP_S)
        self.groups.pop(group.name, None)

    def stop(self, group: Group, instance: str, *, wait: bool = True) -> None:
        """Terminate one instance; its node goes with it."""
        if wait:
            self.clock.wait(_STOP_S)
        zone = self._zone_of(instance)
        self.client().terminate_instances(InstanceIds=[instance])
        self.nodes.leave(group.instances.pop(instance))
        if (group.type_name, zone) in self.left:
            self.left[group.type_name, zone] += 1
        if group.launch.reservation:
            self.ec2.reserved(group.launch.reservation)[0]["AvailableInstanceCount"] += 1
        self._record(group, "Successful", f"Terminating EC2 instance: {instance}", "")

    def describe_auto_scaling_groups(self, asked: Parameters) -> dict[str, Any]:
        names = asked.get("AutoScalingGroupNames") or list(self.groups)
        return {"AutoScalingGroups": [_described(self.groups[name]) for name in names if name in self.groups]}

    def describe_scaling_activities(self, asked: Parameters) -> dict[str, Any]:
        group = self._group(asked["AutoScalingGroupName"])
        return {"Activities": list(reversed(group.activities))}

    def terminate_instance_in_auto_scaling_group(self, asked: Parameters) -> dict[str, Any]:
        identifier = asked["InstanceId"]
        group = next((group for group in self.groups.values() if identifier in group.instances), None)
        if group is None:
            raise AwsError(
                "ValidationError",
                f"Instance Id not found - No managed instance found for instance ID: {identifier}",
            )
        scaling = group.nodegroup["scalingConfig"]
        if asked["ShouldDecrementDesiredCapacity"]:
            if scaling["desiredSize"] <= scaling["minSize"]:
                message = (
                    f"Currently, desiredSize equals minSize ({scaling['minSize']}). Terminating instance without "
                    "replacement will violate group's min size constraint. Either set shouldDecrementDesiredCapacity "
                    "flag to false or lower group's min size."
                )
                raise AwsError("ValidationError", message)
            scaling["desiredSize"] -= 1
        count = scaling["desiredSize"]

        def go() -> None:
            self.stop(group, identifier)
            self.scale(group, count)

        self.clock.start(go)
        return {"Activity": self._record(group, "InProgress", f"Terminating EC2 instance: {identifier}", "")}

    def _group(self, name: str) -> Group:
        if name not in self.groups:
            raise AwsError("ValidationError", "AutoScalingGroup name not found - AutoScalingGroup not found")
        return self.groups[name]

    def _record(self, group: Group, status: str, what: str, why: str) -> dict[str, Any]:
        activity = {
            "ActivityId": str(uuid.uuid4()),
            "AutoScalingGroupName": group.name,
            "Description": what if status != "Failed" else f"{what}.  Status Reason: {why}",
            "Cause": "a difference between desired and actual capacity",
            "StartTime": self.clock.now(),
            "EndTime": self.clock.now(),
            "StatusCode": status,
            "StatusMessage": why,
            "Progress": 100,
        }
        group.activities.append(activity)
        return activity

    def _zone_of(self, instance: str) -> str:
        found = self.client().describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
        return str(found["Placement"]["AvailabilityZone"])

    def _start(self, group: Group) -> None:
        kind = instance_type(group.type_name)
        if kind is None:
            raise LaunchError(f"Invalid instance type: {group.type_name}")
        with self._starting:  # two groups must not take the same last instance
            zone = self._zone_with_room(group, kind)
            self._check_quota(group, kind)
            instance = self._run(group, zone)
            if (kind.name, zone) in self.left:
                self.left[kind.name, zone] -= 1
        name = instance["PrivateDnsName"]
        group.instances[instance["InstanceId"]] = name
        self._record(group, "Successful", f"Launching a new EC2 instance: {instance['InstanceId']}", "")
        self.nodes.join(name, instance["InstanceId"], zone, kind, group.nodegroup, efa=group.launch.efa)

    def _zone_with_room(self, group: Group, kind: InstanceType) -> str:
        if group.launch.reservation:
            return self._reserved_zone(group, kind)
        fewest = sorted(group.zones, key=lambda zone: self.left.get((kind.name, zone), 1 << 20), reverse=True)
        zone = fewest[0]
        offered = self.ec2.zones_of(kind.name)
        if zone not in offered:
            raise LaunchError(
                f"Your requested instance type ({kind.name}) is not supported in your requested Availability Zone "
                f"({zone}). Please retry your request by not specifying an Availability Zone or choosing "
                f"{', '.join(sorted(offered))}. Launching EC2 instance failed."
            )
        if self.left.get((kind.name, zone), 1) > 0:
            return zone
        if group.spot:
            raise LaunchError(
                "There is no Spot capacity available that matches your request. Launching EC2 instance failed."
            )
        raise LaunchError(
            f"We currently do not have sufficient {kind.name} capacity in the Availability Zone you requested "
            f"({zone}). Our system will be working on provisioning additional capacity. You can currently get "
            f"{kind.name} capacity by not specifying an Availability Zone in your request or choosing "
            f"{', '.join(sorted(offered - {zone}))}. Launching EC2 instance failed."
        )

    def _reserved_zone(self, group: Group, kind: InstanceType) -> str:
        for one in self.ec2.reserved(str(group.launch.reservation)):
            in_group = one.get("PlacementGroupArn", "").rpartition("/")[2]
            fits = (
                one["State"] == "active"
                and one["InstanceType"] == kind.name
                and (one["ReservationType"] == "capacity-block") == (group.market == "CAPACITY_BLOCK")
                and one["AvailabilityZone"] in group.zones
                and one["AvailableInstanceCount"] > 0
                and in_group == (group.launch.placement_group or "")
            )
            if fits:
                one["AvailableInstanceCount"] -= 1
                return str(one["AvailabilityZone"])
        raise LaunchError(
            "The requested reservation does not have sufficient compatible and available capacity for this "
            "request. Launching EC2 instance failed."
        )

    def _check_quota(self, group: Group, kind: InstanceType) -> None:
        code = kind.spot_quota if group.spot else kind.quota
        limit = self.quotas.get(code, 0.0)
        running = self.client().describe_instances(
            Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        )["Reservations"]
        used = 0
        for one in (instance for reservation in running for instance in reservation["Instances"]):
            other = instance_type(one["InstanceType"])
            spot = one.get("InstanceLifecycle") == "spot"
            if other is not None and (other.spot_quota if spot else other.quota) == code:
                used += other.vcpus
        if used + kind.vcpus > limit and not group.launch.reservation:
            raise LaunchError(
                f"You have requested more vCPU capacity than your current vCPU limit of {limit:.0f} allows for the "
                "instance bucket that the specified instance type belongs to. Please visit "
                "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit. "
                "Launching EC2 instance failed."
            )

    def _run(self, group: Group, zone: str) -> dict[str, Any]:
        tags = [{"Key": key, "Value": value} for key, value in _tags(group).items()]
        interface = {
            "DeviceIndex": 0,
            "SubnetId": group.zones[zone],
            "Groups": list(group.launch.security_groups),
            "InterfaceType": "efa" if group.launch.efa else "interface",
            "DeleteOnTermination": True,
        }
        volume = {"VolumeSize": group.launch.volume_gib, "VolumeType": "gp3", "DeleteOnTermination": True}
        placement = {"AvailabilityZone": zone}
        if group.launch.placement_group:
            placement["GroupName"] = group.launch.placement_group
        answer = self.client().run_instances(
            ImageId="ami-0fa4e00000000000a",
            InstanceType=group.type_name,
            MinCount=1,
            MaxCount=1,
            NetworkInterfaces=[interface],
            BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": volume}],
            Placement=placement,
            TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
            **({"InstanceMarketOptions": {"MarketType": "spot"}} if group.spot else {}),
        )
        return dict(answer["Instances"][0])


def _tags(group: Group) -> dict[str, str]:
    """EKS's own on instances, and those of eksctl's launch template."""
    cluster, name = group.nodegroup["clusterName"], group.nodegroup["nodegroupName"]
    return {
        **group.nodegroup["tags"],
        "eks:cluster-name": cluster,
        "eks:nodegroup-name": name,
        f"kubernetes.io/cluster/{cluster}": "owned",
        "aws:autoscaling:groupName": group.name,
    }


def _described(group: Group) -> dict[str, Any]:
    scaling = group.nodegroup["scalingConfig"]
    return {
        "AutoScalingGroupName": group.name,
        "MinSize": scaling["minSize"],
        "MaxSize": scaling["maxSize"],
        "DesiredCapacity": scaling["desiredSize"],
        "DefaultCooldown": 300,
        "AvailabilityZones": sorted(group.zones),
        "HealthCheckType": "EC2",
        "CreatedTime": group.nodegroup["createdAt"],
        "VPCZoneIdentifier": ",".join(group.zones.values()),
        "Instances": [
            {
                "InstanceId": instance,
                "InstanceType": group.type_name,
                "AvailabilityZone": sorted(group.zones)[0],
                "LifecycleState": "InService",
                "HealthStatus": "Healthy",
                "ProtectedFromScaleIn": False,
            }
            for instance in group.instances
        ],
        "Tags": [
            {
                "Key": key,
                "Value": value,
                "ResourceId": group.name,
                "ResourceType": "auto-scaling-group",
                "PropagateAtLaunch": True,
            }
            for key, value in _tags(group).items()
        ],
    }
