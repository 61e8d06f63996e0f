"""What an account may do, has and pays: STS's identity, IAM's simulation, Service Quotas for EC2, the price list.

Shapes are boto3's. Not here: policies (an action is allowed unless it is in `Faults.denied`), conditions, resources.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from fakes.aws.faults import Faults
from fakes.aws.wire import AwsError

Parameters = Mapping[str, Any]


class Sts:
    """`GetCallerIdentity` and `AssumeRole`; the rest of STS is moto's."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def get_caller_identity(self, asked: Parameters) -> dict[str, Any]:
        arn = self._faults.arn_of(asked["AccessKeyId"])
        return {"UserId": "AIDAFAKEFAKEFAKEFAKE0", "Account": arn.split(":")[4], "Arn": arn}

    def assume_role(self, asked: Parameters) -> dict[str, Any]:
        account, role = asked["RoleArn"].split(":")[4], asked["RoleArn"].rpartition("/")[2]
        arn = f"arn:aws:sts::{account}:assumed-role/{role}/{asked['RoleSessionName']}"
        key = f"ASIAFAKE{len(self._faults.callers):012d}"
        self._faults.callers[key] = arn
        credentials = {
            "AccessKeyId": key,
            "SecretAccessKey": "fake",
            "SessionToken": "fake",
            "Expiration": datetime.now(UTC) + timedelta(seconds=asked.get("DurationSeconds") or 3600),
        }
        return {"Credentials": credentials, "AssumedRoleUser": {"AssumedRoleId": f"AROA:{role}", "Arn": arn}}


def role_credentials(faults: Faults) -> tuple[int, dict[str, str], bytes]:
    """SSO's `GetRoleCredentials`: status, headers and body. No token is looked at."""
    if faults.credentials != "good":
        headers = {"Content-Type": "application/json", "x-amzn-errortype": "UnauthorizedException"}
        return 401, headers, json.dumps({"message": "Session token not found or invalid"}).encode()
    found = {
        "accessKeyId": "ASIAFAKESSO000000000",
        "secretAccessKey": "fake",
        "sessionToken": "fake",
        "expiration": int((time.time() + 3600) * 1000),
    }
    return 200, {"Content-Type": "application/json"}, json.dumps({"roleCredentials": found}).encode()


