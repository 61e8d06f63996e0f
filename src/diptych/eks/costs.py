"""What a document's share of an account costs: what runs now and since when, by the prices that the plan has, too."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from diptych.eks import inventory
from diptych.eks.inventory import Inventory, Resource
from diptych.eks.job import EksJob
from diptych.eks.prices import Book, Price, Row
from diptych.errors import DiptychError
from diptych.render import names

AGAIN_S = 60.0
"""Seconds for which a cost holds: whoever looks every other second must not have the account listed each time."""

_AT_ONCE = 8
_RUNNING = ("", "pending", "running")


@dataclass(frozen=True)
class Cost:
    """US dollars by the prices of now, for what runs now: per hour, and since each was made.

    Args:
        per_hour, so_far: None where nobody could be asked what runs. `so_far` is without what has gone already:
            nodes that were replaced, traffic, storage elsewhere.
        sources: where the prices are from, with the region and the day.
        unpriced: what has no known price, in words.
        unasked: why something could not be listed.
    """

    per_hour: float | None
    so_far: float | None
    sources: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """It is no more than this: all that may cost something was listed, and has a price."""
        return not self.unpriced and not self.unasked

    def to_json(self) -> dict[str, Any]:
        """The part of `docs/json.md`'s shape."""
        return {
            "usd_per_hour": None if self.per_hour is None else round(self.per_hour, 4),
            "usd_so_far": None if self.so_far is None else round(self.so_far, 2),
            "at_least": not self.is_whole,
            "source": ", ".join(self.sources),
            "unpriced": list(self.unpriced),
            "unasked": list(self.unasked),
        }


class Meter:
    """Tells the costs of services again and again, and asks the account once a minute.

    Args:
        again_s: seconds for which a cost holds.
    """

    def __init__(self, again_s: float = AGAIN_S) -> None:
        self._again_s = again_s
        self._read: dict[tuple[str, str], tuple[float, Cost]] = {}

    def read(self, job: EksJob) -> Cost:
        """What runs for a job's document, as `of` tells it; one that can't be told says why in `unasked`."""
        key = (job.document.name, job.place.cluster)
        at, cost = self._read.get(key, (0.0, None))
        if cost is None or time.monotonic() - at > self._again_s:
            try:
                cost = of(job)
            except DiptychError as error:
                cost = Cost(None, None, unasked=(error.message,))
            self._read[key] = (time.monotonic(), cost)
        return cost


def of(job: EksJob) -> Cost:
    """What runs for this document now: its own nodes, and all that its cluster has in common.

    Raises:
        AccountError: AWS can't be asked. What it only refuses to list is named instead.
    """
    book = Book(job.place.region, job.session)
    return total(inventory.take(job, paid_only=True), job.document.name, job.now(), book)


def total(there: Inventory, document: str, now: float, book: Book) -> Cost:
    """The sum for one document; on somebody else's cluster without what is theirs.

    Formula: Σ price per hour, and Σ price per hour × hours since the resource was made. An address does not say
    when that was: it counts since the cluster's time.
    """
    shared = [each for each in there.of_ours if each.tags.get(names.SERVICE_LABEL, document) == document]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        prices = list(pool.map(lambda each: price_of(each, book), shared))
    clusters = [each.made_at for each in shared if each.kind == "cluster"]
    so_far = 0.0
    for resource, price in zip(shared, prices, strict=True):
        began = resource.made_at or next(iter(clusters), None)
        if began is not None:
            so_far += price.usd_per_hour * max(0.0, now - began.timestamp()) / 3600
    whole = Price(tuple(row for price in prices for row in price.rows))
    unpriced = [
        str(each) if len(price.rows) == 1 else f"{row.what} of {each}"
        for each, price in zip(shared, prices, strict=True)
        for row in price.rows
        if row.usd_per_hour is None
    ]
    return Cost(whole.usd_per_hour, so_far, whole.sources, tuple(unpriced), there.unasked)


def price_of(resource: Resource, book: Book) -> Price:
    """What a resource costs per hour; without rows where it costs nothing by itself."""
    return Price(_ROWS.get(resource.kind, _unknown)(resource, book))


def _instance(resource: Resource, book: Book) -> tuple[Row, ...]:
    about = resource.details
    if resource.state not in _RUNNING:
        return ()
    found = (about.get("instance_type", ""), about.get("market", "on-demand"), about.get("zone", ""))
    return (book.instances(*found),)


def _volume(resource: Resource, book: Book) -> tuple[Row, ...]:
    about = resource.details
    kind, gib = about.get("volume_type", "gp3"), about.get("gib", 0)
    return (book.volume(kind, gib, mibps=about.get("mibps", 0), iops=about.get("iops", 0)),)


def _nothing(resource: Resource, book: Book) -> tuple[Row, ...]:
    return ()


def _unknown(resource: Resource, book: Book) -> tuple[Row, ...]:
    return (Row("", str(resource), None, ""),)


_FREE = (
    "stack",
    "node group",
    "network interface",
    "placement group",
    "launch template",
    "security group",
    "VPC",
    "OIDC provider",
)
_ROWS: Mapping[str, Callable[[Resource, Book], tuple[Row, ...]]] = MappingProxyType(
    {
        "instance": _instance,
        "volume": _volume,
        "cluster": lambda resource, book: book.cluster(resource.details.get("version", "")),
        "NAT gateway": lambda resource, book: (book.nat_gateway(),),
        "address": lambda resource, book: (book.address(),),
        "load balancer": lambda resource, book: (
            book.load_balancer(resource.details.get("type", "network")),
        ),
        **dict.fromkeys(_FREE, _nothing),
    }
)
