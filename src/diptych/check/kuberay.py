"""K5xx: KubeRay and what runs beside the workers: the operator, Ray's head, the engines' versions."""

import re
from collections.abc import Iterable

from diptych.catalog.engines import (
    KUBERAY_VERSION,
    KUBERAY_VERSIONS,
    PAIRS,
    RAY_VLLM,
    minor,
)
from diptych.catalog.instances import GIB, instance_type
from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import Subject
from diptych.render.layout import free_cpu_millis, free_memory
from diptych.spec.sizes import format_size

LEAST_HEAD_MEMORY = 4 * GIB
ENOUGH_HEAD_MEMORY = 8 * GIB
"""Ray's head with Serve's controller and a proxy was seen to use 2.7 to 3.5 GiB, and dies when it has no more."""

_BROKEN_NIXL = {
    "0.10.1": "two agents that start at once on a host hang (nixl#1668)",
    "1.0.0": "its LIBFABRIC plugin aborts the process on some hosts (vllm#39521)",
}


@rule("K502", "error", "A head pod that will be killed")
def head_survives(subject: Subject) -> Iterable[Complaint]:
    memory = subject.document.kubernetes.head_memory
    if not subject.is_local and memory < LEAST_HEAD_MEMORY:
        what = (
            f"is {format_size(memory)}, and Ray's head with Serve uses up to 3.5 GiB: the kernel will kill it"
        )
        yield Complaint("kubernetes.head_memory", what, f"give it {format_size(ENOUGH_HEAD_MEMORY)}")


@rule("K503", "warning", "A head pod with little memory")
def head_has_room(subject: Subject) -> Iterable[Complaint]:
    memory = subject.document.kubernetes.head_memory
    if not subject.is_local and LEAST_HEAD_MEMORY <= memory < ENOUGH_HEAD_MEMORY:
        what = f"is {format_size(memory)}, and the service goes down with the head when it runs out"
        yield Complaint("kubernetes.head_memory", what, f"give it {format_size(ENOUGH_HEAD_MEMORY)}")


@rule("K504", "error", "A head pod that no system node holds")
def head_fits_node(subject: Subject) -> Iterable[Complaint]:
    document = subject.document
    node = instance_type(document.eks.system_nodes.instance_type)
    if document.on != "eks" or node is None:
        return
    memory, cpus = document.kubernetes.head_memory, document.kubernetes.head_cpus
    if memory > free_memory(node):
        most = format_size(free_memory(node))
        what = f"is {format_size(memory)}, and {node.name} has {most} beside the pods of every node"
        yield Complaint(
            "kubernetes.head_memory", what, "lower it, or set a larger eks.system_nodes.instance_type"
        )
    if cpus * 1000 > free_cpu_millis(node):
        what = (
            f"is {cpus}, and {node.name} has {free_cpu_millis(node) / 1000:g} beside the pods of every node"
        )
        yield Complaint(
            "kubernetes.head_cpus", what, "lower it, or set a larger eks.system_nodes.instance_type"
        )


@rule("K515", "warning", "A version of KubeRay that was not tried")
def kuberay_is_known(subject: Subject) -> Iterable[Complaint]:
    version = subject.document.kubernetes.kuberay_version
    if not subject.is_local and version not in KUBERAY_VERSIONS:
        what = f"is {version}, and this version of Diptych was made for {', '.join(KUBERAY_VERSIONS)}"
        yield Complaint("kubernetes.kuberay_version", what, f"write {KUBERAY_VERSION}")


@rule("K516", "warning", "KubeRay without a finalizer")
def kuberay_cleans_up(subject: Subject) -> Iterable[Complaint]:
    version = subject.document.kubernetes.kuberay_version
    if not subject.is_local and _numbers(version) < (1, 6, 2):
        yield Complaint(
            "kubernetes.kuberay_version",
            f"is {version}, before 1.6.2: a RayService leaves its pods behind if the operator is deleted first",
            f"write {KUBERAY_VERSION}",
        )


@rule("K517", "error", "Ray without token authentication")
def ray_has_tokens(subject: Subject) -> Iterable[Complaint]:
    ray = subject.engine.ray
    if not subject.is_local and ray is not None and _numbers(ray) < (2, 52, 0):
        what = f"Ray {ray} of {subject.engine.source} can't ask for a token: anybody in the network can run code in it"
        yield Complaint(subject.version_field("ray"), what, "use an image with Ray 2.58 or newer")


@rule("K518", "error", "Ray and vLLM that don't belong together")
def versions_belong_together(subject: Subject) -> Iterable[Complaint]:
    ray, vllm = subject.engine.ray, subject.engine.vllm
    if ray is None or vllm is None or minor(ray) not in RAY_VLLM:
        return
    pinned = RAY_VLLM[minor(ray)]
    if minor(pinned) != minor(vllm):
        yield Complaint(
            subject.version_field("vllm"),
            f"{subject.engine.source} has Ray {ray} and vLLM {vllm}, and that Ray was made for vLLM {pinned}",
            f"use an image with vLLM {pinned}, or correct image.ray_version and image.vllm_version",
        )


@rule("K519", "error", "Engines that are too old")
def engines_are_new_enough(subject: Subject) -> Iterable[Complaint]:
    oldest = PAIRS[0]
    for name, version, least in (
        ("ray", subject.engine.ray, oldest.ray),
        ("vllm", subject.engine.vllm, oldest.vllm),
    ):
        if version is not None and _numbers(version)[:2] < _numbers(least)[:2]:
            title = {"ray": "Ray", "vllm": "vLLM"}[name]
            has = f"has {title} {version}"
            if name == "vllm" and subject.engine.vllm_by_ray:
                has = f"has Ray {subject.engine.ray}, which was made for vLLM {version}"
            what = f"{subject.engine.source} {has}, and Diptych needs {minor(least)} or newer"
            yield Complaint(subject.version_field(name), what, f"use {title} {least} or newer")


@rule("K520", "error", "A Ray that is not known")
def ray_is_known(subject: Subject) -> Iterable[Complaint]:
    ray = subject.engine.ray
    if (
        ray is None
        or _numbers(ray)[:2] < _numbers(PAIRS[0].ray)[:2]
        or minor(ray) in {minor(pair.ray) for pair in PAIRS}
    ):
        return
    pairs = " and ".join(f"Ray {minor(pair.ray)} with vLLM {minor(pair.vllm)}" for pair in PAIRS)
    yield Complaint(
        subject.version_field("ray"),
        f"{subject.engine.source} has Ray {ray}, and what Diptych runs inside Ray is made for {pairs}: "
        "it would refuse to start",
        "use one of those",
    )


@rule("K525", "warning", "Engines that are not installed")
def engines_are_installed(subject: Subject) -> Iterable[Complaint]:
    here = subject.facts.installed
    if not subject.is_local or here is None:
        return
    lacking = [
        title
        for title, version in (("Ray", here.ray), ("vLLM", here.vllm), ("NIXL", here.nixl))
        if not version
    ]
    if lacking:
        yield Complaint(
            "on",
            f"is local, and this Python environment lacks {' and '.join(lacking)}: `diptych up` can't serve from it",
            "run diptych with the Python that has the engines; in a checkout, `make up` installs them",
        )


@rule("K526", "error", "A version of NIXL that fails")
def nixl_works(subject: Subject) -> Iterable[Complaint]:
    version = subject.facts.installed.nixl if subject.facts.installed else None
    if subject.is_local and subject.is_split and version in _BROKEN_NIXL:
        yield Complaint(
            "on",
            f"is local, and NIXL {version} is installed here: {_BROKEN_NIXL[version]}",
            "install NIXL 1.3",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
