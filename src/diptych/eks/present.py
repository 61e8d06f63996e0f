"""What is there already of what `up` would make: for its plan, and asked for the chosen steps only."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from diptych.check.account import ExistingCluster
from diptych.eks import groups, nodes, ownership
from diptych.eks.connection import connect
from diptych.eks.job import EksJob
from diptych.eks.ownership import Owner
from diptych.kube import operator, service
from diptych.kube.job import STEPS as KUBE_STEPS
from diptych.render import names


@dataclass(frozen=True)
class Present:
    """What an `up` finds.

    Args:
        cluster: as EKS tells of it; None where there is none.
        groups: nodes that each living node group of the document has, the system nodes' included, by its name.
        zone: where its GPU nodes are; None where there are none.
        inside: the steps inside the cluster of which something is there.
    """

    cluster: ExistingCluster | None = None
    groups: Mapping[str, int] = field(default_factory=dict)
    zone: str | None = None
    inside: frozenset[str] = frozenset()

    @property
    def is_of_others(self) -> bool:
        """Diptych did not make the cluster: neither it nor its network is ours to make or to pay."""
        return self.cluster is not None and Owner.of(self.cluster.tags) is None


def look(job: EksJob, cluster: ExistingCluster | None, steps: Collection[str]) -> Present:
    """Look at what these steps would make.

    Args:
        cluster: as the account was described.

    Raises:
        AccountError, ClusterError: the account or the cluster can't be asked.
    """
    if cluster is None:
        return Present()
    own: dict[str, int] = {}
    zone = None
    if "cluster" in steps or nodes.STEP in steps:
        own = {each.name: each.desired for each in groups.ours(job) if _is_living(job, each)}
        zone = nodes.zone_in_use(job)
    return Present(cluster, own, zone, _inside(job, [step for step in KUBE_STEPS if step in steps]))


def _is_living(job: EksJob, group: groups.NodeGroup) -> bool:
    is_own = group.name == names.SYSTEM or ownership.is_of_document(job, group.tags)
    return is_own and not group.is_broken and group.status != "DELETING"


def _inside(job: EksJob, steps: Collection[str]) -> frozenset[str]:
    there = connect(job) if steps else None
    if there is None:
        return frozenset()
    with there:
        looks = {"operator": operator.look, "service": service.look}
        return frozenset(step for step in steps if looks[step](job, there).state != "absent")
