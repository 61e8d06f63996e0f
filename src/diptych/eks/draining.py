"""Taking nodes out of a group: the emptiest first, drained as `kubectl drain` does, then ended one by one."""

from collections.abc import Mapping, Sequence
from typing import Any

from diptych.eks import groups, workloads
from diptych.eks.groups import NodeGroup
from diptych.eks.job import EksJob
from diptych.kube.connection import Cluster, RefusedError
from diptych.kube.waiting import Seen

GROUP_LABEL = "eks.amazonaws.com/nodegroup"
_DRAIN_S = 200.0
"""Seconds: pods of ours have two minutes to finish their answers."""
_TOO_MANY = 429


def nodes_of(cluster: Cluster, group: str) -> list[dict[str, Any]]:
    """The nodes of a group that have joined."""
    return cluster.list("Node", labels={GROUP_LABEL: group})


def node_names(cluster: Cluster, group: str) -> list[str]:
    """The names of `nodes_of` it."""
    return [node["metadata"]["name"] for node in nodes_of(cluster, group)]


def shrink(job: EksJob, cluster: Cluster, stage: str, group: NodeGroup, count: int) -> None:
    """Take nodes out until `count` are left: which ones is ours to say, or EKS would choose busy ones.

    Raises:
        ClusterError: somebody else's pods are on them, or a disruption budget lets none of them go.
    """
    victims = _emptiest(cluster, nodes_of(cluster, group.name))[: max(0, group.desired - count)]
    names = [node["metadata"]["name"] for node in victims]
    workloads.refuse(workloads.on_nodes(cluster, names), f"Taking {len(names)} nodes out of {group.name}")
    for name in names:
        drain(job, cluster, stage, name)
    groups.lower_least(job, stage, group, count)
    for node in victims:
        _end(job, stage, node)
    if names and not job.dry_run:
        job.wait(stage, lambda: _left(cluster, names), groups.USUAL_S)


def drain(job: EksJob, cluster: Cluster, stage: str, name: str) -> None:
    """Let nothing new onto a node, and evict what is there, respecting disruption budgets."""
    job.tell("detail", stage, f"draining {name}")
    cluster.patch("Node", name, None, {"spec": {"unschedulable": True}})

    def look() -> Seen:
        pods = workloads.pods_on(cluster, [name])
        held = [
            why
            for pod in pods
            if not pod["metadata"].get("deletionTimestamp") and (why := _evict(cluster, pod))
        ]
        if not pods:
            return Seen(done=True)
        return Seen(done=False, blocker=held[0] if held else f"{len(pods)} pods are leaving {name}.")

    job.wait(stage, look, _DRAIN_S)


def _emptiest(cluster: Cluster, nodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Nodes in the order in which to take them out: those that an interrupted run has drained, then by pods."""
    busy: dict[str, int] = {}
    for pod in workloads.pods_on(cluster, [node["metadata"]["name"] for node in nodes]):
        busy[pod["spec"]["nodeName"]] = busy.get(pod["spec"]["nodeName"], 0) + 1

    def rank(node: Mapping[str, Any]) -> tuple[bool, int, str]:
        name = node["metadata"]["name"]
        return not node["spec"].get("unschedulable", False), busy.get(name, 0), name

    return sorted(nodes, key=rank)


def _evict(cluster: Cluster, pod: Mapping[str, Any]) -> str:
    """Ask for a pod's eviction; why it is refused, in words."""
    meta = pod["metadata"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
    }
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/eviction"
    try:
        cluster.raw("POST", path, body=body)
    except RefusedError as error:
        if error.status == _TOO_MANY:
            budgets = ", ".join(workloads.blocking_budgets(cluster)) or "a disruption budget"
            return f"The pod {meta['namespace']}/{meta['name']} may not be evicted now: {budgets}."
        if error.status != 404:
            raise
    return ""


def _end(job: EksJob, stage: str, node: Mapping[str, Any]) -> None:
    """End a node's instance, and have its group want one fewer."""
    instance = str(node["spec"].get("providerID", "")).rpartition("/")[2]
    job.tell("detail", stage, f"ending {instance} ({node['metadata']['name']})")
    job.change(
        "autoscaling",
        "terminate_instance_in_auto_scaling_group",
        instance,
        InstanceId=instance,
        ShouldDecrementDesiredCapacity=True,
    )


def _left(cluster: Cluster, names: Sequence[str]) -> Seen:
    there = [name for name in names if cluster.get("Node", name) is not None]
    return Seen(done=not there, blocker=f"{', '.join(there)} has not left the cluster yet.")
