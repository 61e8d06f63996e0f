"""Take a service down from a cluster that stays: the steps of `up` backwards, each as often as one likes."""

from collections.abc import Mapping, Sequence

from diptych.kube import operator, ours, removal, service
from diptych.kube.connection import Cluster
from diptych.kube.job import STEPS, Job
from diptych.kube.up import Step, take_step

DOWN: Mapping[str, Step] = {"service": service.down, "operator": operator.down}


def take_down(job: Job, cluster: Cluster, steps: Sequence[str] = STEPS) -> None:
    """Undo the given steps, the last first; what others need stays, and is told.

    Raises:
        DiptychError: something does not go; the message names what holds it.
    """
    for step in (each for each in reversed(STEPS) if each in steps):
        take_step(job, cluster, step, DOWN[step])


def is_gone(job: Job, cluster: Cluster) -> bool:
    """Whether nothing of the service is left in a cluster. A namespace of ours that others use now is not of it."""
    if service.look(job, cluster).state not in ("absent", "foreign") or removal.objects(job, cluster):
        return False
    if operator.look(job, cluster).state not in ("absent", "foreign"):
        return False
    name = job.document.kubernetes.namespace
    namespace = cluster.get("Namespace", name)
    return namespace is None or not ours.is_ours(namespace) or bool(ours.residents(cluster, name))
