"""What `up` on a cluster will make and change, and its price, shown before one question."""

import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from rich.table import Table

from diptych.check import Account
from diptych.cli import places
from diptych.cli.console import err, print_dim
from diptych.cli.places import Up
from diptych.errors import DocumentError

if TYPE_CHECKING:
    from diptych.eks.job import EksJob
    from diptych.kube.job import Job


def show(up: Up, job: "Job", account: Account | None, steps: Collection[str]) -> None:
    """Print it.

    Args:
        account: None where it was not asked.
        steps: those that are taken; with `service`, also what becomes of the service that is there.

    Raises:
        DiptychError: a cluster that exists can't be asked.
    """
    if up.place == "eks":
        from diptych.eks.job import EksJob

        assert isinstance(job, EksJob)
        _show_price(job, account, steps)
    else:
        print_dim(err(), f"{up.name} goes into {inside(up)}.")
    if "service" in steps and (text := _change(up, job)):
        err().print(text, highlight=False, markup=False)


def _show_price(job: "EksJob", account: Account | None, steps: Collection[str]) -> None:
    from diptych.eks import present, prices
    from diptych.eks.plan import plan

    if account is None:
        err().print(place_of(job), highlight=False, soft_wrap=True)
        rows = [row for row in prices.price(job.document, job.facts).rows if row.step in steps]
        if rows:
            err().print(f"In all {prices.Price(tuple(rows)).total}.", highlight=False)
        print_dim(err(), "What of it is there already was not asked (--offline).")
        return
    there = present.look(job, account.cluster, steps)
    version = there.cluster.version if there.cluster else job.document.eks.kubernetes_version
    price = prices.price(job.document, job.facts, job.session, version=version, of_others=there.is_of_others)
    made = plan(job.document, job.facts, account, price, there, steps)
    shown = [
        (
            part.step,
            f"{part.what}{f' ({part.there})' if part.there else ''}",
            in_words(part.usd_per_hour, unpriced=part.unpriced),
        )
        for part in made.parts
    ]
    err().print(priced(made.place, shown))
    if made.price.rows:  # some steps cost nothing by themselves
        err().print(f"In all {made.price.total}.", highlight=False)


def _change(up: Up, job: "Job") -> str:
    """What becomes of a service that is there; empty where there is none yet."""
    from diptych.kube import service

    if up.place == "eks":
        from diptych.eks import nodes
        from diptych.eks.connection import connect
        from diptych.eks.job import EksJob

        assert isinstance(job, EksJob)
        there = connect(job)
        if there is None:
            return ""
        with there:
            found = service.plan(nodes.in_their_zone(job), there)
    else:
        with places.cluster_of(up, job) as cluster:
            if not cluster.knows("RayService"):
                return ""
            found = service.plan(job, cluster)
    return "" if found.kind == "first" else found.text


def inside(up: Up) -> str:
    """Namespace and context of a service on a cluster that exists."""
    known = up.known
    context = known.document.kubernetes.context or known.context
    which = f"the cluster of context {context}" if context else "the cluster of the current context"
    return f"namespace {known.document.kubernetes.namespace} of {which}"


def place_of(job: "EksJob") -> str:
    """Region, account and who changes things in it.

    Raises:
        AccountError: AWS can't be asked.
    """
    from diptych.eks.plan import place

    return place(job.identity, job.place.region)


def priced(title: str, rows: Iterable[tuple[str, str, str]]) -> Table:
    """A table of steps, what belongs to each, and what that costs per hour."""
    table = Table(box=None, padding=(0, 2), header_style="dim", title=title, title_justify="left")
    for column in ("step", "what", "$ per hour"):
        table.add_column(column, justify="right" if column.startswith("$") else "left")
    last = ""
    for step, what, usd in rows:
        table.add_row("" if step == last else step, what, usd)
        last = step
    return table


def in_words(usd_per_hour: float | None, *, unpriced: bool) -> str:
    """A price in a table; empty for what costs nothing by itself."""
    return "not known" if unpriced else "" if usd_per_hour is None else f"{usd_per_hour:.3f}"


def agreed() -> bool:
    """Ask once; whoever can't be asked has to say --yes.

    Raises:
        DocumentError: there is nobody to ask.
    """
    if not sys.stdin.isatty():
        raise DocumentError("Nobody is here to be asked whether to go on.", "Run it with --yes.")
    err().print("Go on? [y/N] ", end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
