"""Bring a service up on a cluster that exists: each step can be repeated, so any `up` goes on where one ended."""

from collections.abc import Callable, Mapping, Sequence

from diptych.errors import DiptychError
from diptych.kube import operator, service
from diptych.kube.connection import Cluster
from diptych.kube.job import STEPS, Job

Step = Callable[[Job, Cluster], str]
"""Does its part and says in words what came of it."""

UP: Mapping[str, Step] = {"operator": operator.up, "service": service.up}


def bring_up(job: Job, cluster: Cluster, steps: Sequence[str] = STEPS) -> None:
    """Do the given steps, in their order; the view is told of each by its name.

    Raises:
        DiptychError: a step did not come about; the message says why, and the same command goes on from there.
    """
    for step in (each for each in STEPS if each in steps):
        take_step(job, cluster, step, UP[step])


def take_step(job: Job, cluster: Cluster, step: str, work: Step) -> None:
    """Do one step and tell of its start and its end.

    Raises:
        DiptychError: it did not come about.
    """
    job.tell("start", step)
    try:
        text = work(job, cluster)
    except DiptychError as error:
        job.tell("failed", step, error.message, error.hint)
        raise
    job.tell("done", step, text)
