"""AWS regions that EKS is in, and the letters of their zones.

Source: AWS's list of regions and zones. Of ap-northeast-1, ca-central-1 and us-west-1 accounts see some of the zones
only; the letters are those that eksctl takes. A region that is missing here may be newer than this table.
"""

from collections.abc import Mapping
from types import MappingProxyType

_THREE_ZONES = (
    *(
        "af-south-1",
        "ap-east-1",
        "ap-northeast-3",
        "ap-south-1",
        "ap-south-2",
        "ap-southeast-1",
        "ap-southeast-2",
    ),
    *("ap-southeast-3", "ap-southeast-4", "ap-southeast-5", "ap-southeast-7", "ca-west-1", "cn-northwest-1"),
    *("eu-central-1", "eu-central-2", "eu-north-1", "eu-south-1", "eu-south-2", "eu-west-1", "eu-west-2"),
    *("eu-west-3", "il-central-1", "me-central-1", "me-south-1", "mx-central-1", "sa-east-1", "us-east-2"),
    *("us-gov-east-1", "us-gov-west-1"),
)

ZONE_LETTERS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(_THREE_ZONES, "abc"),
        "ap-northeast-1": "acd",
        "ap-northeast-2": "abcd",
        "ca-central-1": "abd",
        "us-east-1": "abcdef",
        "us-west-1": "ac",
        "us-west-2": "abcd",
    }
)
"""The letters of the zones by region."""


def last_zone(region: str) -> str | None:
    """The last zone of a region; None where the region is not known.

    >>> last_zone("us-east-2")
    'us-east-2c'
    """
    letters = ZONE_LETTERS.get(region)
    return f"{region}{letters[-1]}" if letters else None
