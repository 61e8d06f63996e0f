"""Versions that belong together: Ray, vLLM, NIXL, torch, and the images that carry them.

Sources: Ray's `llm` extra, which pins vLLM and NIXL; the changelog of AWS's Ray LLM image; the release pages of
KubeRay, eksctl and Kubernetes on EKS.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType


@dataclass(frozen=True)
class EngineVersions:
    """One set of versions that was built to work together.

    Args:
        cuda: of the build ("13.0"); None where torch is built for CPUs.
        python: minor version ("3.13"); None where any that Ray supports will do.
    """

    ray: str
    vllm: str
    nixl: str
    torch: str
    cuda: str | None
    python: str | None


AWS_IMAGE = EngineVersions(
    ray="2.58.0", vllm="0.26.0", nixl="1.3.1", torch="2.11.0", cuda="13.0", python="3.13"
)
LOCAL = EngineVersions(ray="2.60.0", vllm="0.29.0", nixl="1.3.2", torch="2.13.0", cuda=None, python=None)
PAIRS = (AWS_IMAGE, LOCAL)

# vLLM's version by Ray's minor version, as Ray's `llm` extra pins it.
RAY_VLLM: Mapping[str, str] = MappingProxyType(
    {"2.55": "0.18", "2.56": "0.22", "2.57": "0.25.1", "2.58": "0.26", "2.60": "0.29"}
)

TESTED_IMAGE = "public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1.0.0"

_AWS_RAY_LLM_TAGS = ("serve-llm-cuda", "serve-llm-cuda-v1", "serve-llm-cuda-v1.0", "serve-llm-cuda-v1.0.0")
# Versions by repository and tag. AWS's private registries are one repository here, whatever their region.
IMAGES: Mapping[str, Mapping[str, EngineVersions]] = MappingProxyType(
    {
        "public.ecr.aws/deep-learning-containers/ray": dict.fromkeys(_AWS_RAY_LLM_TAGS, AWS_IMAGE),
        "763104351884.dkr.ecr.*.amazonaws.com/ray": dict.fromkeys(_AWS_RAY_LLM_TAGS, AWS_IMAGE),
    }
)

_WHOLE_VERSION = re.compile(r"\d+\.\d+\.\d+")
_MOVING_TAGS = ("", "latest", "nightly", "main")

KUBERAY_VERSION = "1.7.0"
KUBERAY_VERSIONS = ("1.6.0", "1.6.1", "1.6.2", "1.7.0")
EKSCTL_VERSION = "0.230.0"
# Minor versions of Kubernetes on EKS, and the day standard support ends; None where none is announced.
KUBERNETES_VERSIONS: Mapping[str, date | None] = MappingProxyType(
    {
        "1.33": date(2026, 7, 29),
        "1.34": date(2026, 12, 2),
        "1.35": date(2027, 3, 27),
        "1.36": None,
    }
)


def versions_of_image(name: str) -> EngineVersions | None:
    """What an image carries, from its name; None for an image, tag or bare digest that is not in `IMAGES`.

    >>> versions_of_image("public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1.0").vllm
    '0.26.0'
    """
    repository, _, tag = name.partition("@")[0].rpartition(":")
    for pattern, tags in IMAGES.items():
        if re.fullmatch(re.escape(pattern).replace(r"\*", r"[a-z0-9-]+"), repository):
            return tags.get(tag)
    return None


def is_moving(name: str) -> bool:
    """Whether an image's content may change under its name: no digest, and a tag that is moved on to new builds.

    >>> is_moving("public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1"), is_moving("a/b:1.0")
    (True, False)
    """
    if "@sha256:" in name:
        return False
    tag = name.rpartition("/")[2].partition(":")[2]
    return tag in _MOVING_TAGS or (tag in _AWS_RAY_LLM_TAGS and not _WHOLE_VERSION.search(tag))


def minor(version: str) -> str:
    """The first two numbers of a version: "0.26" of "0.26.0"."""
    return ".".join(version.removeprefix("v").split(".")[:2])
