"""`diptych up` on a cluster: what will be made and its price, one question, then the steps as they come about."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diptych.cli import cluster_plan, places
from diptych.cli.cluster_prepared import Options, prepare
from diptych.cli.console import err, format_duration, out
from diptych.cli.places import Up
from diptych.cli.view import LiveView
from diptych.errors import DocumentError
from diptych.kube import remembered
from diptych.spec import Document

if TYPE_CHECKING:
    from diptych.kube.job import Job

STEPS = {"kubernetes": ("operator", "service"), "eks": ("cluster", "nodes", "operator", "service")}


def steps_of(place: str, asked: Sequence[str]) -> tuple[str, ...]:
    """The steps that are meant, in their order.

    Raises:
        DocumentError: the place has no such step.
    """
    known = STEPS[place]
    for step in asked:
        if step not in known:
            raise DocumentError(f"on {place} there is no step {step!r}.", f"One of: {', '.join(known)}.")
    return tuple(step for step in known if not asked or step in asked)


def seconds(duration: str | None) -> float | None:
    """A duration as the command line takes it, in seconds.

    >>> seconds("90m"), seconds("1.5h"), seconds("30"), seconds(None)
    (5400.0, 5400.0, 30.0, None)

    Raises:
        DocumentError: it is none.
    """
    if duration is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (duration[:-1], units[duration[-1]]) if duration[-1:] in units else (duration, 1)
    try:
        found = float(number) * unit
    except ValueError:
        found = 0.0
    if not 0 < found < 1e7:
        raise DocumentError(f"{duration!r} is no duration.", "Write it like 90s, 45m or 2h.")
    return found


def run_cluster_up(file: Path | None, overrides: list[str], document: Document, options: Options) -> int:
    """Bring a service up on a cluster; 0 when it is ready, 130 after Ctrl-C, 1 where the question was answered no.

    Raises:
        DiptychError: the document can't be served there, or a step did not come about.
    """
    if options.kubeconfig and document.on != "eks":
        raise DocumentError(
            f"--kubeconfig is for clusters that Diptych makes; the document says on: {document.on}.",
            "Leave it out: the kubeconfig that leads there is yours already.",
        )
    prepared = prepare(file, overrides, document, options)
    if prepared is None:
        return 2
    up, job, known = prepared.up, prepared.job, prepared.known
    cluster_plan.show(up, job, prepared.account, options.steps)
    if not (options.yes or options.dry_run) and not cluster_plan.agreed():
        err().print("Nothing was changed.")
        return 1
    began = time.monotonic()
    try:
        with remembered.exclusive(up.name, up.place):
            now = remembered.unchanged(up.name, up.place, known)
            service = up.known.model_copy(update={"fallback": now.fallback if now else None})
            if not options.dry_run:
                remembered.remember(service)
            with LiveView(err(), options.steps) as view:
                take(up, replace(job, view=view), options.steps)
            if "service" in options.steps and not options.dry_run:  # a KV transfer is proven again
                remembered.remember(service.model_copy(update={"fallback": None}))
    except KeyboardInterrupt:
        _tell_interrupted(up)
        return 130
    if not options.dry_run:
        _announce(up, options, time.monotonic() - began)
    if up.place == "eks":
        _tell_kubeconfigs(job, options)
    return 0


def take(up: Up, job: "Job", steps: Sequence[str]) -> None:
    """Take steps of a service's `up`.

    Raises:
        DiptychError: a step did not come about.
    """
    if up.place == "eks":
        from diptych.eks.job import EksJob
        from diptych.eks.up import bring_up

        assert isinstance(job, EksJob)
        bring_up(job, steps)
        return
    from diptych.kube.up import bring_up as bring_up_inside

    with places.cluster_of(up, job) as cluster:
        bring_up_inside(job, cluster, steps)


def _tell_interrupted(up: Up) -> None:
    err().print(
        f"Interrupted. What was made stays{' and costs money' if up.place == 'eks' else ''}: the same command goes on "
        f"from here, `diptych down --name {up.name}` takes it away.",
        highlight=False,
    )


def _tell_kubeconfigs(job: "Job", options: Options) -> None:
    """Say where the cluster's own kubeconfig is; add the cluster to the user's, where that was asked for."""
    from diptych.eks import kubeconfig
    from diptych.eks.job import EksJob

    assert isinstance(job, EksJob)
    file, cluster = kubeconfig.default_path(), job.place.cluster
    context = kubeconfig.context_of(job.session, cluster)
    if options.dry_run:
        if options.kubeconfig:
            err().print(f"would add the context {context} to {file}", soft_wrap=True)
        return
    kubeconfig.write(job.session, cluster, job.kubeconfig)
    out().print(f"  for kubectl: KUBECONFIG={job.kubeconfig}", soft_wrap=True)
    if options.kubeconfig:
        backup = kubeconfig.add_to(file, kubeconfig.content(job.session, cluster))
        out().print(f"  The context {context} is in {file}, too; `diptych down` removes it.", soft_wrap=True)
        if backup is not None:
            out().print(f"  Comments and layout of that file are gone; as it was: {backup}", soft_wrap=True)


def _announce(up: Up, options: Options, took_s: float) -> None:
    console = out()
    if "service" not in options.steps:
        console.print(f"{', '.join(options.steps)}: done in {format_duration(took_s)}.", highlight=False)
        return
    name = up.name
    console.print(
        f"{name} is ready after {format_duration(took_s)}: a KV transfer is proven.", highlight=False
    )
    for command, what in (
        (f"diptych forward --name {name}", "keep a local port open to it"),
        (f"diptych chat --name {name}", "talk to it; shows what each phase took"),
        (f"diptych verify --name {name}", "all proofs"),
        (f"diptych status --name {name}", "what is up, where, and what it costs"),
        (f"diptych down --name {name}", "take it down, and prove that nothing is left"),
    ):
        console.print(f"  {command:<34} {what}", highlight=False)
