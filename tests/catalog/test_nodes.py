"""Regions, images and nodes: what their names say."""

import pytest

from diptych.catalog.images import unsuitable, versions_in_tag
from diptych.catalog.instances import instance_types, is_arm
from diptych.catalog.nodes import is_reserved_label, is_system_folder
from diptych.catalog.regions import ZONE_LETTERS, last_zone


@pytest.mark.parametrize(
    ("folder", "own"),
    [
        ("/dev/infiniband", True),
        ("//dev/shm", True),
        ("/var/lib/../../etc", True),
        ("/var", True),
        ("/", True),
        ("/device", False),
        ("/var/lib/diptych", False),
        ("/mnt/k8s-disks/0", False),
    ],
)
def test_a_folder_of_the_system_is_one_in_it_or_around_it(folder: str, own: bool) -> None:
    assert is_system_folder(folder) is own


def test_labels_of_the_cloud_are_told_from_ones_own() -> None:
    assert is_reserved_label("topology.kubernetes.io/zone")
    assert is_reserved_label("eks.amazonaws.com/capacityType")
    assert not is_reserved_label("example.com/pool")
    assert not is_reserved_label("my-kubernetes.io/pool")


def test_no_type_of_the_table_is_an_arm_one() -> None:
    assert [name for name in instance_types() if is_arm(name)] == []
    assert all(map(is_arm, ("g5g.xlarge", "m7gd.large", "a1.metal", "p6e-gb200.36xlarge", "im4gn.large")))


def test_regions_have_letters_in_order() -> None:
    assert all(list(letters) == sorted(letters) for letters in ZONE_LETTERS.values())
    assert (last_zone("us-east-1"), last_zone("us-esat-1")) == ("us-east-1f", None)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("rayproject/ray-llm:2.58.0-py311-cu128", None),
        ("rayproject/ray-llm:2.58.0-py311-cpu", "CUDA"),
        ("docker.io/rayproject/ray:2.58.0", "vLLM"),
        ("vllm/vllm-openai:latest", "Ray Serve"),
        ("python", "neither"),
        ("nvcr.io/nvidia/cuda:13.0.0-base", "neither"),
        ("registry.example.com/python:3.12", None),
        ("registry.example.com/vllm-openai-with-ray:1", None),
    ],
)
def test_what_public_images_lack_is_known_by_their_names(name: str, why: str | None) -> None:
    found = unsuitable(name)
    assert found is None if why is None else found is not None and why in found


def test_tags_that_are_versions_are_read() -> None:
    assert versions_in_tag("rayproject/ray-llm:2.55.1-py311-cu128@sha256:00") == {"ray": "2.55.1"}
    assert versions_in_tag("vllm/vllm-openai:v0.26.0") == {"vllm": "0.26.0"}
    assert versions_in_tag("vllm/vllm-openai:latest") == {}
    assert versions_in_tag("registry.example.com/llm:1.2.3") == {}
