"""`diptych down` on a cluster: what will go, one question, the steps backwards, and the proof that nothing is left."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diptych.cli import places
from diptych.cli.cluster_plan import agreed, in_words, inside, place_of, priced
from diptych.cli.cluster_prepared import Options
from diptych.cli.cluster_up import STEPS
from diptych.cli.console import err, format_duration, out, print_dim
from diptych.cli.places import Up
from diptych.cli.recalled import is_called_like
from diptych.cli.view import LiveView
from diptych.errors import AccountError, ClusterError, NotUpError, SetupError
from diptych.kube import remembered
from diptych.kube.remembered import Remembered, UnreadableError
from diptych.progress import View

if TYPE_CHECKING:
    from diptych.eks.job import EksJob
    from diptych.kube.connection import Cluster
    from diptych.kube.job import Job


def run_cluster_down(up: Up, options: Options) -> int:
    """Take a service down; 0 when nothing of it is left, 130 after Ctrl-C, 1 where the question was answered no.

    Raises:
        NotUpError: nothing of it is where the credentials lead, and nobody remembers that it was there.
        DiptychError: something does not go, or is left; the message says what, why, and what it costs.
    """
    job = places.job_of(
        up, View(), dry_run=options.dry_run, timeout_s=options.timeout_s, replace=options.replace
    )
    steps = tuple(reversed(options.steps))
    _show(up, job, options)
    if not (options.yes or options.dry_run):
        err().print(f"{', '.join(steps)} of {up} will be taken down{_where(up, job)}.", highlight=False)
        if not agreed():
            err().print("Nothing was changed.")
            return 1
    began = time.monotonic()
    try:
        with remembered.exclusive(up.name, up.place):
            require_unchanged(up)
            with LiveView(err(), (*steps, *_last_stage(up))) as view:
                take(up, replace(job, view=view), options.steps)
            if options.dry_run:
                return 0
            is_gone = set(options.steps) == set(STEPS[up.place]) or is_nowhere(up, job)
            _leave_kubeconfigs(up, job, options.steps)
            if is_gone:
                remembered.forget(up.name, up.place)
    except KeyboardInterrupt:
        err().print("Interrupted. The same command goes on from here; what is left may cost money meanwhile.")
        return 130
    took = format_duration(time.monotonic() - began)
    done = f"{up.name} is down" if is_gone else f"{', '.join(steps)} of {up.name}: down"
    out().print(f"{done} after {took}.", highlight=False)
    return 0


def require_unchanged(up: Up) -> None:
    """Under the lock: what is remembered is still what was shown.

    Raises:
        ClusterError: another command has changed it meanwhile.
    """
    try:
        remembered.unchanged(up.name, up.place, up.remembered if up.is_recalled else None)
    except UnreadableError:
        if up.unreadable is None:
            raise


def _show(up: Up, job: "Job", options: Options) -> None:
    """Say in which place this happens, and what it takes away; what is nowhere to be found is not taken down.

    Raises:
        NotUpError: nobody remembers where it is, and it is not here.
        DiptychError: it is in another account, or nobody can be asked.
    """
    if up.place != "eks":
        print_dim(err(), f"{up.name} is in {inside(up)}.")
    else:
        from diptych.eks import ownership
        from diptych.eks.job import EksJob

        assert isinstance(job, EksJob)
        err().print(place_of(job), highlight=False, soft_wrap=True)
        ownership.require_same_place(job)
        if options.dry_run or not options.yes:
            _show_price(job, options.steps)
    is_known = up.known.account is not None if up.place == "eks" else up.is_recalled
    if not is_known and is_nowhere(up, job, patiently=False):
        raise _nothing_here(up, job)


def _show_price(job: "EksJob", steps: Sequence[str]) -> None:
    from diptych.eks import cluster, inventory, nodes
    from diptych.eks.going import going

    if not {cluster.STEP, nodes.STEP} & set(steps):
        print_dim(err(), "Nodes and cluster stay, and cost what they did.")
        return
    found = going(job, steps, inventory.take(job))
    rows = []
    for part in found.parts:
        usd = part.price.usd_per_hour if part.price.rows else None
        rows.append((part.step, part.what, in_words(usd, unpriced=not usd and not part.price.is_whole)))
    if rows:
        err().print(priced("", rows))
        least = "" if found.price.is_whole else "at least "
        sources = f": {', '.join(found.price.sources)}" if found.price.sources else ""
        err().print(
            f"In all {least}${found.price.usd_per_hour:,.2f} per hour that will not be paid any more{sources}.",
            highlight=False,
        )
    else:
        err().print("An inventory by tag finds nothing that these steps would take away.")
    if found.users:
        err().print(f"The cluster stays: {', '.join(found.users)} uses it.", highlight=False)
    for why in found.unasked:
        print_dim(err(), f"Not looked for, since that may not be asked: {why}")


def _nothing_here(up: Up, job: "Job") -> NotUpError:
    if up.place == "eks":
        from diptych.eks.job import EksJob

        assert isinstance(job, EksJob)
        where = f"account {job.place.account}, region {job.place.region}, cluster {job.place.cluster}"
        elsewhere = "another account, use its credentials (AWS_PROFILE)"
    else:
        where, elsewhere = inside(up), "another cluster, name its context (kubernetes.context)"
    hint = f"If it is up in {elsewhere} and run the same command again."
    if up.is_recalled or up.unreadable:
        file = remembered.file_of(up.name, up.place)
        hint += f" What is remembered of it stays; if it is up nowhere, remove {file}."
    return NotUpError(f"Nothing of {up.name} is in {where}.", hint)


def is_nowhere(up: Up, job: "Job", *, patiently: bool = True) -> bool:
    """Whether nothing of it is left.

    Args:
        patiently: what can't be asked counts as left; else it is an error.
    """
    from diptych.eks.job import EksJob

    try:
        if isinstance(job, EksJob):
            from diptych.eks import down

            return down.is_gone(job)
        from diptych.kube.down import is_gone

        with ExitStack() as stack:
            return is_gone(job, _enter(stack, up, job))
    except (AccountError, ClusterError):
        if not patiently:
            raise
        return False


def _leave_kubeconfigs(up: Up, job: "Job", steps: Sequence[str]) -> None:
    """Take the cluster out of the user's own kubeconfigs again, unless another document keeps it there."""
    if up.place != "eks" or "cluster" not in steps:
        return
    from diptych.eks import kubeconfig
    from diptych.eks.job import EksJob

    assert isinstance(job, EksJob)
    kept = {
        file
        for each in remembered.known()
        if isinstance(each, Remembered)
        and each.name != up.name
        and is_called_like(each, job.place)
        and each.account in (None, job.place.account)
        for file in each.kubeconfigs
    }
    context = kubeconfig.context_of(job.session, job.place.cluster)
    for file in (each for each in up.known.kubeconfigs if each not in kept):
        try:
            if kubeconfig.remove_from(Path(file), context):
                err().print(
                    f"The context {context} was removed from {file}.", highlight=False, soft_wrap=True
                )
        except SetupError as error:  # the service is down all the same
            err().print(
                f"The context {context} stays in {file}: {error.message} {error.hint}".rstrip(),
                highlight=False,
                soft_wrap=True,
            )


