"""Which cluster this is: names of contexts are anybody's, the uid of the namespace kube-system is one cluster's."""

from diptych.errors import ClusterError
from diptych.kube.connection import Cluster, RefusedError

_NAMESPACE = "kube-system"


def uid_of(cluster: Cluster) -> str | None:
    """The uid that tells a cluster from all others; None where it may not be read.

    Raises:
        ClusterError: the cluster can't be asked.
    """
    try:
        found = cluster.get("Namespace", _NAMESPACE)
    except RefusedError as error:
        if error.status == 403:
            return None
        raise
    return str(found["metadata"]["uid"]) if found else None


def require_same(cluster: Cluster, name: str, context: str | None, uid: str | None) -> None:
    """Stop before a service is looked for in a cluster in which it did not come up.

    Args:
        name: of the service.
        context: in which it came up.
        uid: of the cluster in which it came up; None, as where it may not be read now: nothing is compared.

    Raises:
        ClusterError: this is another cluster.
    """
    here = uid_of(cluster) if uid else None
    if uid and here and here != uid:
        raise ClusterError(
            f"{name} is up in another cluster: {described(context, uid)}; "
            f"this is {described(cluster.context, here)}. Nothing was changed.",
            "Have KUBECONFIG name the file that leads to its cluster.",
        )


def described(context: str | None, uid: str) -> str:
    """A cluster in words.

    >>> described("lab", "6f1c")
    'context lab (uid of kube-system: 6f1c)'
    """
    where = f"context {context}" if context else "the current context"
    return f"{where} (uid of {_NAMESPACE}: {uid})"
