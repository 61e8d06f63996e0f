"""The tagging API: moto's answer, with EKS's resources and placement groups, which moto leaves out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fakes.aws.ec2 import Ec2
from fakes.aws.eks import Eks
from fakes.aws.faults import Faults


@dataclass
class Tags:
    """`GetResources`; the rest is moto's.

    Attributes:
        client: boto3's client of moto's own tagging API.
        late: EKS's resources are not yet in the answer, as may be for minutes after they were made.
    """

    eks: Eks
    ec2: Ec2
    faults: Faults
    client: Callable[[], Any]
    late: bool = False

    def get_resources(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        request = {
            key: asked[key]
            for key in ("TagFilters", "ResourceTypeFilters", "ResourceARNList")
            if asked.get(key)
        }
        pages = self.client().get_paginator("get_resources").paginate(**request)
        found = [row for page in pages for row in page["ResourceTagMappingList"]]
        found += [
            {"ResourceARN": arn, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
            for arn, tags in self._own().items()
            if _is_asked(arn, tags, asked)
        ]
        page, token = self.faults.page(
            found, asked.get("PaginationToken"), asked.get("ResourcesPerPage", 100)
        )
        return {"ResourceTagMappingList": page, "PaginationToken": token or ""}

    def _own(self) -> dict[str, dict[str, str]]:
        groups = {
            group["GroupArn"]: {tag["Key"]: tag["Value"] for tag in group["Tags"]}
            for group in self.ec2.placement_groups.values()
        }
        return groups if self.late else {**self.eks.tagged(), **groups}


def _is_asked(arn: str, tags: Mapping[str, str], asked: Mapping[str, Any]) -> bool:
    service, kind = arn.split(":")[2], arn.split(":", 5)[5].split("/")[0]
    types = asked.get("ResourceTypeFilters")
    if types and service not in types and f"{service}:{kind}" not in types:
        return False
    if asked.get("ResourceARNList") and arn not in asked["ResourceARNList"]:
        return False
    return all(
        row["Key"] in tags and (not row.get("Values") or tags[row["Key"]] in row["Values"])
        for row in asked.get("TagFilters", ())
    )
