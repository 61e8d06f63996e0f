"""What a document asks of an AWS account: instances, and the quotas that count them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from diptych.catalog.instances import QUOTAS_G, QUOTAS_P, QUOTAS_STANDARD
from diptych.render.layout import worker_groups
from diptych.render.names import SYSTEM
from diptych.render.node_groups import group_name
from diptych.spec import Document

# Letters of families by the quota that counts them: on demand, spot. Other families have quotas of their own.
_FAMILIES = (
    (QUOTAS_G, ("g", "gr", "vt")),
    (QUOTAS_P, ("p",)),
    (QUOTAS_STANDARD, ("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z")),
)


@dataclass(frozen=True)
class Demand:
    """Instances of one node group.

    Args:
        name: "prefill", "decode", "aggregated" or "system".
        node_group: its name in EKS.
        reserved: they come out of a capacity reservation or block, which the account has paid or counted already.
    """

    name: str
    node_group: str
    instance_type: str
    count: int
    spot: bool = False
    reserved: bool = False

    @property
    def quota(self) -> str | None:
        """The code of the quota that they count against; None where none does, or none that is known."""
        return None if self.reserved else quota_of(self.instance_type, spot=self.spot)


def demands(document: Document) -> tuple[Demand, ...]:
    """The node groups that a document on EKS stands for, those without GPUs first."""
    system = document.eks.system_nodes
    return (
        Demand(SYSTEM, SYSTEM, system.instance_type, system.count),
        *(
            Demand(
                group.name,
                group_name(document, group),
                group.instance_type or "",
                group.count,
                spot=group.nodes.market == "spot",
                reserved=group.nodes.capacity_reservation is not None,
            )
            for group in worker_groups(document)
        ),
    )


def quotas_of(asked: Iterable[Demand]) -> tuple[str, ...]:
    """The codes of the quotas that count them, each once."""
    return tuple(dict.fromkeys(each.quota for each in asked if each.quota))


def quota_of(instance_type: str, *, spot: bool) -> str | None:
    """The code of the EC2 quota that counts an instance's vCPUs; None for families with quotas of their own.

    >>> quota_of("gr6.8xlarge", spot=False), quota_of("m7i-flex.large", spot=True), quota_of("trn1.2xlarge", spot=False)
    ('L-DB2E81BA', 'L-34B43A08', None)
    """
    letters = re.match(r"[a-z]*", instance_type)
    family = letters[0] if letters else ""
    codes = next((codes for codes, families in _FAMILIES if family in families), None)
    return None if codes is None else codes[spot]
