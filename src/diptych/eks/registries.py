"""Whether an image's tag is in its registry: ECR by its own API as the caller, any other as anybody."""

import json
import re

from diptych.check.account import Image
from diptych.check.registry import find_image, parse, size_of
from diptych.eks.aws import AwsError, Session

_PRIVATE = re.compile(
    r"(?P<account>\d{12})\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|on\.aws)"
)
_MANIFESTS = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
]


def find(session: Session, name: str) -> Image:
    """Ask the image's registry."""
    parts = parse(name)
    private = _PRIVATE.fullmatch(parts.registry)
    if private is None:
        return find_image(name)
    key = "imageDigest" if ":" in parts.reference else "imageTag"
    try:
        answer = session.call(
            "ecr",
            "batch_get_image",
            region=private["region"],
            registryId=private["account"],
            repositoryName=parts.repository,
            imageIds=[{key: parts.reference}],
            acceptedMediaTypes=_MANIFESTS,
        )
    except AwsError as error:
        if error.kind == "missing":
            return Image(name, False, f"{parts.registry} has no repository {parts.repository}")
        return Image(name, None, error.message)
    if not answer.get("images"):
        return Image(name, False, f"{parts.registry} has no {parts.repository} with {parts.reference}")
    return Image(name, True, size_bytes=size_of(json.loads(answer["images"][0]["imageManifest"])))
