"""`bench compare` on a cluster: which service is compared, whether it can be, and what will happen to it."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diptych.cli import places
from diptych.cli.bench_places import Side
from diptych.cli.cluster_plan import inside, place_of
from diptych.cli.cluster_prepared import Options, prepare
from diptych.cli.console import err, format_duration
from diptych.cli.places import Up
from diptych.errors import ClusterError
from diptych.kube.remembered import Remembered
from diptych.spec import Document, load

if TYPE_CHECKING:
    from diptych.kube.connection import Cluster
    from diptych.kube.job import Job

STEPS = ("service",)
NOTHING = "nothing"
OWN = "its own document"


@dataclass(frozen=True)
class Comparing:
    """A service on a cluster that is about to be compared.

    Args:
        up: the service, its document as it stands.
        job: of that document.
        known: what is remembered of it; None: nothing.
        jobs: of the sides, by their names. A side that is the document itself has the document's own.
        was_up: whether it is there already, and is to stay; else it goes again at the end.
        last_start_s: seconds that its last start took; None where nothing tells.
        command: what has the service be its own document again.
        fresh: engines that have served a side are not measured in a later turn: their caches would know the prompts.
    """

    up: Up
    job: "Job"
    known: Remembered | None
    jobs: dict[str, "Job"]
    was_up: bool
    last_start_s: float | None
    command: str
    fresh: bool = False

    @property
    def own(self) -> str:
        """The side that is the document itself; its document where none is."""
        return next((name for name, job in self.jobs.items() if job is self.job), OWN)

    @property
    def before(self) -> str:
        """The side that the service is before any turn, and at the end again."""
        return self.own if self.was_up else NOTHING

    def changes(self, order: Sequence[str]) -> int:
        """How often the service is changed if it is these sides in turn, and at the end what it was."""
        changed = sum(self.fresh or now != was for was, now in pairwise([self.before, *order]))
        return changed + (order[-1] != self.before)


def prepare_comparison(
    file: Path | None, overrides: list[str], sides: Sequence[Side], *, timeout_s: float | None, fresh: bool
) -> Comparing | None:
    """Check the document, its place and each side; None where the document has errors, which are printed.

    Raises:
        DocumentError: a side does not find its GPUs on the nodes that are there.
        ClusterError: no operator or cluster is there, or what is up is another document.
        DiptychError: the account or the cluster can't be asked.
    """
    document = load(file, overrides)
    prepared = prepare(file, overrides, document, Options(STEPS, timeout_s=timeout_s, replace=True))
    if prepared is None:
        return None
    up, job, known = prepared.up, prepared.job, prepared.known
    command = _up_again(file, overrides)
    with _inside(up, job) as (there, cluster):
        _require_operator(there, cluster, command)
        was_up, took_s = _look(there, cluster)
        if was_up:
            _require_the_document(up, there, cluster, known, command)
        jobs = {side.name: _job_of(there, load(file, [*overrides, *side.overrides])) for side in sides}
        _require_gpus(jobs, cluster)
    return Comparing(up, there, known, jobs, was_up, took_s, command, fresh)


def tell_plan(comparing: Comparing, order: Sequence[str], load_s: float) -> None:
    """Say what is about to happen to the service, for how long, and what that costs.

    Args:
        order: the sides in turn.
        load_s: seconds for which loads are sent, at least.
    """
    up, job = comparing.up, comparing.job
    changes = comparing.changes(order)
    lines = [
        f"{up.name} in {_where(up, job)} is measured on the nodes that are there: {', then '.join(order)}.",
        f"For that it is changed {'once' if changes == 1 else f'{changes} times'}: all its pods end and start anew. "
        f"{_each(comparing)}, and the loads take {format_duration(load_s)} at least.",
        "Meanwhile it is not available to its users: between two sides it answers nobody, and while one is measured "
        "their requests would be answered by that side, and disturb.",
        f"At the end, also after Ctrl-C or a failure, {_end(comparing)}",
    ]
    if up.place == "eks":
        lines.append(_cost(job))
    for line in lines:
        err().print(line, highlight=False, soft_wrap=True)


def _require_operator(job: "Job", cluster: "Cluster", command: str) -> None:
    from diptych.kube.operators import find

    namespace = job.document.kubernetes.namespace
    if not any(each.watches(namespace) for each in find(cluster)):
        raise ClusterError(
            f"No KubeRay operator watches the namespace {namespace}, and a comparison brings up the service alone.",
            f"Have the rest made first: {command.removesuffix(' --step service')}",
        )


def _look(job: "Job", cluster: "Cluster") -> tuple[bool, float | None]:
    """Whether the service is there, and how long its last start took."""
    from diptych.kube import service

    is_there = service.look(job, cluster).state not in ("absent", "going")
    return is_there, service.last_start_s(job, cluster) if is_there else None


def _require_the_document(
    up: Up, job: "Job", cluster: "Cluster", known: Remembered | None, command: str
) -> None:
    """What is up is the document that is compared: else putting it back would be a change.

    Raises:
        ClusterError: it is another one.
    """
    from diptych.kube import ours, service

    if known is not None:
        others = _differences(known.document.model_dump(), up.known.document.model_dump())
    else:
        others = list(service.plan(job, cluster).what)
    if others:
        raise ClusterError(
            f"What is up is not what the document says: {ours.few(others)} would change.",
            f"Bring up what is to be compared first: {command}",
        )


def _differences(one: Any, other: Any, path: str = "") -> list[str]:
    """The fields in which two documents differ, by name.

    >>> _differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
    ['a.c']
    """
    if isinstance(one, dict) and isinstance(other, dict):
        names = dict.fromkeys([*one, *other])
        return [
            each
            for name in names
            for each in _differences(one.get(name), other.get(name), f"{path}.{name}".lstrip("."))
        ]
    return [] if one == other else [path]


def _job_of(job: "Job", document: Document) -> "Job":
    """The job of a side; its pods may stand on the nodes of either phase."""
    if document == job.document:
        return job
    return replace(job, document=document, facts=replace(job.facts, any_phase_nodes=True))


def _require_gpus(jobs: dict[str, "Job"], cluster: "Cluster") -> None:
    from diptych.kube.service import lacking

    for name, job in jobs.items():
        if missing := lacking(job, cluster):
            raise ClusterError(
                f"The nodes that are there can't hold {name}: {missing}.",
                "Free GPUs or add nodes; or compare what fits, with --ratio.",
            )


@contextmanager
def _inside(up: Up, job: "Job") -> Iterator[tuple["Job", "Cluster"]]:
    """The cluster's API, and the job with what only the place knows: on EKS the zone that its nodes are in."""
    with places.cluster_of(up, job) as cluster:
        if up.place == "eks":
            from diptych.eks import nodes
            from diptych.eks.job import EksJob

            assert isinstance(job, EksJob)
            job = nodes.in_their_zone(job)
        yield job, cluster


