"""What an AWS account has and allows, for a document: everything is read at once, and nothing is changed.

What AWS does not tell is left out, and named in `Account.unasked`: a missing permission to look at quotas must not
keep anyone from starting.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any, TypeVar

from diptych.check.account import Account, Identity, Offer, Program, Release, Unasked
from diptych.check.account_rules import ADDRESSES, VPCS
from diptych.check.demand import demands, quotas_of
from diptych.eks import network, permissions, quotas, registries, reservations
from diptych.eks.aws import AwsError, Session
from diptych.errors import DiptychError
from diptych.kube import programs
from diptych.render.image import image_name
from diptych.spec import Document

_AT_ONCE = 8
_STATUS = {"STANDARD_SUPPORT": "standard", "EXTENDED_SUPPORT": "extended", "UNSUPPORTED": "unsupported"}

_T = TypeVar("_T")


def gather(
    document: Document, session: Session, *, expected: str | None = None, expected_region: str | None = None
) -> Account:
    """Find out all that the rules look at.

    Args:
        expected, expected_region: the account (its number) and the region that this document is up in already, where
            that is remembered.
    """
    now = datetime.now(UTC)
    try:
        identity = session.who()
    except AwsError as error:
        refused = Unasked("the account", error.message, error.hint)
        return Account(session.region, now, None, refused)
    with _Questions() as ask:
        found = _asked(document, session, identity, now, ask)
    return replace(found, expected=expected, expected_region=expected_region)


def _asked(
    document: Document, session: Session, identity: Identity, now: datetime, ask: "_Questions"
) -> Account:
    asked = demands(document)
    types = tuple(dict.fromkeys(each.instance_type for each in asked))
    named = [document.nodes_for(phase).capacity_reservation for phase in document.phases]
    zones = ask("the zones", lambda: _zones(session))
    offers = ask("the instance types", lambda: _offers(session, types))
    limits = ask("the quotas", lambda: quotas.find(session, document, (*quotas_of(asked), VPCS, ADDRESSES)))
    denied = ask("the permissions", lambda: permissions.denied(session, identity))
    reserved = ask("the capacity reservations", lambda: reservations.find(session, filter(None, named)))
    found_releases = ask("the versions of Kubernetes", lambda: releases(session))
    cluster = ask("the cluster", lambda: network.find_cluster(session, document))
    image = ask("the image", lambda: registries.find(session, image_name(document)))
    found = ask("the programs", _programs)
    return Account(
        region=session.region,
        asked_at=now,
        identity=identity,
        configured_region=session.configured_region,
        denied=denied(),
        quotas=limits(),
        zones=zones(),
        offers=offers(),
        reservations=reserved(),
        releases=found_releases() or (),
        cluster=cluster(),
        image=image(),
        programs=found() or (),
        clock_ahead_s=session.clock_ahead_s,
        unasked=ask.unasked,
    )


class _Questions:
    """Questions that are asked at the same time; what gets no answer is kept as unasked."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        self._failed: dict[str, Unasked] = {}
        self._order: list[str] = []

    def __enter__(self) -> "_Questions":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __call__(self, what: str, question: Callable[[], _T]) -> Callable[[], _T | None]:
        """Ask it now; what comes back waits for the answer, which is None where there is none."""
        self._order.append(what)
        future = self._pool.submit(question)
        return lambda: self._answer(what, future)

    @property
    def unasked(self) -> tuple[Unasked, ...]:
        return tuple(self._failed[what] for what in self._order if what in self._failed)

    def _answer(self, what: str, future: Future[_T]) -> _T | None:
        try:
            return future.result()
        except DiptychError as error:
            self._failed[what] = Unasked(what, error.message, error.hint)
            return None


def _zones(session: Session) -> tuple[str, ...]:
    """The region's availability zones that the account may use."""
    found = session.pages(
        "ec2",
        "describe_availability_zones",
        "AvailabilityZones",
        Filters=[
            {"Name": "state", "Values": ["available"]},
            {"Name": "zone-type", "Values": ["availability-zone"]},
        ],
    )
    return tuple(sorted(each["ZoneName"] for each in found))


def _offers(session: Session, types: tuple[str, ...]) -> Mapping[str, Offer]:
    """The instance types that the region knows, with the zones that offer them."""
    only = [{"Name": "instance-type", "Values": list(types)}]
    described = session.pages("ec2", "describe_instance_types", "InstanceTypes", Filters=only)
    found = {each["InstanceType"]: each for each in described}
    zones: dict[str, set[str]] = {name: set() for name in found}
    for each in session.pages(
        "ec2",
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=only,
    ):
        zones.setdefault(each["InstanceType"], set()).add(each["Location"])
    return {
        name: Offer(
            instance_type=name,
            zones=frozenset(zones[name]),
            vcpus=each["VCpuInfo"]["DefaultVCpus"],
            efa_interfaces=_efa_interfaces(each.get("NetworkInfo", {})),
        )
        for name, each in found.items()
    }


def _efa_interfaces(info: Mapping[str, Any]) -> int:
    if not info.get("EfaSupported"):
        return 0
    return int(info.get("EfaInfo", {}).get("MaximumEfaInterfaces", 1))


def releases(session: Session) -> tuple[Release, ...]:
    """The versions of Kubernetes on EKS, with their support.

    Raises:
        AwsError: AWS does not say.
    """
    found = session.pages("eks", "describe_cluster_versions", "clusterVersions", includeAll=True)
    return tuple(
        Release(
            version=each["clusterVersion"],
            status=_STATUS.get(each.get("versionStatus", ""), "standard"),
            standard_until=_day(each.get("endOfStandardSupportDate")),
            extended_until=_day(each.get("endOfExtendedSupportDate")),
        )
        for each in found
    )


def _day(moment: datetime | None) -> date | None:
    return moment.astimezone(UTC).date() if moment is not None else None


def _programs() -> tuple[Program, ...]:
    return tuple(programs.look(each) for each in programs.PROGRAMS)
