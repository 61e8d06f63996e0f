"""Bring a service up on EKS: cluster, nodes, operator, service, or some of these; what is there already is kept."""

from collections.abc import Collection

from diptych.eks import cluster, nodes, ownership
from diptych.eks.connection import require
from diptych.eks.job import STEPS, EksJob
from diptych.kube import up as kube_up
from diptych.kube.job import STEPS as KUBE_STEPS


def bring_up(job: EksJob, steps: Collection[str] = STEPS) -> None:
    """Take the steps in their order. Each can be taken again, and goes on where it was interrupted.

    Raises:
        AccountError, ClusterError, SetupError: a step failed; in words.
    """
    ownership.require_same_place(job)
    if cluster.STEP in steps:
        job.take(cluster.STEP, lambda: cluster.up(job))
    inside = [step for step in KUBE_STEPS if step in steps]
    if not inside and nodes.STEP not in steps:
        return
    with require(job) as there:
        if nodes.STEP in steps:
            job.take(nodes.STEP, lambda: nodes.up(job, there))
        if inside:
            kube_up.bring_up(nodes.in_their_zone(job), there, inside)