def _up_again(file: Path | None, overrides: Sequence[str]) -> str:
    """The command that has the service be its document."""
    words = ["diptych", "up", *([str(file)] if file else [])]
    words += [word for each in overrides for word in ("--set", each)]
    return shlex.join([*words, "--step", "service"])


def _where(up: Up, job: "Job") -> str:
    if up.place != "eks":
        return inside(up)
    from diptych.eks.job import EksJob

    assert isinstance(job, EksJob)
    return f"the cluster {job.place.cluster}, {place_of(job)}"


def _each(comparing: Comparing) -> str:
    from diptych.kube.service import deadline_s

    most = f"{format_duration(deadline_s(comparing.job))} at most"
    if comparing.last_start_s is None:
        return f"Each time takes as long as `diptych up` of it, {most}"
    return (
        f"Each time takes about as long as its last start, {format_duration(comparing.last_start_s)} ({most})"
    )


def _end(comparing: Comparing) -> str:
    if not comparing.was_up:
        return "it is taken down again, for it is not up now."
    return f"it is put back to its document. Should this be killed, do that yourself: {comparing.command}"


def _cost(job: "Job") -> str:
    """What the cluster costs, whether it is measured or not."""
    from diptych.eks.costs import Meter
    from diptych.eks.job import EksJob

    assert isinstance(job, EksJob)
    cost = Meter().read(job)
    if cost.per_hour is None:
        return f"What the cluster costs meanwhile is not known: {' '.join(cost.unasked)}"
    least = "" if cost.is_whole else "at least "
    sources = f": {', '.join(cost.sources)}" if cost.sources else ""
    return f"The cluster costs {least}${cost.per_hour:,.2f} per hour meanwhile, as it does now{sources}."
