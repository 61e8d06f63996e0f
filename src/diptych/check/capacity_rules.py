"""N11x: whether AWS has the nodes: zones that offer the types, their EFA, and reservations."""

from collections.abc import Iterable
from datetime import timedelta

from diptych.check.account import Account, Reservation
from diptych.check.account_rules import account_of, field_of, with_profile
from diptych.check.demand import demands
from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import PhaseView, Subject, zone_field
from diptych.render.inputs import Facts
from diptych.render.layout import WorkerGroup, zone_of

_SOON = timedelta(hours=24)


@rule("N110", "error", "A zone without the nodes")
def zone_has_nodes(subject: Subject) -> Iterable[Complaint]:
    account = account_of(subject)
    for zone, views in _by_zone(subject).items() if account and account.offers is not None else ():
        assert account is not None
        asked = _types(subject, views)
        zones = account.zones_with(asked) or ()
        if zone in zones or not _known(account, asked):
            continue
        named = " and ".join(asked)
        if account.zones is not None and zone not in account.zones:
            what = f"is {zone}, which this account does not have; it has {', '.join(account.zones)}"
        else:
            what = f"is {zone}, which does not offer {named}"
        wanted = " and ".join(_with_efa(account, each) for each in asked)
        if zones:
            do = f"write {' or '.join(zones)}, which {'has' if len(zones) == 1 else 'have'} {wanted}"
        else:
            do = f"choose another instance type: no zone of {account.region} has {wanted}"
        field = zone_field(views[0])
        yield Complaint(field if subject.is_written(field) else "eks.zone", what, do)


@rule("N111", "error", "An instance type that the region does not have")
def region_has_types(subject: Subject) -> Iterable[Complaint]:
    account = account_of(subject)
    if account is None or account.offers is None:
        return
    for asked in demands(subject.document):
        offer = account.offers.get(asked.instance_type)
        if offer is None or not offer.zones:
            yield Complaint(
                field_of(subject, asked),
                f"is {asked.instance_type}, which no zone of {account.region} offers",
                "choose another type or region; aws ec2 describe-instance-type-offerings --location-type "
                f"availability-zone --filters Name=instance-type,Values={asked.instance_type} --region REGION"
                f"{with_profile(account)} says which zones of a region have it",
            )


@rule("N112", "error", "Node groups that no one zone can hold")
def one_zone_has_all(subject: Subject) -> Iterable[Complaint]:
    account = account_of(subject)
    if account is None or account.offers is None:
        return
    asked = [each.instance_type for each in demands(subject.document)]
    given = [zone_of(subject.document, view.nodes, Facts()) for view, _ in _groups(subject)]
    if any(given) or not _known(account, asked) or account.zones_with(asked):
        return
    where = "; ".join(
        f"{name} in {', '.join(account.zones_with([name]) or ())}" for name in dict.fromkeys(asked)
    )
    yield Complaint(
        "eks.zone",
        f"is auto, and no one zone offers all types: {where}",
        "choose types that one zone has: EFA does not leave its zone",
    )


@rule("N113", "error", "An instance type without the EFA interfaces")
def types_have_efa(subject: Subject) -> Iterable[Complaint]:
    account = account_of(subject)
    for view, group in _groups(subject) if account else ():
        assert account is not None
        offer = (account.offers or {}).get(group.instance_type or "")
        if offer is not None and offer.zones and group.size.efa > offer.efa_interfaces:
            has = f"{offer.efa_interfaces} EFA interfaces" if offer.efa_interfaces else "no EFA"
            yield Complaint(
                view.nodes_path("instance_type"),
                f"is {offer.instance_type}, which has {has} by AWS's word, and its pods ask for {group.size.efa}",
                f"set {view.name}.resources.efa to {offer.efa_interfaces}, or choose another type",
            )


