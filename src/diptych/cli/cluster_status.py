"""`diptych status` of a service on a cluster: per step and per phase, which pod is where, and what it costs."""

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from diptych.cli import places
from diptych.cli.console import format_duration, out
from diptych.cli.places import Up
from diptych.errors import ClusterError
from diptych.progress import View

if TYPE_CHECKING:
    from diptych.eks.costs import Meter
    from diptych.kube.connection import Cluster
    from diptych.kube.job import Job, StepStatus
    from diptych.kube.nodes import NodeStatus
    from diptych.kube.status import ClusterStatus, PodStatus


class NoCluster:
    """What is known of a service whose cluster is not there, or can't be reached: the account's side alone."""

    ready = False

    def __init__(
        self, up: Up, steps: "Iterable[StepStatus]", cost: dict[str, Any] | None, blocker: str
    ) -> None:
        self.name, self.place = up.name, up.place
        self.steps, self.cost, self.blocker = tuple(steps), cost, blocker

    def to_json(self) -> dict[str, Any]:
        """The keys of docs/json.md that can be told."""
        return {
            "name": self.name,
            "place": self.place,
            "ready": False,
            "blocker": self.blocker,
            "steps": [
                {"step": each.step, "state": each.state, "text": each.text, **each.details}
                for each in self.steps
            ],
            "cost": self.cost,
        }


def look_at(up: Up, meter: "Meter | None" = None) -> "ClusterStatus | NoCluster":
    """Look at a service on a cluster: the account's side first, then what is inside.

    Args:
        meter: of whoever looks again and again.

    Raises:
        DiptychError: neither the account nor the cluster can be asked.
    """
    job = places.job_of(up, View())
    if up.place == "kubernetes":
        with places.cluster_of(up, job) as cluster:
            return _inside(job, cluster, (), None)
    from diptych.eks import status
    from diptych.eks.connection import connect
    from diptych.eks.job import EksJob

    assert isinstance(job, EksJob)
    why = f"There is no cluster {job.place.cluster} that answers."
    try:
        there = connect(job)
    except ClusterError as error:
        there, why = None, error.message
    if there is None:
        account = status.look(job, None, meter)
        first = next((each.text for each in account.steps if each.state != "ready"), why)
        return NoCluster(up, account.steps, account.cost.to_json(), first)
    with there:
        account = status.look(job, there, meter)
        return _inside(job, there, account.steps, account.cost.to_json())


def _inside(
    job: "Job", cluster: "Cluster", outer: "Iterable[StepStatus]", cost: dict[str, Any] | None
) -> "ClusterStatus":
    from diptych.kube import operator, service, status

    steps = (*outer, operator.look(job, cluster), service.look(job, cluster))
    return status.look(job, cluster, steps=steps, cost=cost)


def show(status: "ClusterStatus | NoCluster") -> None:
    """Print it: a line for the whole, one per step, a table of pods, and the cost."""
    if isinstance(status, NoCluster):
        _line(f"{status.name}: not ready, on {status.place}")
        _line(f"  blocked: {status.blocker}")
        _steps(status.steps)
        _cost(status.cost)
        return
    document = status.document
    word = "ready" if status.ready else "not ready"
    since = f", since {format_duration(time.time() - status.started_at)}" if status.started_at else ""
    _line(f"{document.name}: {word}, {document.model.name} ({document.topology}) on {document.on}{since}")
    if status.blocker:
        _line(f"  blocked: {status.blocker.text}")
        if status.blocker.do:
            _line(f"  → {status.blocker.do}")
    if status.fallback:
        _line(f"  fallback allowed: {status.fallback}")
    _steps(status.steps)
    _pods(status)
    for node in status.nodes:
        _line(f"  node {_node(node)}")
    _line(f"  endpoint {status.endpoint}; `diptych forward --name {document.name}` opens it here")
    if status.versions:
        _line("  " + ", ".join(f"{name} {version}" for name, version in status.versions.items()))
    _cost(status.cost)


def _steps(steps: "Iterable[StepStatus]") -> None:
    for step in steps:
        _line(f"  {step.step:<9} {step.state:<8} {step.text}")
        for difference in _differences(step.details):
            _line(f"    differs from the document: {difference}")


def _differences(details: Mapping[str, Any]) -> list[str]:
    """What a step's part, or one of its node groups, has otherwise than the document says."""
    groups = [each for each in details.values() if isinstance(each, Mapping)]
    return [text for part in (details, *groups) for text in part.get("differences", ())]


def _pods(status: "ClusterStatus") -> None:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for column in ("phase", "ready", "pod", "state", "node", "zone", "GPU", "EFA"):
        table.add_column(column)
    rows: list[tuple[str, str, PodStatus]] = [("head", "", status.head)] if status.head else []
    for phase in status.phases.values():
        ready = f"{phase.ready}/{phase.replicas}"
        rows += [(phase.phase, ready, pod) for pod in phase.pods]
        if not phase.pods:
            table.add_row(phase.phase, ready, "no pod yet", "", "", "", "", "")
    for name, ready, pod in rows:
        state = pod.problem or pod.state
        table.add_row(
            name, ready, pod.name, state, pod.node or "–", pod.zone or "–", str(pod.gpus), str(pod.efa)
        )
    out().print(table)


def _node(node: "NodeStatus") -> str:
    """A node: its type and zone, and how many of the devices that pods may have are taken."""
    devices = [f"GPU {node.gpus_used}/{node.gpus}", f"EFA {node.efa_used}/{node.efa}"]
    about = [node.name, node.phase, node.instance_type, node.zone, *devices, node.trouble]
    return ", ".join(filter(None, about))


def _cost(cost: Mapping[str, Any] | None) -> None:
    if cost is None:
        return
    if cost["usd_per_hour"] is None:
        _line("  what it costs is not known")
    else:
        least = "at least " if cost["at_least"] else ""
        source = f" ({cost['source']})" if cost["source"] else ""
        _line(
            f"  costs {least}${cost['usd_per_hour']:.2f} per hour, ${cost['usd_so_far']:.2f} so far{source}"
        )
    for what, missing in (("no price is known of", "unpriced"), ("not asked:", "unasked")):
        for each in cost[missing]:
            _line(f"    {what} {each}")


def _line(text: str) -> None:
    out().print(text, highlight=False, markup=False, soft_wrap=True)
