"""What moto's EC2 lacks or takes too easily: placement groups, capacity reservations and blocks, zones that do not
offer a type, and things that can't be deleted while an interface uses them.

Not here: filters other than those named in each operation (refused), reservations made by calls.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from fakes.aws.faults import Faults
from fakes.aws.wire import AwsError

Parameters = Mapping[str, Any]


@dataclass
class Ec2:
    """The overlay's part of EC2; an operation that returns None is moto's.

    Attributes:
        client: a boto3 client of the fake itself.
        offerings: the zones that offer an instance type, where they are not those of moto's own data.
        reservations: as DescribeCapacityReservations gives them.
        reservation_groups: ids of reservations by the ARN of a resource group.
        block_offerings: as DescribeCapacityBlockOfferings gives them.
        placement_groups: by name, as DescribePlacementGroups gives them.
    """

    region: str
    faults: Faults
    client: Callable[[], Any]
    offerings: dict[str, set[str]] = field(default_factory=dict)
    reservations: list[dict[str, Any]] = field(default_factory=list)
    reservation_groups: dict[str, list[str]] = field(default_factory=dict)
    block_offerings: list[dict[str, Any]] = field(default_factory=list)
    placement_groups: dict[str, dict[str, Any]] = field(default_factory=dict)

    def reserve(
        self,
        instance_type: str,
        zone: str,
        count: int,
        *,
        block: bool = False,
        hours: float = 24,
        targeted: bool = True,
        placement_group: str | None = None,
    ) -> str:
        """An active capacity reservation, as if made in the console; its id.

        Args:
            block: a capacity block, which ends after so many hours.
            targeted: only launches that name it get it.
            placement_group: the ARN of the one that it was made in.
        """
        identifier = f"cr-{len(self.reservations):017x}"
        now = datetime.now(UTC)
        self.reservations.append(
            {
                "CapacityReservationId": identifier,
                "OwnerId": self.faults.arn.split(":")[4],
                "CapacityReservationArn": f"arn:aws:ec2:{self.region}:123456789012:capacity-reservation/{identifier}",
                "InstanceType": instance_type,
                "InstancePlatform": "Linux/UNIX",
                "AvailabilityZone": zone,
                "Tenancy": "default",
                "TotalInstanceCount": count,
                "AvailableInstanceCount": count,
                "EbsOptimized": True,
                "EphemeralStorage": False,
                "State": "active",
                "StartDate": now,
                "CreateDate": now,
                "InstanceMatchCriteria": "targeted" if targeted or block else "open",
                "ReservationType": "capacity-block" if block else "default",
                "EndDateType": "limited" if block else "unlimited",
                **({"EndDate": now + timedelta(hours=hours)} if block else {}),
                **({"PlacementGroupArn": placement_group} if placement_group else {}),
                "Tags": [],
            }
        )
        return identifier

    def reserved(self, identifier: str) -> list[dict[str, Any]]:
        """The reservations that an id or a resource group's ARN names."""
        return [self.reservation(one) for one in self.reservation_groups.get(identifier, [identifier])]

    def reservation(self, identifier: str) -> dict[str, Any]:
        """Raises AwsError where there is none of that id."""
        for one in self.reservations:
            if one["CapacityReservationId"] == identifier:
                return one
        message = f"The capacity reservation ID '{identifier}' does not exist"
        raise AwsError("InvalidCapacityReservationId.NotFound", message)

    def describe_capacity_reservations(self, asked: Parameters) -> dict[str, Any]:
        ids = asked.get("CapacityReservationIds")
        found = [self.reservation(one) for one in ids] if ids else self.reservations
        keys = {
            "instance-type": "InstanceType",
            "availability-zone": "AvailabilityZone",
            "state": "State",
            "instance-match-criteria": "InstanceMatchCriteria",
        }
        found = _filtered(found, asked, keys)
        page, token = self.faults.page(found, asked.get("NextToken"), asked.get("MaxResults"))
        return {"CapacityReservations": page, **({"NextToken": token} if token else {})}

    def describe_capacity_block_offerings(self, asked: Parameters) -> dict[str, Any]:
        found = [one for one in self.block_offerings if one["InstanceType"] == asked.get("InstanceType")]
        return {"CapacityBlockOfferings": found}

    def create_placement_group(self, asked: Parameters) -> dict[str, Any]:
        name = asked["GroupName"]
        if name in self.placement_groups:
            raise AwsError("InvalidPlacementGroup.Duplicate", f"The placement group '{name}' already exists.")
        tags = next((row["Tags"] for row in asked.get("TagSpecifications", ())), [])
        group = {
            "GroupName": name,
            "GroupId": f"pg-{len(self.placement_groups):017x}",
            "GroupArn": f"arn:aws:ec2:{self.region}:123456789012:placement-group/{name}",
            "State": "available",
            "Strategy": asked.get("Strategy", "cluster"),
            "Tags": list(tags),
        }
        self.placement_groups[name] = group
        return {"PlacementGroup": group}

    def describe_placement_groups(self, asked: Parameters) -> dict[str, Any]:
        for name in asked.get("GroupNames", ()):
            self._placement_group(name)
        names = asked.get("GroupNames") or list(self.placement_groups)
        found = [self.placement_groups[name] for name in names]
        return {
            "PlacementGroups": _filtered(found, asked, {"group-name": "GroupName", "strategy": "Strategy"})
        }

    def delete_placement_group(self, asked: Parameters) -> dict[str, Any]:
        name = asked["GroupName"]
        self._placement_group(name)
        instances = _instances(self.client().describe_instances())
        if any(instance["Placement"].get("GroupName") == name for instance in instances):
            raise AwsError(
                "InvalidPlacementGroup.InUse",
                f"The placement group '{name}' is in use and may not be deleted.",
            )
        del self.placement_groups[name]
        return {}

    def _placement_group(self, name: str) -> dict[str, Any]:
        if name not in self.placement_groups:
            raise AwsError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
        return self.placement_groups[name]

    def describe_instance_type_offerings(self, asked: Parameters) -> dict[str, Any] | None:
        """moto's data without the zones that `offerings` leaves out; None, so moto's own, where it says nothing."""
        if not self.offerings or asked.get("LocationType") != "availability-zone" or self.faults.page_size:
            return None
        names = {
            name
            for row in asked.get("Filters", ())
            if row["Name"] == "instance-type"
            for name in row["Values"]
        }
        if not names & self.offerings.keys():
            return None
        found = [
            {"InstanceType": name, "LocationType": "availability-zone", "Location": zone}
            for name in sorted(names)
            for zone in sorted(self.zones_of(name))
        ]
        wanted = {
            zone for row in asked.get("Filters", ()) if row["Name"] == "location" for zone in row["Values"]
        }
        return {"InstanceTypeOfferings": [row for row in found if not wanted or row["Location"] in wanted]}

    def zones_of(self, instance_type: str) -> set[str]:
        """The zones that offer a type."""
        if instance_type in self.offerings:
            return self.offerings[instance_type]
        answer = self.client().describe_instance_type_offerings(
            LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": [instance_type]}]
        )
        return {row["Location"] for row in answer["InstanceTypeOfferings"]}

    def delete_security_group(self, asked: Parameters) -> None:
        identifier = asked.get("GroupId", "")
        if self.interfaces("group-id", identifier):
            raise AwsError("DependencyViolation", f"resource {identifier} has a dependent object")
        others = self.client().describe_security_groups(
            Filters=[{"Name": "ip-permission.group-id", "Values": [identifier]}]
        )["SecurityGroups"]
        if any(group["GroupId"] != identifier for group in others):
            raise AwsError("DependencyViolation", f"resource {identifier} has a dependent object")

    def delete_subnet(self, asked: Parameters) -> None:
        identifier = asked["SubnetId"]
        if self.interfaces("subnet-id", identifier):
            message = f"The subnet '{identifier}' has dependencies and cannot be deleted."
            raise AwsError("DependencyViolation", message)

    def delete_vpc(self, asked: Parameters) -> None:
        identifier = asked["VpcId"]
        mine = [{"Name": "vpc-id", "Values": [identifier]}]
        groups = self.client().describe_security_groups(Filters=mine)["SecurityGroups"]
        if any(group["GroupName"] != "default" for group in groups):
            raise AwsError(
                "DependencyViolation", f"The vpc '{identifier}' has dependencies and cannot be deleted."
            )

    def delete_nat_gateway(self, asked: Parameters) -> None:
        """Its interface goes with it, which moto forgets."""
        gateways = self.client().describe_nat_gateways(NatGatewayIds=[asked["NatGatewayId"]])["NatGateways"]
        for gateway in gateways:
            for address in gateway["NatGatewayAddresses"]:
                if identifier := address.get("NetworkInterfaceId"):
                    self.client().delete_network_interface(NetworkInterfaceId=identifier)

    def interfaces(self, name: str, value: str) -> list[dict[str, Any]]:
        """Network interfaces by one filter."""
        filters = [{"Name": name, "Values": [value]}]
        answer = self.client().describe_network_interfaces(Filters=filters)
        return list(answer["NetworkInterfaces"])


