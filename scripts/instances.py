"""Make `src/diptych/catalog/data/instances.csv`: the EC2 instance types that a document may name.

    python scripts/instances.py INSTANCE_TYPES_MD PRICING_GO

Both files are of github.com/aws/karpenter-provider-aws, which reads them from the EC2 and price list APIs:
`website/content/en/docs/reference/instance-types.md` and `pkg/providers/pricing/zz_generated.pricing_aws.go`.
Taken are the x86-64 types with NVIDIA GPUs, and of `FAMILIES`, for nodes without GPUs, those of `SIZES`.
"""

import argparse
import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

TABLE = Path(__file__).resolve().parent.parent / "src/diptych/catalog/data/instances.csv"
FAMILIES = {
    *("c5", "c6a", "c6i", "c7a", "c7i"),
    *("m5", "m5a", "m6a", "m6i", "m7a", "m7i", "m7i-flex"),
    *("r5", "r6a", "r6i", "r7a", "r7i"),
    *("t3", "t3a"),
}
SIZES = {"large", "xlarge", "2xlarge", "4xlarge", "8xlarge"}
REGION = "us-east-1"
LABELS = "karpenter.k8s.aws/instance-"


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the catalog's table of EC2 instance types.")
    parser.add_argument("types", type=Path, help="instance-types.md")
    parser.add_argument("prices", type=Path, help="zz_generated.pricing_aws.go")
    arguments = parser.parse_args()
    pricing = arguments.prices.read_text()
    prices = read_prices(pricing)
    rows = [
        row(name, facts, prices)
        for name, facts in read_types(arguments.types.read_text())
        if wanted(name, facts)
    ]
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# prices of {date_of_prices(pricing)}\n")
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} instance types in {TABLE}")


def read_types(text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Each type's name with its labels and resources, from one section per type with two tables."""
    for section in text.split("\n### `")[1:]:
        yield (
            section.partition("`")[0],
            dict(re.findall(r"^ \|([^|\n]+)\|([^|\n]+)\|$", section, re.MULTILINE)),
        )


def read_prices(text: str) -> Mapping[str, str]:
    """USD per hour by type in `REGION`; the number as written there, without trailing zeros."""
    block = re.search(rf'"{REGION}": {{(.*?)\n\t}},', text, re.DOTALL)
    if block is None:
        raise SystemExit(f"no prices of {REGION} there: is this zz_generated.pricing_aws.go?")
    found = re.findall(r'"([\w.-]+)": ([0-9.]+)', block.group(1))
    return {name: price.rstrip("0").rstrip(".") for name, price in found}


def date_of_prices(text: str) -> str:
    """The day they were read from the price list API, YYYY-MM-DD."""
    found = re.search(r"// generated at (\d{4}-\d\d-\d\d)", text)
    if found is None:
        raise SystemExit("the prices bear no date: is this zz_generated.pricing_aws.go?")
    return found.group(1)


def wanted(name: str, facts: Mapping[str, str]) -> bool:
    if facts["kubernetes.io/arch"] != "amd64":
        return False
    if facts.get(f"{LABELS}gpu-manufacturer") == "nvidia":
        return True
    family, _, size = name.partition(".")
    return family in FAMILIES and size in SIZES


def row(name: str, facts: Mapping[str, str], prices: Mapping[str, str]) -> dict[str, str]:
    """One line of the table. Memory is in MiB, disks in GB (10^9 bytes), as EC2 reports both."""
    return {
        "name": name,
        "gpus": facts.get(f"{LABELS}gpu-count", "0"),
        "gpu": facts.get(f"{LABELS}gpu-name", ""),
        "gpu_mib": facts.get(f"{LABELS}gpu-memory", "0"),
        "vcpus": facts[f"{LABELS}cpu"],
        "memory_mib": facts[f"{LABELS}memory"],
        "network_mbps": facts[f"{LABELS}network-bandwidth"],
        "nvme_gb": facts.get(f"{LABELS}local-nvme", "0"),
        "efa": facts.get("vpc.amazonaws.com/efa", "0"),
        "allocatable_cpu_millis": facts["cpu"].removesuffix("m"),
        "allocatable_memory_mib": facts["memory"].removesuffix("Mi"),
        "usd_per_hour": prices.get(name, ""),
    }


if __name__ == "__main__":
    main()
