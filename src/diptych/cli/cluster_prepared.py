"""What `up` on a cluster needs before it shows its plan: the document checked, what is remembered, and a job."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diptych.check import Account, Report, check_file
from diptych.cli import places, recalled
from diptych.cli.check import print_findings
from diptych.cli.cluster_checks import ask_account, ask_cluster
from diptych.cli.console import err, print_dim
from diptych.cli.places import Up
from diptych.cli.render import facts_of
from diptych.kube import remembered
from diptych.kube.remembered import Remembered
from diptych.progress import View
from diptych.render.inputs import Facts
from diptych.render.layout import worker_groups
from diptych.spec import Document

if TYPE_CHECKING:
    from diptych.kube.job import Job


@dataclass(frozen=True)
class Options:
    """How `up` and `down` go about it.

    Args:
        steps: which of the place's; all of them by default.
        yes: nothing is asked.
        dry_run: nothing is changed; what would be is told.
        offline: neither the account or cluster nor the hub is checked before.
        timeout_s: deadline of each wait.
        replace: go on although it ends what serves now, or needs the GPUs of a second cluster.
        kubeconfig: add the EKS cluster to the user's own kubeconfig, too.
    """

    steps: tuple[str, ...]
    yes: bool = False
    dry_run: bool = False
    offline: bool = False
    timeout_s: float | None = None
    replace: bool = False
    kubeconfig: bool = False


@dataclass(frozen=True)
class Prepared:
    """A document that can be served on its cluster.

    Args:
        up: the service, with what an `up` of it remembers.
        job: of it, with a view that shows nothing.
        known: what is remembered of it now; None: nothing.
        account: as it was described; None where it was not asked.
    """

    up: Up
    job: "Job"
    known: Remembered | None
    account: Account | None


def prepare(file: Path | None, overrides: list[str], document: Document, options: Options) -> Prepared | None:
    """Check the document and its place, and have all that its steps are given; None where that found errors: printed.

    Raises:
        DiptychError: the account or the cluster can't be asked, or the service is up in another one.
    """
    known = remembered.recall(document.name, document.on)
    report = _checked(file, overrides, options)
    if not report.ok or report.subject is None:
        print_findings(err(), report)
        return None
    _print_warnings(report)
    facts = _facts(report, file, document, known, options)
    up = Up(document.name, document.on, recalled.of_up(file, document, facts, known))
    job = _job(up, known, facts, options)
    up = replace(up, remembered=_whole(up, job, options))
    if known is not None:
        recalled.refuse_elsewhere(known, up.known)
        uid = up.known.cluster_uid or known.cluster_uid
        up = replace(up, remembered=up.known.model_copy(update={"cluster_uid": uid}))
    return Prepared(up, job, known, report.subject.facts.account)


def _checked(file: Path | None, overrides: list[str], options: Options) -> Report:
    if not options.offline:
        print_dim(err(), "checking the document, and what it will meet there …")
    return check_file(
        file,
        overrides,
        offline=options.offline,
        account=ask_account,
        cluster=ask_cluster,
    )


def _print_warnings(report: Report) -> None:
    for finding in report.findings:
        print_dim(err(), f"{finding.code} {finding}")


def _facts(
    report: Report, file: Path | None, document: Document, known: Remembered | None, options: Options
) -> Facts:
    """What the steps are told beside the document. What an earlier `up` chose stays: nothing changes by itself."""
    assert report.subject is not None
    commit = report.subject.facts.model.commit
    same_model = known is not None and known.document.model == document.model
    if same_model and known is not None and known.model_revision:
        if commit not in (None, known.model_revision):
            print_dim(
                err(),
                f"{document.model.source} has moved on to {commit}; set model.revision to it to take it.",
            )
        commit = known.model_revision
    facts = replace(facts_of(report, file), model_revision=commit, zone=known.zone if known else None)
    if document.on != "eks":
        return facts
    zone = facts.zone or _zone(document, report.subject.facts.account)
    return replace(facts, zone=zone, public_access_cidrs=_cidrs(document, known, options))


def _zone(document: Document, account: Account | None) -> str | None:
    """A zone that offers what all GPU nodes ask for, where the document leaves it open."""
    types = [group.instance_type for group in worker_groups(document) if group.instance_type]
    zones = account.zones_with(types) if account is not None else ()
    return zones[0] if zones else None


def _cidrs(document: Document, known: Remembered | None, options: Options) -> tuple[str, ...]:
    if document.eks.public_access_cidrs or document.eks.private_access_only:
        return ()
    if known is not None and known.public_access_cidrs:
        return known.public_access_cidrs
    if "cluster" not in options.steps:
        return ()
    from diptych.eks.address import own_cidr

    return (own_cidr(),)


def _whole(up: Up, job: "Job", options: Options) -> Remembered:
    """With what AWS or the cluster alone says: without it, a `down` that is led elsewhere would go by the names.

    Raises:
        AccountError, ClusterError: it can't be asked.
        SetupError: the user's own kubeconfig was to be written to, and can't be, or has others' entries of our names.
    """
    service = up.known
    if service.place != "eks":
        from diptych.kube.identity import uid_of

        with places.cluster_of(up, job) as cluster:
            return service.model_copy(update={"cluster_uid": uid_of(cluster)})
    from diptych.eks import kubeconfig
    from diptych.eks.job import EksJob

    assert isinstance(job, EksJob)
    about: dict[str, Any] = {"account": job.identity.account}
    if options.kubeconfig:
        file = kubeconfig.default_path()
        kubeconfig.require_room(file, kubeconfig.context_of(job.session, job.place.cluster))
        recalled.refuse_same_context(service.name, job.place, file)
        about["kubeconfigs"] = tuple(dict.fromkeys((*service.kubeconfigs, str(file.absolute()))))
    return service.model_copy(update=about)


def _job(up: Up, known: Remembered | None, facts: Facts, options: Options) -> "Job":
    return places.job_of(
        up,
        View(),
        before=known,
        facts=facts,
        dry_run=options.dry_run,
        timeout_s=options.timeout_s,
        replace=options.replace,
    )
