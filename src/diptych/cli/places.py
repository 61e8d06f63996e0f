"""Which service a command means, wherever it is up, and the way to its endpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diptych.cli.console import err, print_dim
from diptych.errors import DocumentError, NotUpError
from diptych.kube import remembered
from diptych.kube.remembered import Remembered, UnreadableError
from diptych.local import state
from diptych.spec import load

if TYPE_CHECKING:
    from diptych.endpoint import Endpoint
    from diptych.kube.connection import Cluster
    from diptych.kube.job import Job
    from diptych.progress import View

LOCAL = "local"
DEFAULT_NAME = "diptych"


@dataclass(frozen=True)
class Up:
    """A service that this user has brought up: its name, where, and for a cluster what is remembered of it.

    Args:
        remembered: of a service on a cluster; where nothing is remembered, or nothing that can be read, what its
            document says.
        unreadable: why what is remembered can't be read.
        is_recalled: `remembered` is what an earlier `up` wrote down, and not the document alone.
    """

    name: str
    place: str
    remembered: Remembered | None = None
    unreadable: UnreadableError | None = None
    is_recalled: bool = True

    def __str__(self) -> str:
        return f"{self.name} on {self.place}"

    @property
    def known(self) -> Remembered:
        """What is known of a service on a cluster.

        Raises:
            UnreadableError: what is remembered can't be read, and there is no document.
        """
        if self.remembered is None and self.unreadable is not None:
            raise self.unreadable
        assert self.remembered is not None
        return self.remembered


def services(name: str | None = None) -> list[Up]:
    """All services that are known here, or all of that name: this machine's first."""
    local = [each for each in state.known_names() if name in (None, each)]
    clusters = [
        Up(each.name, each.place, unreadable=each)
        if isinstance(each, UnreadableError)
        else Up(each.name, each.place, each)
        for each in remembered.known(name)
    ]
    return [*(Up(each, LOCAL) for each in local), *clusters]


def the_service(file: Path | None, name: str | None) -> Up:
    """The one service that is meant: by its document, by its name, or the only one there is.

    Raises:
        DocumentError: a document and a name are given.
        NotUpError: there are several, or the one that is meant is not known here.
    """
    if file is not None and name is not None:
        raise DocumentError("Both a document and --name say which service is meant.", "Give one of them.")
    if file is not None:
        return of_document(file)
    found = services(name)
    if len(found) > 1:
        names = {each.name for each in found}
        how = (
            "Say which with --name."
            if len(names) > 1
            else "Give its document: that says which place is meant."
        )
        raise NotUpError(f"Several services are up: {', '.join(map(str, found))}.", how)
    return found[0] if found else Up(name or DEFAULT_NAME, LOCAL)


def of_document(file: Path) -> Up:
    """The service of a document. On a cluster it may have been brought up by somebody else: the document will do.

    It will do, too, where what is remembered can't be read, which is said.
    """
    import time

    document = load(file)
    if document.on == LOCAL:
        return Up(document.name, LOCAL)
    unreadable = known = None
    try:
        known = remembered.recall(document.name, document.on)
    except UnreadableError as error:
        unreadable = error
        print_dim(err(), f"{error.message} The document is taken instead.")
    found = known or Remembered(file=str(file.absolute()), document=document, started_at=time.time())
    return Up(document.name, document.on, found, unreadable, is_recalled=known is not None)


def job_of(up: Up, view: "View", *, before: Remembered | None = None, **options: Any) -> "Job":
    """What the steps of a service on a cluster are given.

    Args:
        before: what was remembered before this command, where that is not what `up` has.
        options: of `kube.job.Job`.

    Raises:
        DiptychError: AWS's profile is not there, or boto3 is not installed.
    """
    from diptych.render.archive import serving_archive
    from diptych.render.inputs import Facts

    known = up.known
    about = {
        "document": known.document,
        "facts": Facts(
            model_revision=known.model_revision,
            serving_archive=serving_archive(),
            zone=known.zone,
            public_access_cidrs=known.public_access_cidrs,
        ),
        "view": view,
        "folder": remembered.make_folder(up.name, up.place),
        **options,
    }
    if up.place == "eks":
        return _eks_job(known, before or known, about)
    from diptych.kube.job import Job

    return Job(**about)


def _eks_job(known: Remembered, before: Remembered, about: dict[str, Any]) -> "Job":
    from diptych.eks.aws import Session
    from diptych.eks.job import EksJob, Place

    document = before.document
    where = (
        Place(before.account, document.eks.region, document.cluster_name)
        if before.account is not None
        else None
    )
    return EksJob(**about, session=Session(known.document.eks.region), remembered=where)


@contextmanager
def cluster_of(up: Up, job: "Job") -> "Iterator[Cluster]":
    """The Kubernetes API of a service's cluster.

    Raises:
        DiptychError: there is no such cluster, it can't be reached, or it is not the one of the last `up`.
    """
    if up.place == "eks":
        from diptych.eks.connection import require
        from diptych.eks.job import EksJob

        assert isinstance(job, EksJob)
        with require(job) as cluster:
            yield cluster
        return
    from diptych.kube.connection import connect
    from diptych.kube.identity import require_same

    target = target_of(up)
    with connect(target, dry_run=job.dry_run, view=job.view) as cluster:
        require_same(cluster, up.name, target.context, up.known.cluster_uid)
        yield cluster


def target_of(up: Up) -> Any:
    """The kubeconfig's context of a service `on: kubernetes`: that of its `up`, not the one that is current now."""
    from diptych.kube.connection import Target

    known = up.known
    return Target(None, known.document.kubernetes.context or known.context)


@contextmanager
def reached(up: Up, *, admin: bool = False) -> "Iterator[Endpoint]":
    """The endpoint of a service, for as long as the context lasts: of a cluster by a port-forward that is kept up.

    Args:
        admin: with a key that opens admin routes, else with one for clients.

    Raises:
        DiptychError: it is not up, or can't be reached.
    """
    if up.place == LOCAL:
        from diptych.local.status import endpoint_of

        yield endpoint_of(up.name, admin=admin)
        return
    from diptych.kube.endpoint import endpoint
    from diptych.progress import View

    job = job_of(up, View())
    with cluster_of(up, job) as cluster, endpoint(job, cluster, admin=admin) as found:
        yield found


def remember_fallback(up: Up, says: str | None) -> None:
    """Have every status say what transport was put up with; None: it is the one that was asked for."""
    if up.place == LOCAL:
        state.remember_fallback(up.name, says)
    else:
        remembered.remember_fallback(up.name, up.place, says)
