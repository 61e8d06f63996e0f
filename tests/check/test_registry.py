"""Whether an image's tag is there, asked of registries as container runtimes do."""

import json
from collections.abc import Callable, Mapping

import httpx
import pytest

from diptych.check.registry import find_image, parse

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = {"schemaVersion": 2, "config": {"size": 7}, "layers": [{"size": 1000}, {"size": 234}]}
DIGEST = "sha256:" + "a" * 64
PUBLIC_ECR = "public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1.0.0"


class Registry:
    """A registry that speaks the Docker protocol; it gives a token to anybody unless `closed`."""

    def __init__(self, manifests: Mapping[str, object], *, closed: bool = False) -> None:
        self.manifests = manifests
        self.closed = closed
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.url.host}{request.url.path}")
        if request.url.path == "/token/":
            scope = request.url.params["scope"]
            return httpx.Response(200, json={"token": f"for {scope}"})
        if self.closed or not request.headers.get("authorization", "").startswith("Bearer for repository:"):
            realm = (
                f'Bearer realm="https://{request.url.host}/token/",service="{request.url.host}",scope="aws"'
            )
            return httpx.Response(401, headers={"www-authenticate": realm})
        assert INDEX in request.headers["accept"]
        found = self.manifests.get(request.url.path.rpartition("/")[2])
        if found is None:
            return httpx.Response(404, json={"errors": [{"code": "MANIFEST_UNKNOWN"}]})
        return httpx.Response(200, content=json.dumps(found))


def client(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(answer))


def test_a_tag_that_is_there_comes_with_its_size_for_our_platform() -> None:
    platforms = [
        {"digest": "sha256:b", "platform": {"os": "linux", "architecture": "arm64"}},
        {"digest": DIGEST, "platform": {"os": "linux", "architecture": "amd64"}},
    ]
    registry = Registry({"serve-llm-cuda-v1.0.0": {"manifests": platforms}, DIGEST: MANIFEST})
    found = find_image(PUBLIC_ECR, client=client(registry))
    assert (found.exists, found.size_bytes) == (True, 1234)
    assert {each.partition("/")[0] for each in registry.asked} == {"public.ecr.aws"}


def test_a_tag_that_is_not_there_is_told() -> None:
    found = find_image(PUBLIC_ECR, client=client(Registry({})))
    assert found.exists is False
    assert "public.ecr.aws has no deep-learning-containers/ray with serve-llm-cuda-v1.0.0" in found.why


def test_a_registry_that_lets_nobody_look_says_nothing_either_way() -> None:
    found = find_image("registry.example.com/ray:1", client=client(Registry({}, closed=True)))
    assert (found.exists, "credentials" in found.why) == (None, True)


def test_a_registry_that_can_not_be_reached_is_said_and_no_error() -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("timed out", request=request)

    found = find_image("registry.example.com/ray:1", client=client(away))
    assert found.exists is None
    assert "registry.example.com can't be reached from here: timed out" in found.why


def test_an_answer_that_is_no_manifest_is_no_traceback() -> None:
    found = find_image(
        "registry.example.com/ray:1", client=client(lambda _: httpx.Response(200, text="<html>"))
    )
    assert found.exists is None


def test_no_password_goes_to_a_token_address_without_tls() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.scheme)
        return httpx.Response(
            401, headers={"www-authenticate": 'Bearer realm="http://registry.example.com/token"'}
        )

    assert find_image("registry.example.com/ray:1", client=client(answer)).exists is None
    assert asked == ["https"]


@pytest.mark.parametrize(
    ("name", "host", "repository", "reference"),
    [
        ("ubuntu", "registry-1.docker.io", "library/ubuntu", "latest"),
        ("rayproject/ray-llm:2.55.1", "registry-1.docker.io", "rayproject/ray-llm", "2.55.1"),
        (PUBLIC_ECR, "public.ecr.aws", "deep-learning-containers/ray", "serve-llm-cuda-v1.0.0"),
        ("localhost:5000/ray:1", "localhost:5000", "ray", "1"),
        (f"ghcr.io/a/b:1@{DIGEST}", "ghcr.io", "a/b", DIGEST),
    ],
)
def test_a_name_is_taken_apart_as_docker_does(name: str, host: str, repository: str, reference: str) -> None:
    parts = parse(name)
    assert (parts.host, parts.repository, parts.reference) == (host, repository, reference)
