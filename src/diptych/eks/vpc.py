"""The network of a cluster that exists: its VPC, and the zones of its subnets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diptych.eks.job import EksJob
from diptych.errors import AccountError


@dataclass(frozen=True)
class Vpc:
    """A cluster's network.

    Args:
        subnets: zone by id.
        public: ids of those that give instances an address of the internet.
        security_group: the cluster's own.
        is_eksctls: eksctl made the cluster, and finds all this by itself.
    """

    id: str
    subnets: Mapping[str, str]
    public: frozenset[str]
    security_group: str
    is_eksctls: bool

    @classmethod
    def find(cls, job: EksJob) -> "Vpc | None":
        """Look at the cluster's; None where there is no cluster."""
        answer = job.session.find("eks", "describe_cluster", name=job.place.cluster)
        if answer is None:
            return None
        config = answer["cluster"]["resourcesVpcConfig"]
        ids = list(config.get("subnetIds") or ())
        found = list(job.session.pages("ec2", "describe_subnets", "Subnets", SubnetIds=ids)) if ids else []
        tags = answer["cluster"].get("tags") or {}
        return cls(
            id=config.get("vpcId", ""),
            subnets={subnet["SubnetId"]: subnet["AvailabilityZone"] for subnet in found},
            public=frozenset(each["SubnetId"] for each in found if each.get("MapPublicIpOnLaunch")),
            security_group=config.get("clusterSecurityGroupId", ""),
            is_eksctls="alpha.eksctl.io/cluster-name" in tags,
        )

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones that nodes can be in."""
        return tuple(sorted(set(self.subnets.values())))

    def into(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """eksctl's configuration with this network in it, as it demands for clusters that it did not make."""
        named: dict[str, dict[str, Any]] = {"private": {}, "public": {}}
        for subnet, zone in self.subnets.items():
            named["public" if subnet in self.public else "private"].setdefault(zone, {"id": subnet})
        vpc = {
            "id": self.id,
            "securityGroup": self.security_group,
            "subnets": {kind: zones for kind, zones in named.items() if zones},
        }
        left_out = ("availabilityZones", "iam", "addons", "addonsConfig")
        return {**{key: value for key, value in config.items() if key not in left_out}, "vpc": vpc}


class Zones:
    """The zones of a cluster's subnets: asked for once, and only when somebody wants to know.

    Args:
        known: the network, where somebody has looked already.
    """

    def __init__(self, job: EksJob, known: Vpc | None = None) -> None:
        self._job = job
        self._network = known
        self._has_looked = known is not None
        self._refusal: AccountError | None = None

    def of(self, subnets: Iterable[str]) -> str:
        """In words: "us-east-2a, us-east-2b"; empty where they are not the cluster's.

        Raises:
            AccountError: the subnets can't be asked for.
        """
        if not self._has_looked:
            self._has_looked = True
            try:
                self._network = Vpc.find(self._job)
            except AccountError as error:
                self._refusal = error
        if self._refusal is not None:
            raise self._refusal
        known = self._network.subnets if self._network is not None else {}
        return ", ".join(sorted({known[each] for each in subnets if each in known}))