class Iam:
    """`SimulatePrincipalPolicy`; the rest of IAM is moto's."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def simulate_principal_policy(self, asked: Parameters) -> dict[str, Any]:
        source = asked["PolicySourceArn"]
        if not source.startswith("arn:aws:iam::"):
            raise AwsError(
                "InvalidInput", f"Invalid Entity Arn: {source} does not clearly define entity type and name."
            )
        results = [
            {
                "EvalActionName": action,
                "EvalResourceName": (asked.get("ResourceArns") or ["*"])[0],
                "EvalDecision": "implicitDeny" if self._faults.denies(action) else "allowed",
                "MatchedStatements": [],
                "MissingContextValues": [],
            }
            for action in asked["ActionNames"]
        ]
        page, token = self._faults.page(results, asked.get("Marker"), asked.get("MaxItems"))
        return {
            "EvaluationResults": page,
            "IsTruncated": token is not None,
            **({"Marker": token} if token else {}),
        }


@dataclass
class Quotas:
    """Service Quotas of EC2, in vCPUs.

    Attributes:
        values: by quota code; a code that is not in it has never been changed from its default, or does not exist.
        requested: what was asked for: pairs of code and value.
    """

    faults: Faults
    values: dict[str, float] = field(
        default_factory=lambda: {
            "L-DB2E81BA": 192.0,
            "L-3819A6DF": 192.0,
            "L-417A185B": 0.0,
            "L-7212CCBC": 0.0,
            "L-1216C47A": 256.0,
            "L-34B43A08": 256.0,
        }
    )
    requested: list[tuple[str, float]] = field(default_factory=list)

    def get_service_quota(self, asked: Parameters) -> dict[str, Any]:
        return {"Quota": self._quota(asked["ServiceCode"], asked["QuotaCode"])}

    def get_aws_default_service_quota(self, asked: Parameters) -> dict[str, Any]:
        quota = self._quota(asked["ServiceCode"], asked["QuotaCode"])
        return {"Quota": {**quota, "Value": _DEFAULTS.get(asked["QuotaCode"], 0.0)}}

    def list_service_quotas(self, asked: Parameters) -> dict[str, Any]:
        quotas = [self._quota(asked["ServiceCode"], code) for code in self.values]
        page, token = self.faults.page(quotas, asked.get("NextToken"), asked.get("MaxResults"))
        return {"Quotas": page, **({"NextToken": token} if token else {})}

    def request_service_quota_increase(self, asked: Parameters) -> dict[str, Any]:
        quota = self._quota(asked["ServiceCode"], asked["QuotaCode"])
        if asked["DesiredValue"] <= quota["Value"]:
            raise AwsError(
                "IllegalArgumentException", "The desired value must be larger than the current one."
            )
        if any(code == asked["QuotaCode"] for code, _ in self.requested):
            raise AwsError(
                "ResourceAlreadyExistsException", "Only one open service quota increase request is allowed."
            )
        self.requested.append((asked["QuotaCode"], asked["DesiredValue"]))
        return {"RequestedQuota": self._request(asked["QuotaCode"], asked["DesiredValue"])}

    def list_requested_service_quota_change_history_by_quota(self, asked: Parameters) -> dict[str, Any]:
        found = [self._request(code, value) for code, value in self.requested if code == asked["QuotaCode"]]
        return {"RequestedQuotas": found}

    def _request(self, code: str, value: float) -> dict[str, Any]:
        return {
            "Id": f"request-{code}",
            "ServiceCode": "ec2",
            "QuotaCode": code,
            "DesiredValue": value,
            "Status": "PENDING",
        }

    def _quota(self, service: str, code: str) -> dict[str, Any]:
        if service != "ec2" or code not in self.values:
            raise AwsError(
                "NoSuchResourceException", "The request failed because the specified quota does not exist."
            )
        return {
            "ServiceCode": "ec2",
            "QuotaCode": code,
            "QuotaName": f"vCPUs of {code}",
            "Value": self.values[code],
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }


# What an account has that has asked for nothing: often no GPUs at all.
_DEFAULTS = {"L-1216C47A": 5.0, "L-34B43A08": 5.0}

# Prices of us-east-2, Linux, on demand, in USD per hour; deliberately not those of the product's own list.
_INSTANCES = {
    "m7i.large": 0.1108,
    "m7i.xlarge": 0.2216,
    "m7i.2xlarge": 0.4432,
    "g5.8xlarge": 2.648,
    "g6.4xlarge": 1.5232,
    "g6.8xlarge": 2.1144,
    "g6.12xlarge": 4.7016,
    "g6e.8xlarge": 4.62856,
    "g7e.8xlarge": 5.36824,
    "p5.48xlarge": 56.04,
    "p5en.48xlarge": 64.296,
}
_PREFIXES = {"us-east-1": "", "us-east-2": "USE2-", "us-west-2": "USW2-"}


@dataclass
class Prices:
    """The Pricing API's `GetProducts`, on demand.

    Attributes:
        instances: USD per hour by instance type, Linux, shared tenancy.
        available: False: no product is known (an account without the service, a region that is not in the list).
    """

    region: str
    faults: Faults
    instances: dict[str, float] = field(default_factory=lambda: dict(_INSTANCES))
    available: bool = True

    def get_products(self, asked: Parameters) -> dict[str, Any]:
        if asked["ServiceCode"] not in {"AmazonEC2", "AmazonEKS", "AWSELB", "AmazonVPC"}:
            raise AwsError(
                "InvalidParameterException",
                f"Input Parameters are invalid. ServiceCode {asked['ServiceCode']}",
            )
        wanted = {
            row["Field"]: row["Value"] for row in asked.get("Filters", ()) if row["Type"] == "TERM_MATCH"
        }
        found = [
            json.dumps(product)
            for product in self._products(asked["ServiceCode"])
            if self.available and _matches(product["product"], wanted)
        ]
        page, token = self.faults.page(found, asked.get("NextToken"), asked.get("MaxResults"))
        return {"FormatVersion": "aws_v1", "PriceList": page, **({"NextToken": token} if token else {})}

    def _products(self, service: str) -> Iterator[dict[str, Any]]:
        start = _PREFIXES.get(self.region, f"{self.region.upper()}-")
        if service == "AmazonEC2":
            for name, usd in self.instances.items():
                yield from self._machines(start, name, usd)
            yield self._product(
                "NAT Gateway", {"usagetype": f"{start}NatGateway-Hours", "group": "NGW:NatGateway"}, 0.045
            )
            yield self._product(
                "NAT Gateway",
                {"usagetype": f"{start}NatGateway-Bytes", "group": "NGW:NatGateway"},
                0.045,
                "GB",
            )
            gp3 = {"volumeApiName": "gp3", "usagetype": f"{start}EBS:VolumeUsage.gp3"}
            yield self._product("Storage", gp3, 0.08, "GB-Mo")
            fast = {"volumeApiName": "gp3", "usagetype": f"{start}EBS:VolumeP-Throughput.gp3"}
            yield self._product("Provisioned Throughput", fast, 40.96, "GiBps-mo")
        if service == "AmazonEKS":
            eks_start = start or "USE1-"
            yield self._product("Compute", {"usagetype": f"{eks_start}AmazonEKS-Hours:perCluster"}, 0.10)
            yield self._product("Compute", {"usagetype": f"{eks_start}AmazonEKS-Hours:extendedSupport"}, 0.50)
        if service == "AWSELB":
            yield self._product("Load Balancer-Network", {"usagetype": f"{start}LoadBalancerUsage"}, 0.0225)
            yield self._product(
                "Load Balancer-Application", {"usagetype": f"{start}LoadBalancerUsage"}, 0.0225
            )

    def _machines(self, start: str, name: str, usd: float) -> Iterator[dict[str, Any]]:
        """The same type in the ways that a careless filter mixes up."""
        ways = (
            ("Linux", "Shared", "Used", "BoxUsage", 1.0),
            ("Linux", "Shared", "UnusedCapacityReservation", "UnusedBox", 1.0),
            ("Linux", "Shared", "AllocatedCapacityReservation", "Reservation", 0.0),
            ("Linux", "Dedicated", "Used", "DedicatedUsage", 1.1),
            ("Windows", "Shared", "Used", "BoxUsage", 1.9),
        )
        for system, tenancy, capacity, usage, factor in ways:
            about = {
                "instanceType": name,
                "operatingSystem": system,
                "tenancy": tenancy,
                "capacitystatus": capacity,
                "preInstalledSw": "NA",
                "licenseModel": "No License required",
                "marketoption": "OnDemand",
                "usagetype": f"{start}{usage}:{name}",
            }
            yield self._product("Compute Instance", about, round(usd * factor, 6))

    def _product(
        self, family: str, about: Mapping[str, str], usd: float, unit: str = "Hrs"
    ) -> dict[str, Any]:
        attributes = {"regionCode": self.region, "locationType": "AWS Region", **about}
        price = {"unit": unit, "pricePerUnit": {"USD": f"{usd:.10f}"}, "beginRange": "0", "endRange": "Inf"}
        return {
            "product": {"productFamily": family, "sku": "FAKE", "attributes": attributes},
            "terms": {"OnDemand": {"FAKE.TERM": {"priceDimensions": {"FAKE.TERM.RATE": price}}}},
        }


def _matches(product: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    has = {**product["attributes"], "productFamily": product["productFamily"]}
    return all(has.get(name) == value for name, value in wanted.items())
