"""What the names of public images say: the versions in their tags, and images that can't serve."""

import re
from collections.abc import Mapping
from types import MappingProxyType

_VERSION = r"(\d+\.\d+\.\d+)"

# A pattern of the name, and of which engine its group is the version.
_VERSIONED = (
    (re.compile(rf"(?:docker\.io/)?rayproject/ray(?:-llm|-ml)?:{_VERSION}(?:-.*)?"), "ray"),
    (re.compile(rf"(?:docker\.io/)?vllm/vllm-openai:v{_VERSION}(?:-.*)?"), "vllm"),
)

UNSUITABLE: Mapping[str, str] = MappingProxyType(
    {
        r"(.*/)?vllm/vllm-openai\b.*": "is made for vLLM's own server, without Ray Serve",
        r"(.*/)?rayproject/ray(-ml)?[:@].*": "has Ray, and neither vLLM nor NIXL",
        r"(.*/)?rayproject/ray(-llm)?:.*-cpu": "is built without CUDA",
        r"(docker\.io/)?(library/)?(python|ubuntu|debian|alpine|amazonlinux)\b[^/]*": "has neither Ray nor vLLM",
        r"(.*/)?nvidia/cuda\b.*": "has neither Ray nor vLLM",
    }
)
"""What is known to be missing in images, by a pattern of the whole name; the first that fits."""


def unsuitable(name: str) -> str | None:
    """Why an image of this name can't serve, as the end of a sentence; None where nothing is known against it.

    >>> unsuitable("python:3.12-slim")
    'has neither Ray nor vLLM'
    """
    return next((why for pattern, why in UNSUITABLE.items() if re.fullmatch(pattern, name)), None)


def versions_in_tag(name: str) -> dict[str, str]:
    """The version of "ray" or "vllm" that the tag of a public image states; empty for other images.

    >>> versions_in_tag("rayproject/ray-llm:2.55.1-py311-cu128")
    {'ray': '2.55.1'}
    """
    found = ((engine, pattern.fullmatch(name.partition("@")[0])) for pattern, engine in _VERSIONED)
    return {engine: match[1] for engine, match in found if match}
