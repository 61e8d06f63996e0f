"""EC2 instance types: what a node of each type has, what Kubernetes leaves to pods on it, and what it costs.

`data/instances.csv` is made by `scripts/instances.py` from two files of karpenter-provider-aws, which reads them
from the EC2 and price list APIs. It holds the x86-64 types with NVIDIA GPUs and common ones without any.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

GIB = 1024**3
MIB = 1024**2
GB = 10**9

TCP_FLOW_GBPS = 5.0
"""What EC2 gives a single TCP flow between two instances, 10^9 bits per second: EC2 User Guide, "Amazon EC2 instance
network bandwidth". Within one cluster placement group it is 10, with ENA Express up to 25. The phases have neither:
each has a node group of its own, and a placement group of its own where there is one."""

DEFAULT_INSTANCE_TYPE = "g6.8xlarge"
"""What a document on EKS gets that names none."""

# What torch reports as a GPU's total memory, GiB, by EC2's name and MiB. It is less than the board has: error
# correction and the driver keep a part. Each is the lowest that torch's out-of-memory messages in public reports
# name ("has a total capacity of"); with the driver it moves by about 1 %. Nothing here was measured by us.
USABLE_GIB: Mapping[tuple[str, int], float] = MappingProxyType(
    {
        ("t4", 16384): 14.56,
        ("v100", 32768): 31.73,
        ("a10g", 22888): 21.95,
        ("l4", 22888): 22.03,
        ("l40s", 45776): 44.34,
        ("rtx-pro-server-6000", 98304): 94.96,
        ("a100", 40960): 39.38,
        ("a100", 81920): 79.15,
        ("h100", 81920): 79.11,
        ("h200", 144384): 139.72,
        ("b200", 183359): 178.35,
        ("b300", 275040): 267.69,
    }
)
# The share of EC2's number taken as usable for what is not in `USABLE_GIB`: the RTX PRO 4500, and slices of an L4.
USABLE_SHARE = 0.95

# Ray's names (ray.util.accelerators, the same in 2.58 and 2.60) by EC2's. It has none for the RTX PRO 4500.
ACCELERATOR_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "t4": "T4",
        "v100": "V100",
        "a10g": "A10G",
        "l4": "L4",
        "l40s": "L40S",
        "a100": "A100",
        "h100": "H100",
        "h200": "H200",
        "b200": "B200",
        "b300": "B300",
        "rtx-pro-server-6000": "RTX-PRO-6000",
    }
)

# Graviton has a g after the generation (g5g, m7gd), Grace Blackwell its own name; a1 is the first of all.
_ARM_FAMILY = re.compile(r"[a-z]+\d+g[a-z]*|p\d+e-gb\d+|a1")

# Service quotas of EC2 that count the vCPUs of running instances: on demand, spot.
QUOTAS_G = ("L-DB2E81BA", "L-3819A6DF")
QUOTAS_P = ("L-417A185B", "L-7212CCBC")
QUOTAS_STANDARD = ("L-1216C47A", "L-34B43A08")

# eksctl 0.230.0, pkg/addons/assets/efa-device-plugin.yaml: families on its list; p5.4xlarge is not.
EKSCTL_EFA_FAMILIES = frozenset(
    {"g4dn", "g5", "g6", "g6e", "gr6", "p3dn", "p4d", "p4de", "p5", "p5e", "p5en"}
)
# eksctl 0.230.0, pkg/utils/instance/instance_types.go (CBRSupported).
CAPACITY_BLOCK_FAMILIES = frozenset({"p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300"})


@dataclass(frozen=True)
class InstanceType:
    """One EC2 instance type.

    Args:
        name: EC2's ("g6.8xlarge").
        gpus: whole GPUs; 0 where there is a slice of one (g6f, gr6f) or none.
        gpu: EC2's name for the GPU ("l4"); None without.
        gpu_memory_bytes: of each GPU or slice, as EC2 reports it; see `usable_gpu_memory_bytes`.
        vcpus: virtual CPUs.
        memory_bytes: of the host.
        network_gbps: bandwidth that is always there, 10^9 bits per second.
        nvme_bytes: local disks, together; 0 without.
        efa_interfaces: EFA network interfaces, as EKS advertises them in `vpc.amazonaws.com/efa`; 0 without.
        allocatable_cpu_millis: what EKS leaves to pods, thousandths of a vCPU.
        allocatable_memory_bytes: what EKS leaves to pods, approximately.
        usd_per_hour: on demand, Linux, us-east-1; None where there is no such price.
    """

    name: str
    gpus: int
    gpu: str | None
    gpu_memory_bytes: int
    vcpus: int
    memory_bytes: int
    network_gbps: float
    nvme_bytes: int
    efa_interfaces: int
    allocatable_cpu_millis: int
    allocatable_memory_bytes: int
    usd_per_hour: float | None

    @property
    def family(self) -> str:
        """What stands before the size: "g6" of "g6.8xlarge"."""
        return self.name.partition(".")[0]

    @property
    def sliced_gpu(self) -> bool:
        """It has part of a GPU only."""
        return self.gpu is not None and self.gpus == 0

    @property
    def has_efa(self) -> bool:
        return self.efa_interfaces > 0

    @property
    def gpudirect_rdma(self) -> bool:
        """EFA reaches GPU memory without a copy through the host: the P series, from p4d on."""
        return self.has_efa and self.family.startswith("p") and self.family != "p3dn"

    @property
    def efa_plugin_by_eksctl(self) -> bool:
        """The EFA device plugin that eksctl installs runs on it. Elsewhere install that of eks-charts."""
        return self.has_efa and self.family in EKSCTL_EFA_FAMILIES and self.name != "p5.4xlarge"

    @property
    def capacity_blocks(self) -> bool:
        """It can be reserved as an EC2 Capacity Block."""
        return self.family in CAPACITY_BLOCK_FAMILIES

    @property
    def accelerator_type(self) -> str | None:
        """Ray's name for the GPU ("L4"); None without a GPU, and for one that Ray has no name for."""
        return ACCELERATOR_TYPES.get(self.gpu or "")

    @property
    def quota(self) -> str:
        """The code of the service quota that counts its vCPUs on demand."""
        return self._quotas[0]

    @property
    def spot_quota(self) -> str:
        """The code of the service quota that counts its vCPUs on spot."""
        return self._quotas[1]

    @property
    def _quotas(self) -> tuple[str, str]:
        return {"g": QUOTAS_G, "p": QUOTAS_P}.get(self.name[0], QUOTAS_STANDARD)

    @property
    def usable_gpu_memory_bytes(self) -> int:
        """What torch reports as one GPU's total memory, in bytes; approximate, within about 1 %.

        `gpu_memory_utilization` is a share of this. Formula: the figure in `USABLE_GIB` where there is one, else
        `USABLE_SHARE` of what EC2 reports.
        """
        gib = USABLE_GIB.get((self.gpu or "", self.gpu_memory_bytes // MIB))
        return int(self.gpu_memory_bytes * USABLE_SHARE) if gib is None else int(gib * GIB)


def instance_type(name: str) -> InstanceType | None:
    """The type of that name; None if the table has none, which does not mean that EC2 has none."""
    return instance_types().get(name)


def is_arm(name: str) -> bool:
    """Whether EC2's name is that of a type with Graviton or Grace processors: none of them is in the table.

    >>> is_arm("g5g.8xlarge"), is_arm("p6e-gb200.36xlarge"), is_arm("g6.8xlarge")
    (True, True, False)
    """
    return _ARM_FAMILY.fullmatch(name.partition(".")[0]) is not None


@cache
def instance_types() -> Mapping[str, InstanceType]:
    """Every type of the table by name, smaller sizes of a family first."""
    types = (_from_row(row) for row in csv.DictReader(_lines()[1:]))
    return MappingProxyType({each.name: each for each in types})


def nearest_with_efa(name: str) -> InstanceType | None:
    """The smallest type of the same family with EFA and at least as many GPUs; None if there is none.

    >>> nearest_with_efa("g6.xlarge").name
    'g6.8xlarge'
    """
    wanted = instance_type(name)
    family = name.partition(".")[0]
    candidates = [
        each
        for each in instance_types().values()
        if each.family == family and each.has_efa and each.gpus >= (wanted.gpus if wanted else 0)
    ]
    return min(candidates, key=lambda each: (each.vcpus, each.gpus), default=None)


@cache
def _lines() -> list[str]:
    """The table: a line that dates its prices, then CSV."""
    return files("diptych.catalog").joinpath("data/instances.csv").read_text(encoding="utf-8").splitlines()


def _from_row(row: Mapping[str, str]) -> InstanceType:
    return InstanceType(
        name=row["name"],
        gpus=int(row["gpus"]),
        gpu=row["gpu"] or None,
        gpu_memory_bytes=int(row["gpu_mib"]) * MIB,
        vcpus=int(row["vcpus"]),
        memory_bytes=int(row["memory_mib"]) * MIB,
        network_gbps=int(row["network_mbps"]) / 1000,
        nvme_bytes=int(row["nvme_gb"]) * GB,
        efa_interfaces=int(row["efa"]),
        allocatable_cpu_millis=int(row["allocatable_cpu_millis"]),
        allocatable_memory_bytes=int(row["allocatable_memory_mib"]) * MIB,
        usd_per_hour=float(row["usd_per_hour"]) if row["usd_per_hour"] else None,
    )
