"""What is up on EKS: the steps that AWS knows of, and the cost so far."""

from dataclasses import dataclass
from typing import Any

from diptych.eks import cluster, nodes
from diptych.eks.costs import Cost, Meter
from diptych.eks.job import EksJob
from diptych.eks.vpc import Zones
from diptych.kube.connection import Cluster
from diptych.kube.job import StepStatus


@dataclass(frozen=True)
class EksStatus:
    """The steps `cluster` and `nodes`, in this order, and the cost."""

    steps: tuple[StepStatus, ...]
    cost: Cost

    def to_json(self) -> dict[str, Any]:
        """The part of `docs/json.md`'s shape that is about the account."""
        return {
            "steps": {
                each.step: {"state": each.state, "text": each.text, **each.details} for each in self.steps
            },
            "cost": self.cost.to_json(),
        }


def look(job: EksJob, there: Cluster | None, meter: Meter | None = None) -> EksStatus:
    """Look at the account's side of a service. A cost that can't be told leaves the steps as they are.

    Args:
        there: the cluster's API; None where it can't be reached.
        meter: of whoever looks again and again.

    Raises:
        AccountError: AWS can't be asked for the steps.
    """
    zones = Zones(job)
    steps = (cluster.look(job, zones), nodes.look(job, there, zones))
    return EksStatus(steps, (meter or Meter()).read(job))
