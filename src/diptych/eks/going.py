"""What `down` will take away, step by step, with what each part costs per hour: shown before anything is asked."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from diptych.eks import cluster, costs, nodes, ownership
from diptych.eks.inventory import Inventory, Resource
from diptych.eks.job import EksJob
from diptych.eks.prices import Book, Price
from diptych.render import names

_STAYING = ("volume", "load balancer")


@dataclass(frozen=True)
class Part:
    """Things of one kind that a step takes away.

    Args:
        what: how many of what: "2 × instance g6.8xlarge".
        price: of all of them; without rows where they cost nothing by themselves.
    """

    step: str
    what: str
    price: Price


@dataclass(frozen=True)
class Going:
    """All that will go.

    Args:
        parts: in the order in which they go.
        users: the other documents for which the cluster, and what it has in common, stays.
        unasked: what could not be looked for, with the reason.
    """

    parts: tuple[Part, ...]
    users: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()

    @property
    def price(self) -> Price:
        """Of everything together."""
        return Price(tuple(row for part in self.parts for row in part.price.rows))


def going(job: EksJob, steps: Collection[str], there: Inventory) -> Going:
    """What these steps take away of what is there; nothing that costs, where they are inside the cluster alone."""
    users = users_of(job, there)
    book = Book(job.place.region, job.session)
    groups: dict[tuple[str, str], list[Resource]] = {}
    for each in there.of_ours:
        step = _step(job, each)
        if step in steps and _goes(each) and not (step == cluster.STEP and users):
            groups.setdefault((step, _kind(each)), []).append(each)
    parts = [
        Part(step, f"{len(found)} × {kind}", _price(found, book)) for (step, kind), found in groups.items()
    ]
    parts.sort(key=lambda part: -part.price.usd_per_hour)
    return Going(tuple(_folded(parts)), users if cluster.STEP in steps else (), there.unasked)


def users_of(job: EksJob, there: Inventory) -> tuple[str, ...]:
    """The other documents that use the cluster: by its tags, and by what was made for them alone."""
    labels = {each.tags.get(names.SERVICE_LABEL, job.document.name) for each in there.resources}
    named = {name for each in shared(there) for name in ownership.others(job, each.tags)}
    return tuple(sorted((labels | named) - {job.document.name}))


def shared(there: Inventory) -> tuple[Resource, ...]:
    """What tells by its tags which documents use the cluster: itself; on somebody else's, the system nodes' group."""
    of = {
        kind: tuple(
            each
            for each in there.resources
            if each.kind == kind and each.by == "diptych" and names.SERVICE_LABEL not in each.tags
        )
        for kind in ("cluster", "node group")
    }
    return of["cluster"] or of["node group"]


def _step(job: EksJob, resource: Resource) -> str:
    """The step that takes a resource away; none where it was made for another document."""
    label = resource.tags.get(names.SERVICE_LABEL)
    if label is None:
        return cluster.STEP
    return nodes.STEP if label == job.document.name else ""


def _goes(resource: Resource) -> bool:
    """Whether `down` takes it away: what claims and Services in a cluster made may be somebody's, and stays."""
    return resource.is_made_for_us or resource.by != "cluster" or resource.kind not in _STAYING


def _kind(resource: Resource) -> str:
    about = resource.details
    if resource.kind == "instance":
        return f"instance {about.get('instance_type', '')} ({about.get('market', 'on-demand')})"
    if resource.kind == "volume":
        return f"volume {about.get('volume_type', '')}, {about.get('gib', 0)} GiB"
    return f"cluster {resource.id}" if resource.kind == "cluster" else resource.kind


def _price(resources: list[Resource], book: Book) -> Price:
    return Price(tuple(row for each in resources for row in costs.price_of(each, book).rows))


def _folded(parts: list[Part]) -> list[Part]:
    """One part for all of a step that cost nothing by themselves."""
    found = [part for part in parts if part.price.rows]
    for step in (nodes.STEP, cluster.STEP):
        free = Counter(part.what for part in parts if part.step == step and not part.price.rows)
        if free:
            found.append(Part(step, ", ".join(free), Price(())))
    return sorted(found, key=lambda part: part.step != nodes.STEP)
