"""Whether an image's tag is in its registry, asked as a container runtime asks: the Docker registry protocol.

Without credentials, over HTTPS, a few seconds long. A registry that can't be reached from here, or lets nobody in
without a password, says nothing about what the nodes will see: that is no error.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from diptych.check.account import Image

_TIMEOUT = httpx.Timeout(8, connect=4)
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_PLATFORM = ("linux", "amd64")


@dataclass(frozen=True)
class Name:
    """The parts of an image's name.

    Args:
        reference: tag, or digest with its algorithm.
    """

    registry: str
    repository: str
    reference: str

    @property
    def host(self) -> str:
        """Where the registry answers: Docker Hub's is another one than its name."""
        return "registry-1.docker.io" if self.registry == "docker.io" else self.registry


def parse(name: str) -> Name:
    """Take an image's name apart, as Docker does.

    >>> parse("vllm/vllm-openai:v0.26.0")
    Name(registry='docker.io', repository='vllm/vllm-openai', reference='v0.26.0')
    >>> parse("localhost:5000/ray@sha256:ab").reference
    'sha256:ab'
    """
    rest, _, digest = name.partition("@")
    first, slash, inside = rest.partition("/")
    has_registry = slash and ("." in first or ":" in first or first == "localhost")
    registry, path = (first, inside) if has_registry else ("docker.io", rest)
    path, _, tag = path.partition(":")
    if registry == "docker.io" and "/" not in path:
        path = f"library/{path}"
    return Name(registry, path, digest or tag or "latest")


def find_image(name: str, *, client: httpx.Client | None = None) -> Image:
    """Ask the registry for the image's manifest.

    Args:
        client: of httpx, in place of one of its own.
    """
    parts = parse(name)
    with client or httpx.Client(timeout=_TIMEOUT, follow_redirects=True) as http:
        try:
            answer = _manifest(http, parts, parts.reference)
            size = _size(http, parts, answer.json()) if answer.is_success else None
        except (httpx.HTTPError, ValueError) as error:
            why = str(error) or type(error).__name__
            return Image(name, None, f"its registry {parts.registry} can't be reached from here: {why}")
    if answer.is_success:
        return Image(name, True, size_bytes=size)
    if answer.status_code == 404:
        return Image(name, False, f"{parts.registry} has no {parts.repository} with {parts.reference}")
    if answer.status_code in (401, 403):
        return Image(name, None, f"{parts.registry} lets nobody look without credentials")
    return Image(name, None, f"{parts.registry} answers with HTTP {answer.status_code}")


def size_of(manifest: Mapping[str, Any]) -> int | None:
    """Bytes of all layers, compressed; None for what is no manifest of one platform."""
    layers = manifest.get("layers")
    return sum(int(each.get("size", 0)) for each in layers) if isinstance(layers, list) else None


def _manifest(http: httpx.Client, name: Name, reference: str, token: str = "") -> httpx.Response:
    url = f"https://{name.host}/v2/{name.repository}/manifests/{reference}"
    headers = {"Accept": ", ".join(_MANIFESTS), **({"Authorization": f"Bearer {token}"} if token else {})}
    answer = http.get(url, headers=headers)
    if answer.status_code == 401 and not token:
        token = _anonymous(http, name, answer.headers.get("www-authenticate", ""))
        return _manifest(http, name, reference, token) if token else answer
    return answer


def _anonymous(http: httpx.Client, name: Name, challenge: str) -> str:
    """A token for anybody, from where the registry says; empty where it gives none."""
    if not challenge.lower().startswith("bearer"):
        return ""
    said = dict(_CHALLENGE.findall(challenge))
    realm = said.pop("realm", "")
    if not realm.startswith("https://"):
        return ""
    answer = http.get(realm, params={**said, "scope": f"repository:{name.repository}:pull"})
    if not answer.is_success:
        return ""
    found = answer.json()
    return str(found.get("token") or found.get("access_token") or "")


def _size(http: httpx.Client, name: Name, manifest: Mapping[str, Any]) -> int | None:
    """The size for our platform, following an index to its manifest."""
    for each in manifest.get("manifests") or ():
        platform = each.get("platform", {})
        if (platform.get("os"), platform.get("architecture")) == _PLATFORM:
            answer = _manifest(http, name, each["digest"])
            return size_of(answer.json()) if answer.is_success else None
    return size_of(manifest)
