"""Device plugins in a cluster that Diptych did not make: which were there before, so that ours go with us.

Those that Helm installed for us have names of their own. Those that eksctl installs for our node groups have eksctl's,
whoever ran it: a tag on the system nodes' group says which resources others had a plugin for before that.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from diptych.eks import control_plane, groups, plugins
from diptych.eks.job import EksJob
from diptych.eks.ownership import Owner
from diptych.errors import DiptychError
from diptych.kube.connection import Cluster
from diptych.kube.objects import EFA, GPU, labels_of, name_of
from diptych.render import names

TAG = f"{names.DOMAIN}/plugins-of-others"
"""The resources that others had a device plugin for before our node groups came, joined by "+"."""

_NONE = "none"
_NAMESPACE = "kube-system"
_BY_EKSCTL: Mapping[str, str] = MappingProxyType(
    {"nvidia-device-plugin-daemonset": GPU, "aws-efa-k8s-device-plugin-daemonset": EFA}
)
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def note(job: EksJob, cluster: Cluster) -> None:
    """Write down, before our first node group, for which resources somebody else's cluster has plugins."""
    found, system = control_plane.find(job), groups.find(job, names.SYSTEM)
    if found is None or Owner.of(found.tags) is not None or system is None or TAG in system.tags:
        return
    daemons = cluster.list("DaemonSet")
    theirs = [plugin.resource for plugin in plugins.PLUGINS if plugins.is_installed(daemons, plugin)]
    job.change(
        "eks",
        "tag_resource",
        system.arn,
        resourceArn=system.arn,
        tags={TAG: "+".join(theirs) or _NONE},
    )


def remove_ours(job: EksJob, cluster: Cluster, tags: Mapping[str, str], stage: str) -> None:
    """Remove the plugins that came with our node groups, once these are going; what stays is told, with the command.

    Whatever is refused stays, too: a plugin costs nothing, and must not keep nodes from going that do.

    Args:
        tags: of the system nodes' group.
    """
    for plugin in plugins.PLUGINS:
        release = plugin.release
        by_hand = f"helm --namespace {release.namespace} uninstall {release.name}"
        with _told(job, f"The Helm release {release.name}, if it is there,", by_hand):
            if cluster.list("Secret", namespace=_NAMESPACE, labels={"owner": "helm", "name": release.name}):
                plugins.uninstall(job, cluster, stage, release)
    there: list[dict[str, Any]] = []
    with _told(job, f"Device plugins of eksctl's, if any is in {_NAMESPACE},", _by_hand(*_BY_EKSCTL)):
        there = cluster.list("DaemonSet", namespace=_NAMESPACE)
    for daemon in there:
        name, resource = name_of(daemon), _BY_EKSCTL.get(name_of(daemon))
        if resource is not None:
            with _told(job, f"DaemonSet {_NAMESPACE}/{name}", _by_hand(name)):
                _remove(job, cluster, daemon, resource, tags.get(TAG))


def _remove(
    job: EksJob, cluster: Cluster, daemon: Mapping[str, Any], resource: str, others: str | None
) -> None:
    if others is not None and resource in others.split("+"):
        return
    users = [
        name_of(node)
        for node in cluster.list("Node")
        if (node.get("status") or {}).get("allocatable", {}).get(resource, "0") != "0"
        and labels_of(node).get(names.SERVICE_LABEL) != job.document.name
    ]
    writer = _other_writer(daemon)
    if others is None or users or writer:
        why = "nobody wrote down whether it was there before"
        if users:
            why = f"{users[0]} has {resource} by it"
        elif writer:
            why = f"{writer} changed it after eksctl"
        job.view.say(_stays(f"DaemonSet {_NAMESPACE}/{name_of(daemon)}", why, _by_hand(name_of(daemon))))
        return
    cluster.delete("DaemonSet", name_of(daemon), _NAMESPACE)


def _other_writer(daemon: Mapping[str, Any]) -> str:
    """Who beside eksctl wrote something of a DaemonSet, but for its status; empty where nobody did."""
    metadata = daemon["metadata"]
    if _APPLIED in (metadata.get("annotations") or {}):
        return "kubectl apply"
    writers = [
        str(each.get("manager", ""))
        for each in metadata.get("managedFields") or ()
        if each.get("subresource") != "status"
    ]
    return next((writer for writer in writers if not writer.startswith("eksctl")), "")


@contextmanager
def _told(job: EksJob, what: str, by_hand: str) -> Iterator[None]:
    """Within it, what is refused is said, and goes no further."""
    try:
        yield
    except DiptychError as error:
        job.view.say(_stays(what, error.message, by_hand))


def _stays(what: str, why: str, by_hand: str) -> str:
    return f"{what} stays: {why.rstrip('.')}. Where nobody needs it: {by_hand}"


def _by_hand(*daemons: str) -> str:
    return f"kubectl --namespace {_NAMESPACE} delete daemonset {' '.join(daemons)}"
