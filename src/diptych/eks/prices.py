"""What a document's cluster costs per hour: of what eksctl is told to make, by AWS's price list for the region.

The Pricing API answers for every region from a few of its own. Where it can't be asked, the list price of one region
on one day stands in, and each row says so. Neither knows discounts, savings plans, nor what depends on use: data
that goes through the NAT gateway or a load balancer, requests, snapshots.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import Any, Literal

from diptych.eks import account, price_list
from diptych.eks.aws import AwsError, Session
from diptych.eks.price_list import FREE_IOPS, FREE_MIBPS, LISTED, LISTED_REGION, Item
from diptych.errors import AccountError
from diptych.render.eksctl import cluster_config
from diptych.render.inputs import Facts
from diptych.render.names import PHASE_LABEL, SYSTEM
from diptych.spec import Document

HOURS_PER_MONTH = 730
"""What AWS divides a price per month by."""

_PRICING_REGION = "us-east-1"
_AT_ONCE = 8

Kind = Literal["nodes", "volumes", "other"]


@dataclass(frozen=True)
class Row:
    """One line of a bill.

    Args:
        step: that makes it: "cluster", "nodes" or "service".
        what: "2 × g6.8xlarge (prefill)".
        usd_per_hour: for all of them; None where no price is known.
        source: where the price is from, in words.
        group: name of the node group that it is of; empty where it is of none.
        kind: "nodes" of one group, root "volumes" of all of a step's groups, or "other".
    """

    step: str
    what: str
    usd_per_hour: float | None
    source: str
    group: str = ""
    kind: Kind = "other"


@dataclass(frozen=True)
class Price:
    """What everything together costs per hour, before tax and what depends on use."""

    rows: tuple[Row, ...]

    @property
    def usd_per_hour(self) -> float:
        """The sum of what is known; see `is_whole`."""
        return sum(row.usd_per_hour or 0 for row in self.rows)

    @property
    def is_whole(self) -> bool:
        """Every row has a price."""
        return all(row.usd_per_hour is not None for row in self.rows)

    @property
    def sources(self) -> tuple[str, ...]:
        """Where prices are from, each once."""
        return tuple(dict.fromkeys(row.source for row in self.rows if row.usd_per_hour is not None))

    @property
    def total(self) -> str:
        """The sum in words, with what is not in it.

        "$4.40 per hour (about $3,214 per month): list price of 2026-07-20 in us-east-1"
        """
        usd, unpriced = self.usd_per_hour, [row.what for row in self.rows if row.usd_per_hour is None]
        least = "at least " if unpriced else ""
        sources = ", ".join(self.sources) or "no price is known"
        without = f"; not in it, since no price is known: {'; '.join(unpriced)}" if unpriced else ""
        return (
            f"{least}${usd:,.2f} per hour (about ${usd * HOURS_PER_MONTH:,.0f} per month): {sources}{without}"
        )


def price(
    document: Document,
    facts: Facts,
    session: Session | None = None,
    *,
    version: str | None = None,
    of_others: bool = False,
) -> Price:
    """What the document's cluster costs per hour.

    Args:
        session: None: list prices only.
        version: of Kubernetes that the cluster runs; None: the document's.
        of_others: the cluster and its network are somebody else's, who pays for them.
    """
    book = Book(document.eks.region, session)
    groups = cluster_config(document, facts)["managedNodeGroups"]
    asked: list[Callable[[], Row | tuple[Row, ...]]] = []
    if not of_others:
        runs = version or document.eks.kubernetes_version
        asked += [partial(book.cluster, runs), book.nat_gateway, book.address]
    for step in ("cluster", "nodes"):
        made = [group for group in groups if _step_of(group) == step]
        asked += [*(partial(book.nodes, group) for group in made), partial(book.volumes, step, made)]
    if document.access.expose == "internal-lb":
        asked.append(partial(book.load_balancer, "network"))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda ask: ask(), asked))
    return Price(tuple(row for rows in found for row in ((rows,) if isinstance(rows, Row) else rows)))


class Book:
    """Prices of one region: AWS's own where it can be asked, else the list's. Each is asked for once.

    Whoever can't be reached, or refuses, is not asked again: nobody waits for each of many prices in turn.
    """

    def __init__(self, region: str, session: Session | None) -> None:
        self._region = region
        self._session = session
        self._known: dict[tuple[str, ...], float | None] = {}
        self._locks: dict[tuple[str, ...], Lock] = {}
        self._guard = Lock()
        self._silent: set[str] = set()

    def cluster(self, version: str) -> tuple[Row, ...]:
        """A control plane that runs this version of Kubernetes; whether that is past standard support is asked."""
        surcharge = self._once(("support", version), lambda: self._surcharge(version))
        if surcharge is None:
            unknown = Row("cluster", f"extended support (whether {version} needs it was not said)", None, "")
            return (self.control_plane(), unknown)
        return (self.control_plane(), *([self.extended_support()] if surcharge else []))

    def control_plane(self) -> Row:
        return self._row("cluster", "EKS control plane", price_list.CONTROL_PLANE)

    def extended_support(self) -> Row:
        """What is paid beside for a version of Kubernetes that is past its standard support."""
        return self._row("cluster", "extended support", price_list.EXTENDED_SUPPORT)

    def nat_gateway(self) -> Row:
        return self._row("cluster", "NAT gateway", price_list.NAT_GATEWAY)

    def address(self) -> Row:
        return self._row("cluster", "its public address", price_list.PUBLIC_ADDRESS)

    def load_balancer(self, kind: str) -> Row:
        """One load balancer: "network", "application", "gateway" or "classic"."""
        item, what = price_list.LOAD_BALANCERS.get(kind), f"{kind} load balancer"
        return self._row("service", what, item) if item else Row("service", what, None, "")

    def instances(self, name: str, market: str, zone: str, count: int = 1, *, what: str = "") -> Row:
        """Instances of one type.

        Args:
            market: "on-demand", "spot" or "capacity-block", as EC2 says.
            zone: where spot instances are.
        """
        what = what or f"{count} × {name}"
        if market == "capacity-block":
            return Row("nodes", f"{what}, capacity block", 0.0, "paid in advance")
        if market == "spot":
            usd = self._once(("spot", name, zone), lambda: self._spot(name, zone))
            return Row("nodes", f"{what}, spot", None if usd is None else usd * count, "the spot price now")
        if market != "on-demand":
            return Row("nodes", f"{what}, {market}", None, "")
        return self._row("nodes", what, price_list.instance(name), count)

    def nodes(self, group: Mapping[str, Any]) -> Row:
        """The instances of a node group, as eksctl is told of it."""
        name, count = group["instanceType"], group["desiredCapacity"]
        market = "spot" if group.get("spot") else "on-demand"
        if "instanceMarketOptions" in group:
            market = "capacity-block"
        what = f"{count} × {name} ({group['labels'][PHASE_LABEL]})"
        row = self.instances(name, market, group["availabilityZones"][0], count, what=what)
        return replace(row, step=_step_of(group), group=group["name"], kind="nodes")

    def volumes(self, step: str, groups: Iterable[Mapping[str, Any]]) -> Row:
        """The root volumes of all nodes of these groups, with the speed above what is free."""
        rows = [
            self.volume("gp3", each["volumeSize"], mibps=each.get("volumeThroughput", 0))
            for each in groups
            for _ in range(each["desiredCapacity"])
        ]
        gib = sum(each["desiredCapacity"] * each["volumeSize"] for each in groups)
        usd = [row.usd_per_hour for row in rows]
        whole = None if None in usd else sum(filter(None, usd))
        return Row(step, f"root volumes, {gib} GiB", whole, rows[0].source if rows else "", kind="volumes")

    def volume(self, kind: str, gib: int, *, mibps: int = 0, iops: int = 0) -> Row:
        """One volume, by its size and by the speed above what its price includes.

        Args:
            kind: as EC2 says: "gp3".
            mibps, iops: what it was made with; 0: no more than is free.
        """
        what, item = f"{gib} GiB of {kind}", price_list.VOLUMES.get(kind)
        if item is None:
            return Row("nodes", what, None, "")
        row = self._row("nodes", what, item, gib)
        parts = [row.usd_per_hour]
        if kind == "gp3" and mibps > FREE_MIBPS:
            parts.append(self._row("", "", price_list.THROUGHPUT, mibps - FREE_MIBPS).usd_per_hour)
        if kind in price_list.IOPS and iops > FREE_IOPS.get(kind, 0):
            parts.append(self._row("", "", price_list.IOPS[kind], iops - FREE_IOPS.get(kind, 0)).usd_per_hour)
        return replace(row, usd_per_hour=None if None in parts else sum(filter(None, parts)))

    def _row(self, step: str, what: str, item: Item, amount: float = 1) -> Row:
        """So much of something, per hour."""
        usd, source = self._price(item)
        hourly = None if usd is None else usd * amount / (HOURS_PER_MONTH if item.monthly else 1)
        return Row(step, what, hourly, source)

    def _price(self, item: Item) -> tuple[float | None, str]:
        key = (item.service, item.usage, *item.fields.values())
        usd = self._once(key, lambda: self._asked(item))
        if usd is not None:
            return usd, f"AWS's price list for {self._region}"
        return item.listed, f"list price of {LISTED} in {LISTED_REGION}"

    def _surcharge(self, version: str) -> float | None:
        """1 where a version is past its standard support, 0 where it is not; None where nobody says."""
        if self._session is None:
            return None
        try:
            found = [each for each in account.releases(self._session) if each.version == version]
        except AccountError:
            return None
        return float(found[0].status == "extended") if found else None

    def _once(self, key: tuple[str, ...], ask: Callable[[], float | None]) -> float | None:
        """What `ask` found the first time; several threads may ask at once."""
        with self._guard:
            lock = self._locks.setdefault(key, Lock())
        with lock:
            if key not in self._known:
                self._known[key] = ask()
            return self._known[key]

    def _asked(self, item: Item) -> float | None:
        fields = {"regionCode": self._region, **item.fields}
        filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in fields.items()]
        found = self._pages(
            "pricing",
            "get_products",
            "PriceList",
            region=_PRICING_REGION,
            ServiceCode=item.service,
            Filters=filters,
        )
        return next(filter(None, (_usd(json.loads(each), item.usage) for each in found)), None)

    def _spot(self, instance_type: str, zone: str) -> float | None:
        found = self._pages(
            "ec2",
            "describe_spot_price_history",
            "SpotPriceHistory",
            InstanceTypes=[instance_type],
            ProductDescriptions=["Linux/UNIX"],
            AvailabilityZone=zone,
            StartTime=datetime.now(UTC),
        )
        return next((float(each["SpotPrice"]) for each in found), None)

    def _pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        """What AWS lists, as far as it can be asked."""
        if self._session is None or service in self._silent:
            return
        try:
            yield from self._session.pages(service, operation, key, **arguments)
        except AccountError as error:
            if isinstance(error, AwsError) and error.kind in ("unreachable", "denied"):
                self._silent.add(service)


def _step_of(group: Mapping[str, Any]) -> str:
    """The step that makes a node group: the system nodes come with the cluster."""
    return "cluster" if group["name"] == SYSTEM else "nodes"


def _usd(product: Mapping[str, Any], usage: str) -> float | None:
    """The price of a product with this usage type, on demand. AWS sells throughput in GiB/s; here it is MiB/s."""
    if not product["product"]["attributes"].get("usagetype", "").endswith(usage):
        return None
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            usd = float(dimension["pricePerUnit"].get("USD", 0))
            if usd:
                return usd / 1024 if dimension["unit"].startswith("GiBps") else usd
    return None
