"""What `up` on a cluster will remember of a service, and what it may not forget: where that is up already."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diptych.errors import AccountError, ClusterError
from diptych.kube import remembered
from diptych.kube.identity import described
from diptych.kube.remembered import Remembered
from diptych.render.inputs import Facts
from diptych.spec import Document

if TYPE_CHECKING:
    from diptych.eks.job import Place


def of_up(file: Path | None, document: Document, facts: Facts, known: Remembered | None) -> Remembered:
    """What an `up` will remember, without what AWS or the cluster alone can say.

    Args:
        known: what an earlier one has remembered; it stays where the document says nothing else.

    Raises:
        ClusterError: there is no kubeconfig, or it has no current context.
    """
    about: dict[str, Any] = {
        "file": str(file.absolute()) if file else None,
        "document": document,
        "zone": facts.zone,
        "model_revision": facts.model_revision,
        "public_access_cidrs": facts.public_access_cidrs,
        "started_at": known.started_at if known else time.time(),
        "context": known.context if known else None,
        "account": known.account if known else None,
        "fallback": known.fallback if known else None,
        "kubeconfigs": known.kubeconfigs if known else (),
    }
    if document.on == "kubernetes" and document.kubernetes.context is None and about["context"] is None:
        from diptych.kube.kubeconfig import Target, resolve

        about["context"] = resolve(Target()).context
    return Remembered(**about)


def refuse_elsewhere(known: Remembered, service: Remembered) -> None:
    """One name, one place: what is up in another one would be forgotten, and paid for.

    Of two contexts whose clusters are known, the clusters are compared, not the names.

    Raises:
        AccountError, ClusterError: the document or the credentials lead to another place than the last `up`.
    """
    before, now = _where(known), _where(service)
    others = [what for what in now if before.get(what) and now[what] and before[what] != now[what]]
    if known.cluster_uid and service.cluster_uid:
        if known.cluster_uid != service.cluster_uid:
            raise _another_cluster(known, service)
        others = [what for what in others if what != "context"]
    if not others:
        return
    was, is_now = (", ".join(f"{what} {place[what]}" for what in others) for place in (before, now))
    hint = f"Take it down there first: diptych down --name {known.name}"
    if "account" in others:
        hint = f"Use credentials of {before['account']} (set AWS_PROFILE). To move it: {hint[0].lower()}{hint[1:]}"
    kind = AccountError if known.place == "eks" else ClusterError
    raise kind(f"{known.name} is up in {was}; this would be {is_now}. Nothing was changed.", hint)


def refuse_same_context(name: str, place: "Place", file: Path) -> None:
    """Two clusters of one name in two accounts would have one context: the second would take the first one's place.

    Raises:
        AccountError: another service of this user has added its cluster to that kubeconfig under the same name.
    """
    for each in remembered.known():
        if (
            not isinstance(each, Remembered)
            or each.name == name
            or str(file.absolute()) not in each.kubeconfigs
        ):
            continue
        if is_called_like(each, place) and each.account not in (None, place.account):
            raise AccountError(
                f"{file} has the context {place.cluster}.{place.region} for {each.name} already, in account "
                f"{each.account}; this is {place.account}. Nothing was changed.",
                "Have KUBECONFIG name another file, or leave --kubeconfig out.",
            )


def is_called_like(service: Remembered, place: "Place") -> bool:
    """Whether a service's EKS cluster has the name and the region of that one, in whichever account."""
    document = service.document
    return service.place == "eks" and (document.cluster_name, document.eks.region) == (
        place.cluster,
        place.region,
    )


def _another_cluster(known: Remembered, service: Remembered) -> ClusterError:
    was, is_now = (described(_where(each)["context"], str(each.cluster_uid)) for each in (known, service))
    return ClusterError(
        f"{known.name} is up in another cluster: {was}; this would be {is_now}. Nothing was changed.",
        "Have KUBECONFIG name the file that leads to its cluster, or give this document another name. If that cluster "
        f"is gone for good: diptych down --name {known.name} --forget",
    )


def _where(service: Remembered) -> dict[str, str | None]:
    """The place of a service, in words; None for what is not known of it."""
    document = service.document
    namespace = {"namespace": document.kubernetes.namespace}
    if service.place == "eks":
        return {
            "account": service.account,
            "region": document.eks.region,
            "cluster": document.cluster_name,
            **namespace,
        }
    return {"context": document.kubernetes.context or service.context, **namespace}
