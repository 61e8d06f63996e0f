"""Which services this user has brought up on clusters: names and the document, never whether they work.

Whether they are there, and how they are, is asked of Kubernetes and AWS each time; without this file
`--name` and the commands that are given nothing would not know where to ask.
"""

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from diptych import remembering
from diptych.errors import ClusterError, SetupError, first_fault
from diptych.remembering import STATE_DIR_ENV, state_root, write_private
from diptych.spec import Document

Place = Literal["kubernetes", "eks"]
PLACES: tuple[Place, ...] = ("kubernetes", "eks")


class Remembered(BaseModel):
    """One service on a cluster, as the last `up` left it.

    Args:
        file: the document's file, if it had one.
        document: the document itself, overrides included, so that `down` works when the file has changed or gone.
        context: the kubeconfig's context at that time, so that a changed current context leads nowhere else.
        cluster_uid: which cluster that context led to (`kube.identity`); None: not `on: kubernetes`, or not known.
        account: AWS account, for `on: eks`.
        zone: zone of the GPU nodes that was chosen for `eks.zone: auto`.
        model_revision: the commit that the model's revision stood for, so that another `up` changes nothing by itself.
        public_access_cidrs: who may reach the cluster's API, where the document doesn't say.
        fallback: what `verify --allow-fallback` put up with, in a sentence; None: it is what was asked for.
        kubeconfigs: the user's own kubeconfigs that `up --kubeconfig` has added the cluster to.
        started_at: Unix seconds of the first `up`.
    """

    file: str | None
    document: Document
    context: str | None = None
    cluster_uid: str | None = None
    account: str | None = None
    zone: str | None = None
    model_revision: str | None = None
    public_access_cidrs: tuple[str, ...] = ()
    fallback: str | None = None
    kubeconfigs: tuple[str, ...] = ()
    started_at: float

    @property
    def name(self) -> str:
        return self.document.name

    @property
    def place(self) -> str:
        return self.document.on


class UnreadableError(ClusterError):
    """What is remembered of a service can't be read; whether it is up is not known."""

    def __init__(self, name: str, place: str, why: str) -> None:
        self.name, self.place, self.file = name, place, file_of(name, place)
        forget = f"; `diptych down --name {name} --forget` only forgets it" if place == "kubernetes" else ""
        super().__init__(
            f"What is remembered of {name} on {place} can't be read: {self.file}: {why}.",
            f"`diptych down FILE` with its document takes the service down, and this file with it{forget}. "
            "Or correct the file.",
        )


def folder_of(name: str, place: str) -> Path:
    """The private folder of a service on a cluster: logs, key files, kubeconfig; creates nothing."""
    return state_root() / name / place


def file_of(name: str, place: str) -> Path:
    """Where it is written down."""
    return folder_of(name, place) / "place.json"


def make_folder(name: str, place: str) -> Path:
    """The same, made if it is not there.

    Raises:
        SetupError: it can't be made.
    """
    folder = folder_of(name, place)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    except OSError as error:
        raise SetupError(
            f"Diptych cannot write its state to {folder}: {error.strerror or error}.",
            f"Free space there, or point {STATE_DIR_ENV} at a directory you can write to.",
        ) from None
    return folder


def remember(service: Remembered) -> None:
    """Write it down, whole or not at all."""
    make_folder(service.name, service.place)
    write_private(file_of(service.name, service.place), service.model_dump_json(indent=2) + "\n")


def recall(name: str, place: str) -> Remembered | None:
    """What is remembered of a service at a place; None where nothing is.

    Raises:
        UnreadableError: something is, and can't be read.
    """
    try:
        return Remembered.model_validate_json(file_of(name, place).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnreadableError(name, place, error.strerror or str(error)) from None
    except ValidationError as error:
        raise UnreadableError(name, place, first_fault(error)) from None
    except UnicodeDecodeError as error:
        raise UnreadableError(name, place, f"it is not UTF-8 at byte {error.start}") from None


def unchanged(name: str, place: str, shown: Remembered | None) -> Remembered | None:
    """What is remembered now, under the lock: the same as was shown to the user, but for the fallback.

    Raises:
        ClusterError: another command has changed it meanwhile.
        UnreadableError: it can't be read.
    """
    now = recall(name, place)
    then = shown.model_copy(update={"fallback": now.fallback}) if shown and now else shown
    if now != then:
        raise ClusterError(
            f"Another diptych command has changed {name} on {place} meanwhile. Nothing was changed by this one.",
            "Run the same command again: it goes by what is there now.",
        )
    return now


@contextlib.contextmanager
def exclusive(name: str, place: str) -> Iterator[None]:
    """Hold a service's lock on this machine: one `up` or `down` of it at a time.

    Raises:
        ClusterError: another command holds it.
    """
    busy = ClusterError(
        f"Another diptych command is working on {name} on {place}.", "Wait for it, or press Ctrl-C there."
    )
    with remembering.exclusive(make_folder(name, place), busy):
        yield


def remember_fallback(name: str, place: str, says: str | None) -> None:
    """Have every status say what transport was put up with; None: it is the one that was asked for.

    Of a service that is not remembered nothing is; nor while `up` or `down` is at work: either proves or ends it.
    """
    with contextlib.suppress(ClusterError):
        known = recall(name, place)
        if known is None or known.fallback == says:
            return
        with exclusive(name, place):
            now = recall(name, place)
            if now is not None:
                remember(now.model_copy(update={"fallback": says}))


def forget(name: str, place: str) -> None:
    """Remove all that is kept here of a service that is down, key files first."""
    folder = folder_of(name, place)
    with contextlib.suppress(OSError):
        (folder / "place.json").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()  # where nothing else is known of the name


def known(name: str | None = None) -> list[Remembered | UnreadableError]:
    """Every service on a cluster that this user knows of, or those called `name`; for what can't be read, why."""
    found: list[Remembered | UnreadableError | None] = []
    for place, each in _places(name):
        try:
            found.append(recall(each, place))
        except UnreadableError as error:
            found.append(error)
    return [each for each in found if each is not None]


def _places(name: str | None) -> Iterable[tuple[Place, str]]:
    root = state_root()
    for place in PLACES:
        for file in sorted(root.glob(f"{name or '*'}/{place}/place.json")):
            yield place, file.parent.parent.name
