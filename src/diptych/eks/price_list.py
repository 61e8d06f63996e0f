"""The things that have a price: how AWS's Pricing API finds each, and its list price of one day in one region."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType

from diptych.catalog.instances import instance_type

LISTED = date(2026, 7, 20)
LISTED_REGION = "us-east-1"

FREE_MIBPS = 125
FREE_IOPS = MappingProxyType({"gp3": 3000})
"""With the throughput above, what the price of a gp3 volume includes."""


@dataclass(frozen=True)
class Item:
    """Something with a price: how the Pricing API finds it, and its list price.

    Args:
        usage: the end of its usage type, which begins with a short name of the region.
        listed: US dollars in `LISTED_REGION`, for an hour, or for a month where `monthly`; None: not known.
        fields: of the product, as the API filters them.
    """

    service: str
    usage: str
    listed: float | None
    fields: Mapping[str, str] = field(default_factory=dict)
    monthly: bool = False


CONTROL_PLANE = Item("AmazonEKS", "AmazonEKS-Hours:perCluster", 0.10)
EXTENDED_SUPPORT = Item("AmazonEKS", "AmazonEKS-Hours:extendedSupport", 0.50)
NAT_GATEWAY = Item("AmazonEC2", "NatGateway-Hours", 0.045, {"productFamily": "NAT Gateway"})
PUBLIC_ADDRESS = Item("AmazonVPC", "PublicIPv4:InUseAddress", 0.005)
LOAD_BALANCERS = MappingProxyType(
    {
        kind: Item("AWSELB", "LoadBalancerUsage", listed, {"productFamily": family})
        for kind, listed, family in (
            ("network", 0.0225, "Load Balancer-Network"),
            ("application", 0.0225, "Load Balancer-Application"),
            ("gateway", 0.0125, "Load Balancer-Gateway"),
            ("classic", 0.025, "Load Balancer"),
        )
    }
)


def _of_volumes(kind: str, usage: str, listed: float) -> Item:
    return Item("AmazonEC2", f"EBS:{usage}", listed, {"volumeApiName": kind}, monthly=True)


VOLUMES = MappingProxyType(
    {
        kind: _of_volumes(kind, f"VolumeUsage.{usage}", listed)
        for kind, usage, listed in (
            ("gp3", "gp3", 0.08),
            ("gp2", "gp2", 0.10),
            ("io1", "piops", 0.125),
            ("io2", "io2", 0.125),
            ("st1", "st1", 0.045),
            ("sc1", "sc1", 0.015),
        )
    }
)
IOPS = MappingProxyType(
    {
        kind: _of_volumes(kind, f"VolumeP-IOPS.{usage}", listed)
        for kind, usage, listed in (("gp3", "gp3", 0.005), ("io1", "piops", 0.065), ("io2", "io2", 0.065))
    }
)
THROUGHPUT = _of_volumes("gp3", "VolumeP-Throughput.gp3", 0.04)


def instance(name: str) -> Item:
    """An instance on demand: Linux, on shared hardware."""
    known = instance_type(name)
    fields = {
        "instanceType": name,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "preInstalledSw": "NA",
    }
    return Item("AmazonEC2", f"BoxUsage:{name}", known.usd_per_hour if known else None, fields)
