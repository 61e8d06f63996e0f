from datetime import date
from importlib import metadata

import pytest

from diptych.catalog.engines import (
    AWS_IMAGE,
    KUBERAY_VERSION,
    KUBERAY_VERSIONS,
    KUBERNETES_VERSIONS,
    LOCAL,
    PAIRS,
    RAY_VLLM,
    TESTED_IMAGE,
    is_moving,
    minor,
    versions_of_image,
)

PUBLIC = "public.ecr.aws/deep-learning-containers/ray"
PRIVATE = "763104351884.dkr.ecr.eu-central-1.amazonaws.com/ray"


def test_the_tested_image_carries_ray_2_58_with_vllm_0_26() -> None:
    versions = versions_of_image(TESTED_IMAGE)
    assert versions is AWS_IMAGE
    assert (versions.ray, versions.vllm, versions.nixl) == ("2.58.0", "0.26.0", "1.3.1")
    assert (versions.torch, versions.cuda, versions.python) == ("2.11.0", "13.0", "3.13")


@pytest.mark.parametrize("tag", ["serve-llm-cuda", "serve-llm-cuda-v1", "serve-llm-cuda-v1.0"])
@pytest.mark.parametrize("repository", [PUBLIC, PRIVATE])
def test_every_tag_is_known_in_every_region(repository: str, tag: str) -> None:
    assert versions_of_image(f"{repository}:{tag}") is AWS_IMAGE
    assert versions_of_image(f"{repository}:{tag}@sha256:{'0' * 64}") is AWS_IMAGE


@pytest.mark.parametrize(
    "name",
    [
        PUBLIC,
        f"{PUBLIC}:serve-ml-cuda-v1.0",
        f"{PUBLIC}:serve-llm-cuda-v2.0",
        f"{PUBLIC}@sha256:{'0' * 64}",
        f"mirror.example.com:5000/{PUBLIC}:serve-llm-cuda",
        "763104351884.dkr.ecr.evil.example.com/ray.amazonaws.com/ray:serve-llm-cuda",
        "localhost:5000/ray",
        "",
    ],
)
def test_what_another_image_carries_is_not_guessed(name: str) -> None:
    assert versions_of_image(name) is None


def test_each_pair_is_what_its_ray_pins() -> None:
    assert PAIRS == (AWS_IMAGE, LOCAL)
    for pair in PAIRS:
        assert minor(pair.vllm) == minor(RAY_VLLM[minor(pair.ray)])


def test_the_local_pair_is_what_the_installed_ray_pins() -> None:
    try:
        ray = metadata.distribution("ray")
    except metadata.PackageNotFoundError:
        pytest.skip("Ray is not installed")
    if ray.version != LOCAL.ray:
        pytest.skip(f"Ray {ray.version} is installed, not {LOCAL.ray}")
    pins = {each.partition(";")[0].strip() for each in ray.requires or () if 'extra == "llm"' in each}
    assert f"nixl=={LOCAL.nixl}" in pins
    assert f"vllm[audio]=={LOCAL.vllm}" in pins


def test_versions_compare_by_their_first_two_numbers() -> None:
    assert [minor(each) for each in ("0.26.0", "0.26", "v0.29.0", "2.60.0.post1", "1.7.0")] == [
        "0.26",
        "0.26",
        "0.29",
        "2.60",
        "1.7",
    ]


def test_the_kuberay_we_install_is_the_newest_known() -> None:
    assert KUBERAY_VERSIONS[-1] == KUBERAY_VERSION


def test_support_for_kubernetes_ends_in_order() -> None:
    ends = [end for end in KUBERNETES_VERSIONS.values() if end]
    assert ends == sorted(ends)
    assert KUBERNETES_VERSIONS["1.35"] == date(2027, 3, 27)


@pytest.mark.parametrize(
    ("name", "moving"),
    [
        (TESTED_IMAGE, False),
        (f"{PUBLIC}:serve-llm-cuda", True),
        (f"{PUBLIC}:serve-llm-cuda-v1.0", True),
        ("registry.example.com:5000/llm", True),
        ("registry.example.com/llm:latest", True),
        ("registry.example.com/llm:v1", False),
        (f"{PUBLIC}:serve-llm-cuda@sha256:0123", False),
    ],
)
def test_an_image_may_change_unless_its_tag_or_digest_stays(name: str, moving: bool) -> None:
    assert is_moving(name) is moving
