"""The instance types on which the EFA device plugin runs: AWS's chart and eksctl's manifest list the same."""

# Of eksctl's `pkg/addons/assets/efa-device-plugin.yaml`: without g7, g7e, p5.4xlarge, p6.
EFA_TYPES = [
    *(f"g4dn.{size}" for size in ("8xlarge", "12xlarge", "16xlarge", "metal")),
    *(f"{family}.{size}xlarge" for family in ("g5", "g6", "g6e") for size in (8, 12, 16, 24, 48)),
    "gr6.8xlarge",
    "p3dn.24xlarge",
    "p4d.24xlarge",
    "p4de.24xlarge",
    "p5.48xlarge",
    "p5e.48xlarge",
    "p5en.48xlarge",
]