@rule("N114", "error", "A reservation that does not hold the nodes")
def reservations_fit(subject: Subject) -> Iterable[Complaint]:
    account = account_of(subject)
    if account is None or account.reservations is None:
        return
    left: dict[str, int] = {}
    for view, group in _groups(subject):
        named = view.nodes.capacity_reservation
        if named is None:
            continue
        found = account.reservations.get(named)
        why = _misfit(subject, view, group, found, left.setdefault(named, _available(found)))
        left[named] -= group.count
        if why:
            listing = (
                f"aws ec2 describe-capacity-reservations --region {account.region}{with_profile(account)}"
            )
            do = f"{listing} lists those that are there"
            yield Complaint(view.nodes_path("capacity_reservation"), f"is {named}, {why}", do)


@rule("N115", "warning", "A reservation that ends soon")
def reservations_last(subject: Subject) -> Iterable[Complaint]:
    account = account_of(subject)
    for view, _ in _groups(subject) if account else ():
        assert account is not None
        named = view.nodes.capacity_reservation
        for each in (account.reservations or {}).get(named or "", ()):
            if each.ends is not None and account.asked_at <= each.ends < account.asked_at + _SOON:
                fate = (
                    "its nodes are taken away half an hour before"
                    if each.is_block
                    else "it holds no nodes then"
                )
                yield Complaint(
                    view.nodes_path("capacity_reservation"),
                    f"is {each.id}, which ends on {each.ends:%Y-%m-%d at %H:%M %Z}: {fate}",
                    "extend it, or be down by then",
                )


def _misfit(
    subject: Subject,
    view: PhaseView,
    group: WorkerGroup,
    found: tuple[Reservation, ...] | None,
    available: int,
) -> str:
    """Why reservations don't hold a phase's nodes; empty where they do."""
    zone = zone_of(subject.document, view.nodes, Facts())
    if not found:
        return "which is not there: not in this account and region, or not shared with it"
    first = found[0]
    fitting = [each for each in found if each.instance_type == group.instance_type]
    if not fitting:
        return f"which holds {first.instance_type}, and {view.name} has {group.instance_type}"
    if zone is not None and all(each.zone != zone for each in fitting):
        return f"which is in {fitting[0].zone}, and the nodes are in {zone}"
    if all(each.state != "active" for each in fitting):
        starts = (
            f" until {first.starts:%Y-%m-%d at %H:%M %Z}"
            if first.starts and first.state == "scheduled"
            else ""
        )
        return f"which is {fitting[0].state}{starts}"
    if view.nodes.market == "capacity-block" and not first.is_block:
        return "which is no capacity block, and market is capacity-block"
    if view.nodes.market != "capacity-block" and first.is_block:
        return "which is a capacity block: set market: capacity-block beside it"
    if group.count > available:
        total = sum(each.total for each in fitting)
        return f"which has {available} of {total} instances free, and {group.count} are needed"
    if group.size.efa and any(each.placement_group for each in fitting):
        return "which was made in a placement group, and eksctl puts no nodes with a reservation into one"
    return ""


def _available(found: tuple[Reservation, ...] | None) -> int:
    return sum(each.available for each in found or ())


def _groups(subject: Subject) -> Iterable[tuple[PhaseView, WorkerGroup]]:
    return ((view, view.group) for view in subject.phases if view.group is not None)


def _by_zone(subject: Subject) -> dict[str, list[PhaseView]]:
    """The phases by the zone that the document gives them."""
    found: dict[str, list[PhaseView]] = {}
    for view, _ in _groups(subject):
        zone = zone_of(subject.document, view.nodes, Facts())
        if zone is not None:
            found.setdefault(zone, []).append(view)
    return found


def _types(subject: Subject, views: Iterable[PhaseView]) -> tuple[str, ...]:
    """What must be offered in the zone of these phases: system nodes stand beside the first phase."""
    types = []
    for view in views:
        types += [view.group.instance_type or ""] if view.group else []
        types += (
            [subject.document.eks.system_nodes.instance_type] if view.name == subject.phases[0].name else []
        )
    return tuple(dict.fromkeys(types))


def _with_efa(account: Account, name: str) -> str:
    offer = (account.offers or {}).get(name)
    return f"{name} with EFA" if offer and offer.efa_interfaces else name


def _known(account: Account, types: Iterable[str]) -> bool:
    """Whether the region has each type in some zone: else N111 says so."""
    offers = account.offers or {}
    return all(each in offers and offers[each].zones for each in types)
