"""What `up` will make, step by step, with what each part costs per hour: shown before anything is asked or changed."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from diptych.check.account import Account, Identity
from diptych.eks.present import Present
from diptych.eks.prices import Price, Row
from diptych.render import names
from diptych.render.eksctl import VPC_CIDR, api_access_cidrs, cluster_zones
from diptych.render.image import image_name
from diptych.render.inputs import Facts
from diptych.render.layout import wants_efa, worker_groups
from diptych.render.node_groups import group_name, zone
from diptych.spec import Document

_STEPS = ("cluster", "nodes", "operator", "service")
_THERE = "there already"


@dataclass(frozen=True)
class Part:
    """Something that a step makes.

    Args:
        usd_per_hour: None where it costs nothing by itself, or where no price is known (`unpriced`).
        there: how much of it is there already, and is used after comparison: in words, empty for none of it.
    """

    step: str
    what: str
    usd_per_hour: float | None = None
    unpriced: bool = False
    there: str = ""


@dataclass(frozen=True)
class Plan:
    """All that the chosen steps of `up` will make.

    Args:
        place: account and region, in words: named before anything changes.
        parts: in the order in which they are made.
        price: of everything together, with what is there already; without what others pay.
    """

    place: str
    parts: tuple[Part, ...]
    price: Price


def plan(
    document: Document,
    facts: Facts,
    account: Account,
    price: Price,
    present: Present | None = None,
    steps: Collection[str] = _STEPS,
) -> Plan:
    """What these steps will make in this account.

    Args:
        facts: with the zone that was chosen.
        present: what is there already.
    """
    present = present or Present()
    described = [
        *_cluster(document, facts, present),
        *_nodes(document, facts, present),
        *_service(document, present),
    ]
    rows = [row for row in price.rows if row.step in steps]
    parts = (*described, *(_priced(row, document, present) for row in rows))
    chosen = sorted((part for part in parts if part.step in steps), key=lambda part: _STEPS.index(part.step))
    return Plan(place(account.identity, account.region), tuple(chosen), Price(tuple(rows)))


def place(identity: Identity | None, region: str) -> str:
    """Region, account and who changes things in it; the region alone where nobody knows who."""
    if identity is None:
        return region
    profile = f", profile {identity.profile}" if identity.profile else ""
    return f"{region} in account {identity.account} ({identity.arn}{profile})"


def _cluster(document: Document, facts: Facts, present: Present) -> Iterable[Part]:
    found = present.cluster
    if found is None:
        who = ", ".join(api_access_cidrs(document, facts)) or "the VPC only"
        version = document.eks.kubernetes_version
        yield Part("cluster", f"EKS cluster {document.cluster_name}, Kubernetes {version}, API open to {who}")
        zones = ", ".join(cluster_zones(document, facts))
        yield Part("cluster", f"VPC {VPC_CIDR} with subnets in {zones}, one NAT gateway, IAM roles")
        return
    what = f"EKS cluster {found.name}, Kubernetes {found.version}"
    if present.is_of_others:
        yield Part("cluster", f"{what}, not made by Diptych: used with its network, not owned", there=_THERE)
        return
    zones = ", ".join(dict.fromkeys(subnet.zone for subnet in found.subnets))
    yield Part("cluster", what, there=_THERE)
    yield Part("cluster", f"its VPC{f' with subnets in {zones}' if zones else ''}, IAM roles", there=_THERE)


def _nodes(document: Document, facts: Facts, present: Present) -> Iterable[Part]:
    efa = ", EFA among them" if wants_efa(document) else ""
    wanted = [zone(document, facts, group.nodes) for group in worker_groups(document)]
    zones = dict.fromkeys([present.zone] if present.zone else wanted)
    named = [group_name(document, group) for group in worker_groups(document)]
    there = _how_many(sum(name in present.groups for name in named), len(named))
    yield Part("nodes", f"node groups in {', '.join(zones)}, in private subnets{efa}", there=there)


def _service(document: Document, present: Present) -> Iterable[Part]:
    inside = dict.fromkeys(present.inside, _THERE)
    yield Part(
        "operator",
        f"KubeRay {document.kubernetes.kuberay_version}, on the system nodes",
        there=inside.get("operator", ""),
    )
    replicas = " + ".join(
        f"{section.least_replicas} {group.name}"
        for group, section in zip(worker_groups(document), document.phases.values(), strict=True)
    )
    yield Part(
        "service",
        f"{document.name} in namespace {document.kubernetes.namespace}: {document.model.name}, {replicas}, image "
        f"{image_name(document)}",
        there=inside.get("service", ""),
    )


def _priced(row: Row, document: Document, present: Present) -> Part:
    part = Part(row.step, row.what, row.usd_per_hour, unpriced=row.usd_per_hour is None)
    return replace(part, there=_there(row, document, present))


def _there(row: Row, document: Document, present: Present) -> str:
    """How much of a priced row is there: its node group's nodes, or with the cluster whatever that came with."""
    if row.group:
        wanted = {group_name(document, group): group.count for group in worker_groups(document)}
        count = wanted.get(row.group, document.eks.system_nodes.count)
        return _how_many(min(count, present.groups.get(row.group, 0)), count)
    if row.step == "cluster":
        is_there = names.SYSTEM in present.groups if row.kind == "volumes" else present.cluster
        return _THERE if is_there else ""
    if row.step == "nodes":
        counts = [
            (group.count, present.groups.get(group_name(document, group), 0))
            for group in worker_groups(document)
        ]
        return _THERE if all(there >= count for count, there in counts) else ""
    return _THERE if row.step in present.inside else ""


def _how_many(there: int, wanted: int) -> str:
    """
    >>> _how_many(2, 2), _how_many(1, 3), _how_many(0, 1)
    ('there already', '1 of 3 there already', '')
    """
    if there >= wanted:
        return _THERE
    return f"{there} of {wanted} {_THERE}" if there else ""
