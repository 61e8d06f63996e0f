"""Take a service down on EKS: service, operator, nodes, cluster, or some of these; then prove that nothing is left."""

from collections.abc import Collection
from contextlib import nullcontext

from diptych.eks import cluster, control_plane, going, inventory, leftovers, nodes, ownership
from diptych.eks.connection import connect
from diptych.eks.job import STEPS, EksJob
from diptych.kube import down as kube_down
from diptych.kube.connection import Cluster
from diptych.kube.job import STEPS as KUBE_STEPS
from diptych.render import names


def take_down(job: EksJob, steps: Collection[str] = STEPS) -> None:
    """Take the steps back, the last first. What other documents use stays; so does all that is not ours.

    Raises:
        LeftError: something is left; the message is the table of it.
        AccountError, ClusterError: another account or region, or something of others in the way.
    """
    ownership.require_same_place(job)
    there = connect(job)
    with there or nullcontext():
        _inside(job, there, steps)
        if nodes.STEP in steps:
            job.take(nodes.STEP, lambda: nodes.down(job, there))
        if cluster.STEP not in steps:
            return
        job.take(cluster.STEP, lambda: cluster.down(job, there))
    stays = control_plane.find(job) is not None
    job.take(leftovers.STAGE, lambda: leftovers.clear(job, document_only=stays))


def is_gone(job: EksJob) -> bool:
    """Whether nothing of the document is left in the account: inside the cluster, where that stays, nothing either.

    Raises:
        AccountError, ClusterError: AWS or the cluster can't be asked.
    """
    stays = control_plane.find(job) is not None
    there = inventory.take(job)
    if there.unasked or (there and not stays):
        return False
    own = [each for each in there.resources if each.tags.get(names.SERVICE_LABEL) == job.document.name]
    owners = [ownership.Owner.of(each.tags) for each in going.shared(there)]
    if own or any(job.document.name in owner.documents for owner in owners if owner):
        return False
    inside = connect(job)
    if inside is None:
        return True
    with inside:
        return kube_down.is_gone(job, inside)


def _inside(job: EksJob, there: Cluster | None, steps: Collection[str]) -> None:
    """What is inside the cluster; with the cluster gone, that is, too."""
    inside = [step for step in KUBE_STEPS if step in steps]
    if inside and there is not None:
        kube_down.take_down(job, there, inside)
        return
    for step in reversed(inside):
        job.take(step, lambda: "there is no cluster that it could be in")