class ResourceGroups:
    """`ListGroupResources`, for groups of capacity reservations."""

    def __init__(self, ec2: Ec2) -> None:
        self._ec2 = ec2

    def list_group_resources(self, asked: Parameters) -> dict[str, Any]:
        name = asked.get("Group") or asked.get("GroupName")
        if name not in self._ec2.reservation_groups:
            raise AwsError("NotFoundException", f"Group {name} not found", 404)
        found = [
            {
                "Identifier": {
                    "ResourceArn": self._ec2.reservation(one)["CapacityReservationArn"],
                    "ResourceType": "AWS::EC2::CapacityReservation",
                }
            }
            for one in self._ec2.reservation_groups[str(name)]
        ]
        return {"Resources": found, "ResourceIdentifiers": [one["Identifier"] for one in found]}


def _instances(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        instance
        for reservation in answer["Reservations"]
        for instance in reservation["Instances"]
        if instance["State"]["Name"] not in {"terminated", "shutting-down"}
    ]


def _filtered(
    items: list[dict[str, Any]], asked: Parameters, keys: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Those that fit every filter; raises AwsError for a filter that nobody knows."""
    for row in asked.get("Filters", ()):
        name, values = row["Name"], row["Values"]
        if name == "tag-key":
            items = [item for item in items if any(tag["Key"] in values for tag in item["Tags"])]
        elif name.startswith("tag:"):
            key = name.removeprefix("tag:")
            items = [
                item for item in items if any(t["Key"] == key and t["Value"] in values for t in item["Tags"])
            ]
        elif name in keys:
            items = [item for item in items if item.get(keys[name]) in values]
        else:
            raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return items
