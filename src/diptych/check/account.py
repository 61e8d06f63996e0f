"""What was found out about an AWS account before anything is made in it: data only, for the rules N1xx.

`diptych.eks.account.gather` fills it in, by reading alone. What could not be asked is None (or absent), and
`unasked` says why.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime


@dataclass(frozen=True)
class Unasked:
    """Something that could not be found out.

    Args:
        what: in the words of a sentence's subject: "the quotas of EC2".
        why: what the other side said; no full stop.
        do: what to do about it.
    """

    what: str
    why: str
    do: str = ""


@dataclass(frozen=True)
class Identity:
    """Who AWS says one is.

    Args:
        account: its number, 12 digits.
        arn: of the user or role.
        expires: when the credentials end for good; None where they don't, renew themselves, or don't say.
        profile: the profile of AWS's configuration that they come from; None without one.
    """

    account: str
    arn: str
    expires: datetime | None = None
    profile: str | None = None


@dataclass(frozen=True)
class Quota:
    """A limit of the account in this region.

    Args:
        service: Service Quotas' code of the service: "ec2".
        code: of the quota: "L-DB2E81BA".
        name: AWS's words.
        limit: in `unit`s.
        used: what others than this document's nodes use now, in `unit`s; None where that could not be counted.
    """

    service: str
    code: str
    name: str
    limit: int
    used: int | None
    unit: str = "vCPUs"


@dataclass(frozen=True)
class Offer:
    """An instance type in this region.

    Args:
        zones: availability zones that offer it.
        vcpus: of one instance.
        efa_interfaces: the most that one can have; 0 without EFA.
    """

    instance_type: str
    zones: frozenset[str]
    vcpus: int
    efa_interfaces: int


@dataclass(frozen=True)
class Reservation:
    """A capacity reservation or capacity block.

    Args:
        id: "cr-…".
        state: "active", "scheduled", "pending", "expired", "cancelled", "failed", …
        total, available: instances.
        starts, ends: of a block, or of a reservation with an end.
        is_block: it is a capacity block.
        targeted: only instances that name it may use it.
        placement_group: ARN of the one that it was made in; None without.
    """

    id: str
    instance_type: str
    zone: str
    state: str
    total: int
    available: int
    starts: datetime | None = None
    ends: datetime | None = None
    is_block: bool = False
    targeted: bool = True
    placement_group: str | None = None


@dataclass(frozen=True)
class Release:
    """A version of Kubernetes on EKS.

    Args:
        status: "standard", "extended" or "unsupported".
        standard_until, extended_until: last days of support.
    """

    version: str
    status: str
    standard_until: date | None = None
    extended_until: date | None = None


@dataclass(frozen=True)
class Subnet:
    """A subnet of a cluster that exists; `free_addresses` are left in it."""

    id: str
    zone: str
    free_addresses: int


@dataclass(frozen=True)
class SecurityGroup:
    """A security group, and whether it lets EFA pass among its members.

    Args:
        from_itself: all protocols come in from the group's own id.
        to_itself: all protocols go out to the group's own id. A rule to 0.0.0.0/0 does not let EFA out.
    """

    id: str
    name: str
    from_itself: bool
    to_itself: bool

    @property
    def lets_efa_pass(self) -> bool:
        return self.from_itself and self.to_itself


@dataclass(frozen=True)
class Interface:
    """A network interface with EFA, of a node that runs; `groups` are ids of its security groups."""

    id: str
    instance: str
    zone: str
    groups: tuple[str, ...]


@dataclass(frozen=True)
class ExistingCluster:
    """The EKS cluster of the document's name, where there is one.

    Args:
        status: "ACTIVE", "CREATING", "DELETING", "FAILED", "UPDATING".
        tags: of the cluster.
        security_group: the cluster's own, which EKS puts on every managed node.
        groups: security groups, the cluster's and those of the interfaces.
        interfaces: those with EFA of this document's nodes.
    """

    name: str
    arn: str
    version: str
    status: str
    tags: Mapping[str, str] = field(default_factory=dict)
    vpc: str = ""
    security_group: str = ""
    subnets: tuple[Subnet, ...] = ()
    groups: tuple[SecurityGroup, ...] = ()
    interfaces: tuple[Interface, ...] = ()


@dataclass(frozen=True)
class Image:
    """Whether a registry has the image's tag.

    Args:
        exists: None where the registry could not be asked, or did not say.
        why: what it said.
        size_bytes: of the compressed layers; None where it is not known.
    """

    name: str
    exists: bool | None
    why: str = ""
    size_bytes: int | None = None


@dataclass(frozen=True)
class Program:
    """A program that `up` runs.

    Args:
        version: that was found; None where it is not there, or of no version that works.
        problem: what is wrong with it; "" where nothing is.
        do: what to do about that.
    """

    name: str
    version: str | None
    problem: str = ""
    do: str = ""


@dataclass(frozen=True)
class Account:
    """An AWS account in one region, as its APIs described it.

    Args:
        region: that of the document, which everything was asked in.
        asked_at: when.
        identity: None where nobody answered to these credentials; `refused` says why.
        refused: why there is no identity.
        configured_region: that of the shell or profile; None without one.
        expected, expected_region: where this document is up already; None where nothing is remembered.
        denied: actions that a simulation of the caller's policies denies; None where it could not be made.
        zones: the region's zones that the account may use.
        offers: instance types of the document by name; one that the region doesn't know is absent.
        reservations: those that the document names, by id or group ARN; an id that is not there is absent.
        releases: versions of Kubernetes on EKS.
        cluster: that of the document's name; None where there is none.
        clock_ahead_s: how far this machine's clock is ahead of AWS's, seconds.
        unasked: what could not be found out.
    """

    region: str
    asked_at: datetime
    identity: Identity | None
    refused: Unasked | None = None
    configured_region: str | None = None
    expected: str | None = None
    expected_region: str | None = None
    denied: tuple[str, ...] | None = None
    quotas: tuple[Quota, ...] | None = None
    zones: tuple[str, ...] | None = None
    offers: Mapping[str, Offer] | None = None
    reservations: Mapping[str, tuple[Reservation, ...]] | None = None
    releases: tuple[Release, ...] | None = None
    cluster: ExistingCluster | None = None
    image: Image | None = None
    programs: tuple[Program, ...] = ()
    clock_ahead_s: float | None = None
    unasked: tuple[Unasked, ...] = ()

    def release(self, version: str) -> Release | None:
        """A version of Kubernetes by its name; None where EKS has none, or was not asked."""
        return next((each for each in self.releases or () if each.version == version), None)

    def zones_with(self, instance_types: Iterable[str]) -> tuple[str, ...] | None:
        """Zones that offer every one of these types, in order; None where that could not be asked."""
        if self.offers is None:
            return None
        none = Offer("", frozenset(), 0, 0)
        sets = [self.offers.get(each, none).zones for each in instance_types]
        return tuple(sorted(frozenset.intersection(*sets))) if sets else self.zones
