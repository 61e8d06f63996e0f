"""KubeRay's side of a manifest: pods of the head and of the workers, in a document's terms."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

from diptych.catalog.nodes import is_system_folder
from diptych.spec.convert.environment import token_secret
from diptych.spec.convert.parts import Part, Reason
from diptych.spec.convert.quantities import quantity
from diptych.spec.problems import shown

SHARED_MEMORY = "/dev/shm"
STAGE = "diptych.serving.stage"

_BY_DIPTYCH: Reason = ("Diptych sets it itself", "")
_BY_KUBERAY: Reason = ("KubeRay sets it", "")
_POD_LEFT: Mapping[str, Reason] = {
    "restartPolicy": _BY_KUBERAY,
    "terminationGracePeriodSeconds": _BY_DIPTYCH,
    "affinity": ("Diptych spreads the workers over nodes itself", ""),
    "topologySpreadConstraints": ("Diptych spreads the workers over nodes itself", ""),
    "initContainers": ("Diptych renders its own, which stages the model", "look over what yours did"),
    "hostNetwork": ("each pod has an address of its own, and EFA works without it", "leave it out"),
    "hostIPC": ("each pod has shared memory of its own", "leave it out"),
    "hostPID": ("nothing in Diptych's pods needs it", "leave it out"),
    "dnsPolicy": ("Kubernetes' default is taken", ""),
    "schedulerName": ("Kubernetes' default is taken", ""),
}
_CONTAINER_LEFT: Mapping[str, Reason] = {
    "command": _BY_KUBERAY,
    "args": _BY_KUBERAY,
    "ports": _BY_DIPTYCH,
    "lifecycle": _BY_DIPTYCH,
    "livenessProbe": _BY_KUBERAY,
    "readinessProbe": _BY_KUBERAY,
    "startupProbe": _BY_KUBERAY,
    "terminationMessagePath": ("Kubernetes' default is taken", ""),
    "terminationMessagePolicy": ("Kubernetes' default is taken", ""),
}
_AMOUNTS = {
    "cpu": "cpus",
    "memory": "memory",
    "nvidia.com/gpu": "gpus",
    "vpc.amazonaws.com/efa": "efa",
    "hugepages-2Mi": "hugepages_2mi",
}
"""Kubernetes' resources, and the fields of a document's `resources` for them."""
_BYTES = frozenset({"memory", "hugepages_2mi", "shared_memory"})
_UNITS = {
    "TiB": 2**40,
    "GiB": 2**30,
    "TB": 10**12,
    "GB": 10**9,
    "MiB": 2**20,
    "MB": 10**6,
    "KiB": 2**10,
    "kB": 10**3,
}


@dataclass(frozen=True)
class Pod:
    """What a document says of a pod.

    Args:
        image: its fields of the document's `image`.
        resources: fields of a phase's `resources`, memory as text with a unit.
        selector: labels of the nodes.
        tolerations: as Kubernetes writes them.
        privileged: whether its container is.
        token_secret: secret of the Hugging Face token, as NAME/KEY.
        staged: source and revision of the model that Diptych's own init container fetches.
    """

    image: dict[str, Any]
    resources: dict[str, Any]
    selector: dict[str, Any]
    tolerations: list[Any]
    privileged: bool
    token_secret: str | None
    staged: tuple[str, str | None] | None = None


def pod_of(template: Part) -> Pod:
    """The pod of a template; its first container is Ray's, as KubeRay has it."""
    template.leave("metadata", ("labels and annotations are Diptych's own", ""))
    spec = template.part("spec", template.where)
    first, *others = [*spec.parts("containers", f"{spec.where}container ", ": ")] or [Part({}, "", [])]
    ray = Part(first.values, spec.where, spec.remarks)
    for other in others:
        other.remark("", ("Diptych's pods have one container", "run it elsewhere, or add it to the manifest"))
    image, secrets = _image(ray), spec.take("imagePullSecrets")
    if isinstance(secrets, list) and secrets and isinstance(secrets[0], dict):
        image["pull_secret"] = secrets[0].get("name")
        if len(secrets) > 1:
            spec.remark("imagePullSecrets", ("one is enough for one image; the first was taken", ""))
    pod = Pod(
        image=image,
        resources=_resources(ray) | _volumes(spec, ray),
        selector=dict(spec.part("nodeSelector").values),
        tolerations=[dict(each.values) for each in spec.parts("tolerations")],
        privileged=_privileged(ray),
        token_secret=token_secret(ray) or _token_of_others(spec),
        staged=_staged(spec.values.get("initContainers")),
    )
    ray.leave_all(_CONTAINER_LEFT)
    ray.close()
    spec.leave_all(_POD_LEFT)
    spec.close()
    template.close()
    return pod


