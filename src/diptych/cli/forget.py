"""`diptych down --forget`: the end of a name whose cluster is gone for good; only what is kept here is deleted."""

from diptych.cli.cluster_down import require_unchanged
from diptych.cli.cluster_plan import agreed, inside
from diptych.cli.console import err, out
from diptych.cli.places import Up
from diptych.errors import DocumentError, NotUpError
from diptych.kube import remembered


def run_forget(up: Up, *, yes: bool) -> int:
    """Forget a service on a cluster that exists; 0 when it is forgotten, 1 where the question was answered no.

    Raises:
        DocumentError: it is in another place, where what costs money or memory can be asked for and ended.
        NotUpError: nothing is remembered of it.
        ClusterError: another command is working on it, or has changed it meanwhile.
    """
    if up.place != "kubernetes":
        raise DocumentError(
            f"--forget is for on: kubernetes; {up} can always be looked for.",
            f"diptych down --name {up.name}",
        )
    if not up.is_recalled and up.unreadable is None:
        raise NotUpError(f"Nothing is remembered of {up}.", "`diptych status` shows what is.")
    where = inside(up) if up.remembered is not None else "its cluster"
    err().print(
        f"{up} will be forgotten here. Nothing is deleted: what there is of it in {where} stays.",
        highlight=False,
        soft_wrap=True,
    )
    if not yes and not agreed():
        err().print("Nothing was changed.")
        return 1
    with remembered.exclusive(up.name, up.place):
        require_unchanged(up)
        remembered.forget(up.name, up.place)
    out().print(f"{up.name} is forgotten; nothing was deleted.", highlight=False)
    return 0
