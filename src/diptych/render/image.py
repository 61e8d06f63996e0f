"""The image that the pods run, and which Ray is in it."""

from typing import Any

from diptych.catalog.engines import RAY_VLLM, TESTED_IMAGE, minor, versions_of_image
from diptych.errors import DocumentError
from diptych.spec import Document


def image_name(document: Document) -> str:
    """The image of all pods: the document's, else the tested one."""
    return document.image.name or TESTED_IMAGE


def base_image(document: Document) -> str:
    """The image that the Dockerfile starts from."""
    return document.image.base or TESTED_IMAGE


def container_image(document: Document) -> dict[str, Any]:
    """A container's fields about its image."""
    return {"image": image_name(document), "imagePullPolicy": document.image.pull_policy}


def pull_secrets(document: Document) -> dict[str, Any]:
    """A pod's fields about its image."""
    secret = document.image.pull_secret
    return {"imagePullSecrets": [{"name": secret}]} if secret else {}


def ray_version(document: Document) -> str:
    """Ray's version in the image.

    Raises:
        DocumentError: it is an image that nobody knows, and the document does not say.
    """
    section = document.image
    if section.ray_version:
        return section.ray_version
    known = versions_of_image(image_name(document))
    if known is None and section.packages:  # the result of our Dockerfile, which leaves the engines alone
        known = versions_of_image(base_image(document))
    if known is None:
        raise DocumentError(
            f"Which Ray is in the image {image_name(document)} is not known.",
            "Set image.ray_version; KubeRay needs it.",
        )
    return known.ray


def vllm_version(document: Document) -> str | None:
    """vLLM's version in the image, or that which its Ray was made for; None where nobody knows."""
    section = document.image
    if section.vllm_version:
        return section.vllm_version
    known = versions_of_image(image_name(document)) or versions_of_image(base_image(document))
    if section.ray_version and (known is None or known.ray != section.ray_version):
        return RAY_VLLM.get(minor(section.ray_version))
    return known.vllm if known else None