def whole(amount: Decimal, name: str) -> int | str:
    """An amount as a document writes it: a whole number, memory in the largest unit in which it is one."""
    number = int(amount)
    if name == "cpus":
        return max(1, number)
    if name in _BYTES:
        for unit, size in _UNITS.items():
            if number and number % size == 0:
                return f"{number // size}{unit}"
    return number


def _image(container: Part) -> dict[str, Any]:
    container.take("name")
    return {"name": container.take("image"), "pull_policy": container.take("imagePullPolicy")}


def _resources(container: Part) -> dict[str, Any]:
    """What the container is limited to; what it asks for where there is no limit."""
    resources = container.part("resources")
    limits, requests = resources.part("limits"), resources.part("requests")
    found: dict[str, Any] = {}
    for name, field in _AMOUNTS.items():
        asked, limit = requests.take(name), limits.take(name)
        amount = quantity(asked if limit is None else limit)
        if amount is not None:
            if amount or field == "efa":
                found[field] = whole(amount, field)
        elif asked is not None or limit is not None:
            part = requests if limit is None else limits
            part.remark(name, (f"it is {shown(part.values[name])}, which is no amount", "correct it"))
        if amount is not None and quantity(asked) not in (None, amount):
            requests.remark(name, ("a pod asks for what it is limited to", ""))
    for part in (limits, requests, resources):
        part.close()
    return found


def _volumes(pod: Part, container: Part) -> dict[str, Any]:
    mounts = {
        str(each.take("name")): str(each.take("mountPath"))
        for each in container.parts("volumeMounts", f"{container.where}volumeMounts.")
    }
    found: dict[str, Any] = {}
    for volume in pod.parts("volumes", f"{pod.where}volume "):
        mount = mounts.get(str(volume.take("name")))
        kind = next((name for name in volume.values if name != "name"), "emptyDir")
        if mount == SHARED_MEMORY and kind == "emptyDir":
            amount = quantity(volume.part("emptyDir").take("sizeLimit"))
            if amount is not None:
                found["shared_memory"] = whole(amount, "shared_memory")
        elif kind == "hostPath":
            path = str(volume.part("hostPath").take("path"))
            volume.remark("", _of_the_node(path, mount))
        else:
            volume.remark(
                "",
                (
                    f"it mounts a volume ({kind}) at {mount}, and a document has no field for it",
                    "put what it holds into the image, or add it to the manifest",
                ),
            )
    return found


def _of_the_node(path: str, mount: str | None) -> Reason:
    """Why a folder of the node is not mounted, and what gives the pods the same where it is no place for models."""
    what = f"it mounts {path} of the node at {mount}"
    if SHARED_MEMORY in (path.rstrip("/"), mount):
        why = f"{what}, and Diptych's pods have shared memory of their own"
        return why, "set resources.shared_memory in prefill and decode if 8 GiB don't do"
    if path == "/dev" or path.startswith("/dev/"):
        why = f"{what}, and the device plugins hand GPUs and EFA to the pods"
        return why, "leave it out: it can keep EFA from working"
    if is_system_folder(path):
        return f"{what}, which belongs to the node's system", "put what it holds into the image"
    why = f"{what}, and Diptych stages the model on each node itself"
    return why, f"set staging.path to {path} if the model is to be kept there"


def _token_of_others(pod: Part) -> str | None:
    """The token's secret in init containers, which often fetch the model."""
    inits = Part(pod.values, pod.where, []).parts("initContainers")
    return next((secret for secret in map(token_secret, inits) if secret), None)


def _staged(containers: object) -> tuple[str, str | None] | None:
    """What follows `python -m diptych.serving.stage`: SOURCE, and perhaps `--revision REVISION`."""
    for container in containers if isinstance(containers, list) else []:
        command = container.get("command") if isinstance(container, dict) else None
        words = [str(word) for word in command] if isinstance(command, list) else []
        if STAGE in words[:-1]:
            revision = dict(pairwise(words)).get("--revision")
            return words[words.index(STAGE) + 1], revision
    return None


def _privileged(container: Part) -> bool:
    context = container.part("securityContext")
    privileged = context.take("privileged") is True
    context.leave("capabilities", ("Diptych gives the capabilities that KV transfer needs", ""))
    context.close()
    return privileged
