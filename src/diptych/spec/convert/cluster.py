"""The RayService around an application: where its pods run, and with which share of a node."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diptych.catalog.engines import versions_of_image
from diptych.catalog.instances import instance_type
from diptych.spec.convert.application import Engines, accelerator_resource
from diptych.spec.convert.instances import labelled_type
from diptych.spec.convert.parts import Part, Reason
from diptych.spec.convert.pods import Pod, pod_of
from diptych.spec.fields import Phase

_BY_DIPTYCH: Reason = ("Diptych sets it itself", "")
_COUNTED: Reason = ("the pods follow from the replicas", "")
_IGNORED: Reason = ("deprecated, and KubeRay ignores it", "")
_SERVICE_LEFT: Mapping[str, Reason] = {
    "serviceUnhealthySecondThreshold": _IGNORED,
    "deploymentUnhealthySecondThreshold": _IGNORED,
    "rayClusterDeletionDelaySeconds": _BY_DIPTYCH,
    "serveService": _BY_DIPTYCH,
    "excludeHeadPodFromServeSvc": _BY_DIPTYCH,
}
_CLUSTER_LEFT: Mapping[str, Reason] = {
    "enableInTreeAutoscaling": ("it follows from autoscaling_config", ""),
    "autoscalerOptions": ("it follows from autoscaling_config", ""),
    "authOptions": ("Diptych has Ray ask for a token", ""),
    "upgradeStrategy": ("the RayService's own strategy holds", ""),
}
_GROUP_LEFT: Mapping[str, Reason] = {
    "replicas": _COUNTED,
    "minReplicas": _COUNTED,
    "maxReplicas": _COUNTED,
    "numOfHosts": _COUNTED,
    "idleTimeoutSeconds": _BY_DIPTYCH,
    "scaleStrategy": _COUNTED,
    "labels": ("Diptych tells its worker groups apart by names of its own", ""),
}
_UPGRADES = {
    "None": "in-place",
    "NewCluster": "new-cluster",
    "NewClusterWithIncrementalUpgrade": "new-cluster",
}


@dataclass(frozen=True)
class Group:
    """One worker group: its name, its pod, and Ray's own resources that its pods have."""

    name: str
    pod: Pod
    resources: frozenset[str]


@dataclass(frozen=True)
class Cluster:
    """What a document says of the pods.

    Args:
        image: fields of the document's `image`.
        head: fields of the document's `kubernetes` for the head pod, and for all pods.
        workers: the worker pod of each phase; a phase is missing where its pods can't be told.
        token_secret: secret of the Hugging Face token, as NAME/KEY.
    """

    image: dict[str, Any]
    kubernetes: dict[str, Any]
    workers: dict[Phase, Pod]
    token_secret: str | None


def cluster_of(spec: Part, engines: Engines) -> Cluster:
    """The cluster of a RayService's `spec`, for these engines."""
    spec.leave_all(_SERVICE_LEFT)
    strategy = spec.part("upgradeStrategy")
    kind = strategy.take("type")
    strategy.close()
    config = spec.part("rayClusterConfig", "rayClusterConfig")
    head, head_fields = _head(config.part("headGroupSpec", "head: "))
    groups = [_group(each) for each in config.parts("workerGroupSpecs", "worker group ", ": ")]
    workers = _workers(groups, engines, config)
    pods = [*workers.values(), *(group.pod for group in groups), head]
    image = _image(pods, config)
    if any(pod.privileged for pod in workers.values()):
        head_fields["privileged"] = "always"
    head_fields["upgrade"] = _UPGRADES.get(str(kind)) if kind else None
    config.leave_all(_CLUSTER_LEFT)
    config.close()
    spec.close()
    token = next((pod.token_secret for pod in pods if pod.token_secret), None)
    return Cluster(image, head_fields, workers, token)


def _head(group: Part) -> tuple[Pod, dict[str, Any]]:
    pod = pod_of(group.part("template", group.where))
    start = group.part("rayStartParams")
    if str(start.take("num-gpus") or "0") != "0" or "gpus" in pod.resources:
        group.remark("", ("Diptych's head runs on CPUs only", ""))
    start.close(_BY_DIPTYCH)
    group.close(_BY_DIPTYCH)
    if pod.tolerations:
        group.remark(
            "tolerations", ("a document has no field for it", "choose nodes without taints for the head")
        )
    fields = {
        "head_cpus": pod.resources.get("cpus"),
        "head_memory": pod.resources.get("memory"),
        "head_selector": pod.selector,
    }
    return pod, {name: value for name, value in fields.items() if value}


def _group(group: Part) -> Group:
    name = str(group.take("groupName"))
    start = group.part("rayStartParams")
    asked = {*group.part("resources").values, *_names(start.take("resources"))}
    start.close(_BY_DIPTYCH)
    group.leave_all(_GROUP_LEFT)
    pod = pod_of(group.part("template", group.where))
    group.close()
    known = instance_type(labelled_type(pod)[1] or "")
    has = {accelerator_resource(known.accelerator_type)} if known and known.accelerator_type else set()
    return Group(name, pod, frozenset({*asked, *has}))


def _names(resources: object) -> list[str]:
    """The names in `rayStartParams.resources`, which is JSON in quotes: '{"prefill": 1}', often escaped."""
    text = str(resources or "").strip("'\"").replace("\\", "")
    return [each.partition(":")[0].strip(" {}\"'") for each in text.split(",") if ":" in each]


def _workers(groups: list[Group], engines: Engines, config: Part) -> dict[Phase, Pod]:
    """The worker group of each phase: the only one, else by name, by Ray's resources, or by GPUs."""
    with_gpus = [group for group in groups if group.pod.resources.get("gpus")] or groups
    for group in groups:
        if group not in with_gpus:
            why = "it has no GPUs, and Diptych has workers with GPUs only"
            Part({}, f"worker group {group.name}", config.remarks).remark("", (why, ""))
    if len({(repr(group.pod)) for group in with_gpus}) == 1:
        return dict.fromkeys(engines, with_gpus[0].pod)
    found: dict[Phase, Pod] = {}
    for phase, engine in engines.items():
        named = [group for group in with_gpus if phase in group.name.lower()]
        asked = [group for group in with_gpus if engine.resources & group.resources]
        match = named if len(named) == 1 else asked
        if len(match) == 1:
            found[phase] = match[0].pod
    if with_gpus and len(found) < len(engines):
        missing = [phase for phase in engines if phase not in found]
        names = ", ".join(group.name for group in with_gpus)
        why = f"which of {names} runs {' and '.join(missing)} can't be told"
        do = f"set nodes and resources in {' and '.join(missing)}"
        config.remark("workerGroupSpecs", (why, do))
    return found


def _image(pods: list[Pod], config: Part) -> dict[str, Any]:
    """The image of the workers, and the version of Ray in it where its name doesn't tell."""
    images = [pod.image for pod in pods if pod.image.get("name")]
    ray = config.take("rayVersion")
    if not images:
        return {}
    image = {name: value for name, value in images[0].items() if value}
    if any(each["name"] != image["name"] for each in images):
        config.remark(
            "", (f"the pods have several images, and {image['name']} was taken", "Diptych has one for all")
        )
    if ray and versions_of_image(str(image["name"])) is None:
        image["ray_version"] = ray
    return image