def _where(up: Up, job: "Job") -> str:
    if up.place != "eks":
        return ""
    from diptych.eks.job import EksJob

    assert isinstance(job, EksJob)
    return f" in {job.place.region} of account {job.place.account}, cluster {job.place.cluster}"


def _last_stage(up: Up) -> tuple[str, ...]:
    if up.place != "eks":
        return ()
    from diptych.eks import leftovers

    return (leftovers.STAGE,)


def take(up: Up, job: "Job", steps: Sequence[str]) -> None:
    """Take steps of a service's `down`.

    Raises:
        DiptychError: something does not go.
    """
    if up.place == "eks":
        from diptych.eks.down import take_down
        from diptych.eks.job import EksJob

        assert isinstance(job, EksJob)
        take_down(job, steps)
        return
    from diptych.kube.down import take_down as take_down_inside

    with ExitStack() as stack:
        take_down_inside(job, _enter(stack, up, job), steps)


def _enter(stack: ExitStack, up: Up, job: "Job") -> "Cluster":
    """Connect to a cluster that exists; where it may be gone for good, say how to get rid of its name."""
    try:
        return stack.enter_context(places.cluster_of(up, job))
    except ClusterError as error:
        if up.is_recalled or up.unreadable:
            error.hint += f"\nIf that cluster is gone for good: diptych down --name {up.name} --forget"
        raise
