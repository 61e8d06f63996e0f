"""A cluster's network, as eksctl's stack has it, and what all resources of such stacks have in common."""

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from fakes.aws.stacks import Resource, ResourceFailedError


class Vpc:
    """The network of a cluster: made, or named by the config.

    Attributes:
        public, private: subnet ids by zone.
    """

    def __init__(self, ec2: Any, config: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        self._ec2, self._config, self._tags = ec2, config, tags
        self.vpc_id = config.get("vpc", {}).get("id", "")
        given = config.get("vpc", {}).get("subnets", {})
        self.public = {zone: about["id"] for zone, about in given.get("public", {}).items()}
        self.private = {zone: about["id"] for zone, about in given.get("private", {}).items()}
        self.control_plane_group = ""
        self._gateway = ""

    def resources(self) -> list[Resource]:
        """In the order in which they are made."""
        groups = [
            self._security_group(
                "ControlPlaneSecurityGroup", "Communication between the control plane and worker nodegroups"
            ),
            self._security_group(
                "ClusterSharedNodeSecurityGroup", "Communication between all nodes in the cluster"
            ),
        ]
        if self.public or self.private:
            return groups
        zones = self._config["availabilityZones"]
        cidr = ipaddress.ip_network(self._config.get("vpc", {}).get("cidr", "192.168.0.0/16"))
        blocks = [str(block) for block in cidr.subnets(new_prefix=19)]
        subnets = [
            self._subnet(kind, zone, blocks[index * len(zones) + number])
            for index, kind in enumerate(("Public", "Private"))
            for number, zone in enumerate(zones)
        ]
        nat = [] if self._nat == "Disable" else [self._address(), self._nat_gateway()]
        return [self._network(str(cidr)), self._internet_gateway(), *subnets, *nat, *groups]

    @property
    def _nat(self) -> str:
        return str(self._config.get("vpc", {}).get("nat", {}).get("gateway", "Single"))

    def _network(self, cidr: str) -> Resource:
        def make() -> str:
            answer = self._ec2.create_vpc(
                CidrBlock=cidr, TagSpecifications=tag_specification("vpc", self._tags)
            )
            self.vpc_id = answer["Vpc"]["VpcId"]
            return self.vpc_id

        return Resource("VPC", "AWS::EC2::VPC", make, remover(self._ec2, "delete_vpc", "VpcId"))

    def _internet_gateway(self) -> Resource:
        def make() -> str:
            tags = tag_specification("internet-gateway", self._tags)
            gateway = self._ec2.create_internet_gateway(TagSpecifications=tags)["InternetGateway"]
            self._ec2.attach_internet_gateway(
                InternetGatewayId=gateway["InternetGatewayId"], VpcId=self.vpc_id
            )
            return str(gateway["InternetGatewayId"])

        def remove(identifier: str) -> None:
            try:
                self._ec2.detach_internet_gateway(InternetGatewayId=identifier, VpcId=self.vpc_id)
            except ClientError:
                return  # gone already
            self._ec2.delete_internet_gateway(InternetGatewayId=identifier)

        return Resource("InternetGateway", "AWS::EC2::InternetGateway", make, remove)

    def _subnet(self, kind: str, zone: str, cidr: str) -> Resource:
        name = f"Subnet{kind}{zone.replace('-', '').upper()}"
        role = "elb" if kind == "Public" else "internal-elb"
        tags = {**self._tags, f"kubernetes.io/role/{role}": "1"}

        def make() -> str:
            answer = self._ec2.create_subnet(
                VpcId=self.vpc_id,
                CidrBlock=cidr,
                AvailabilityZone=zone,
                TagSpecifications=tag_specification("subnet", tags),
            )
            identifier = str(answer["Subnet"]["SubnetId"])
            (self.public if kind == "Public" else self.private)[zone] = identifier
            return identifier

        return Resource(name, "AWS::EC2::Subnet", make, remover(self._ec2, "delete_subnet", "SubnetId"))

    def _address(self) -> Resource:
        def make() -> str:
            answer = self._ec2.allocate_address(
                Domain="vpc", TagSpecifications=tag_specification("elastic-ip", self._tags)
            )
            self._allocation = answer["AllocationId"]
            return str(self._allocation)

        return Resource("NATIP", "AWS::EC2::EIP", make, remover(self._ec2, "release_address", "AllocationId"))

    def _nat_gateway(self) -> Resource:
        def make() -> str:
            answer = self._ec2.create_nat_gateway(
                SubnetId=next(iter(self.public.values())),
                AllocationId=self._allocation,
                TagSpecifications=tag_specification("natgateway", self._tags),
            )
            return str(answer["NatGateway"]["NatGatewayId"])

        remove = remover(self._ec2, "delete_nat_gateway", "NatGatewayId")
        return Resource("NATGateway", "AWS::EC2::NatGateway", make, remove, seconds=60.0)

    def _security_group(self, name: str, description: str) -> Resource:
        def make() -> str:
            answer = self._ec2.create_security_group(
                GroupName=f"{self._tags['aws:cloudformation:stack-name']}-{name}",
                Description=description,
                VpcId=self.vpc_id,
                TagSpecifications=tag_specification("security-group", self._tags),
            )
            if name == "ControlPlaneSecurityGroup":
                self.control_plane_group = answer["GroupId"]
            return str(answer["GroupId"])

        remove = remover(self._ec2, "delete_security_group", "GroupId")
        return Resource(name, "AWS::EC2::SecurityGroup", make, remove)


def tag_specification(kind: str, tags: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}]


def remover(client: Any, operation: str, key: str) -> Callable[[str], None]:
    """Deletes by an id; what is gone already is fine, what is refused is CloudFormation's reason."""

    def remove(identifier: str) -> None:
        try:
            getattr(client, operation)(**{key: identifier})
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if "NotFound" in code or "Unknown" in code or code == "NoSuchEntity":
                return
            message = f"{error.response['Error']['Message']} (Service: Ec2, Status Code: 400, Request ID: 0)"
            raise ResourceFailedError(handler_message(message, "InvalidRequest")) from error

    return remove


def handler_message(message: str, code: str) -> str:
    token = "3f0c0d4e-4e9f-11ef-9a1f-0a58a9feac02"
    return f'Resource handler returned message: "{message}" (RequestToken: {token}, HandlerErrorCode: {code})'
