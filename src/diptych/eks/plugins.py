"""Device plugins: who makes GPUs and EFA interfaces allocatable on nodes, and what is missing where they are not.

eksctl installs both for the node groups that it makes, at the end of that run only. Where that run was interrupted,
or its EFA plugin does not know the instance type (T1), Helm installs them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diptych.catalog.nodes import INSTANCE_TYPE_LABELS
from diptych.eks.job import EksJob
from diptych.errors import ClusterError
from diptych.kube import programs
from diptych.kube.connection import Cluster
from diptych.kube.objects import EFA, GPU
from diptych.kube.programs import Finished
from diptych.kube.release import helm as run_helm
from diptych.kube.release import settled
from diptych.remembering import write_private
from diptych.render import helm
from diptych.render.helm import EFA_PLUGIN, Release
from diptych.render.layout import WorkerGroup
from diptych.render.node_groups import GPU_ROLE
from diptych.render.write import to_yaml

GPU_PLUGIN = Release(
    name="diptych-gpu-device-plugin",
    namespace="kube-system",
    chart="nvidia-device-plugin",
    repository="https://nvidia.github.io/k8s-device-plugin",
    version="0.18.2",
)


@dataclass(frozen=True)
class Plugin:
    """The device plugin of one resource.

    Args:
        image: part of the name of its image, by which any DaemonSet of it is found, whoever installed it.
    """

    resource: str
    words: str
    image: str
    release: Release


PLUGINS = (
    Plugin(GPU, "NVIDIA's device plugin", "k8s-device-plugin", GPU_PLUGIN),
    Plugin(EFA, "the EFA device plugin", "aws-efa-k8s-device-plugin", EFA_PLUGIN),
)


def wanted(group: WorkerGroup) -> dict[str, int]:
    """What each node of a group must have allocatable, by resource; as the instance table says."""
    counts = {GPU: group.instance.gpus if group.instance else group.size.gpus, EFA: group.size.efa}
    return {resource: count for resource, count in counts.items() if count}


def install_missing(job: EksJob, cluster: Cluster, groups: Sequence[WorkerGroup], stage: str) -> None:
    """Install each plugin that a group needs and no DaemonSet of the cluster is for."""
    daemons = cluster.list("DaemonSet")
    for plugin in PLUGINS:
        types = {group.instance_type or "" for group in groups if plugin.resource in wanted(group)}
        own = [daemon for daemon in daemons if _is_of(daemon, plugin)]
        missing = {name for name in types if not any(_runs_on(daemon, name) for daemon in own)}
        if missing:
            # A second one on a node would fight for the resource: ours is for the types that no other covers.
            before = {name for daemon in own if _is_ours(daemon, plugin) for name in _types(daemon)}
            job.tell("detail", stage, f"installing {plugin.words}, which nobody did")
            _install(job, cluster, stage, plugin.release, _values(job, plugin, sorted(before | missing)))


def is_installed(daemons: Sequence[Mapping[str, Any]], plugin: Plugin) -> bool:
    """Whether any of these DaemonSets, of others, is for a plugin's resource."""
    return any(_is_of(daemon, plugin) and not _is_ours(daemon, plugin) for daemon in daemons)


def _runs_on(daemon: Mapping[str, Any], instance_type: str) -> bool:
    """Whether a DaemonSet is for nodes of a type: its node list has it, or it has none."""
    types = _types(daemon)
    return not types or instance_type in types


def _types(daemon: Mapping[str, Any]) -> set[str]:
    """The instance types that a DaemonSet's node affinity lists; empty where it lists none."""
    affinity = daemon["spec"]["template"]["spec"].get("affinity") or {}
    required = (affinity.get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    return {
        name
        for term in required.get("nodeSelectorTerms") or ()
        for rule in term.get("matchExpressions") or ()
        if rule.get("key") in INSTANCE_TYPE_LABELS
        for name in rule.get("values") or ()
    }


def _is_ours(daemon: Mapping[str, Any], plugin: Plugin) -> bool:
    return bool(daemon["metadata"]["name"].startswith(plugin.release.name))


def _is_of(daemon: Mapping[str, Any], plugin: Plugin) -> bool:
    spec = ((daemon.get("spec") or {}).get("template") or {}).get("spec") or {}
    return any(plugin.image in image for image in _images(spec))


def _images(pod: Mapping[str, Any]) -> list[str]:
    return [each.get("image", "") for each in pod.get("containers") or ()]


def _values(job: EksJob, plugin: Plugin, types: Sequence[str]) -> dict[str, Any]:
    if plugin.resource == EFA:
        base = helm.efa_plugin_values(job.document) or {
            "fullnameOverride": EFA_PLUGIN.name,
            "image": {"tag": helm.EFA_PLUGIN_IMAGE_TAG},
        }
        labels = {"keys": ["node.kubernetes.io/instance-type"], "values": list(types)}
        return {**base, "supportedInstanceLabels": labels}
    # The chart waits for labels of node feature discovery, which is not there: our own stands for them.
    return {"fullnameOverride": GPU_PLUGIN.name, "affinity": None, "nodeSelector": {"role": GPU_ROLE}}


def _install(job: EksJob, cluster: Cluster, stage: str, release: Release, values: Mapping[str, Any]) -> None:
    file = job.folder / f"{release.name}.yaml"
    write_private(file, to_yaml(dict(values)))
    with settled(job, cluster, stage, release.namespace, release.name):
        finished = _helm(
            job,
            release,
            *("upgrade", "--install", release.name, release.chart, f"--repo={release.repository}"),
            *(f"--version={release.version}", f"--values={file}"),
        )
    if finished.code:
        raise ClusterError(
            f"Helm did not install {release.name}: {finished.last(3)}", f"See {job.log('helm')}."
        )


def uninstall(job: EksJob, cluster: Cluster, stage: str, release: Release) -> None:
    """Have Helm remove a plugin that it installed for us.

    Raises:
        ClusterError: helm could not.
        SetupError: there is no helm that works.
    """
    job.tell("detail", stage, f"uninstalling {release.name}")
    with settled(job, cluster, stage, release.namespace, release.name):
        finished = _helm(job, release, "uninstall", release.name)
    if finished.code and "not found" not in finished.last(20):
        raise ClusterError(
            f"Helm did not uninstall {release.name}: {finished.last(3)}", f"See {job.log('helm')}."
        )


def _helm(job: EksJob, release: Release, *args: str) -> Finished:
    """Run helm in the job's cluster, as the same caller."""
    return run_helm(
        job,
        programs.find(programs.HELM),
        [*args, f"--namespace={release.namespace}", f"--kubeconfig={job.kubeconfig}"],
        env=job.session.environ({}),
        timeout_s=job.timeout_s,
        dry_run=job.dry_run,
    )
