"""Images in ECR are looked up as the caller, those elsewhere as anybody."""

import json

import pytest

from diptych.check.account import Image
from diptych.eks import registries
from diptych.eks.aws import Session
from fakes.aws import FakeAws

REGISTRY = "123456789012.dkr.ecr.us-east-2.amazonaws.com"
DIGEST = "sha256:" + "a" * 64


@pytest.fixture
def pushed(aws: FakeAws) -> FakeAws:
    """A repository `ray` with one image, tagged `mine`."""
    ecr = aws.client("ecr")
    ecr.create_repository(repositoryName="ray")
    layers = [{"mediaType": "layer", "size": size, "digest": DIGEST} for size in (1000, 234)]
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = {
        "schemaVersion": 2,
        "mediaType": kind,
        "config": {"size": 7, "digest": DIGEST},
        "layers": layers,
    }
    ecr.put_image(repositoryName="ray", imageManifest=json.dumps(manifest), imageTag="mine")
    return aws


def test_a_tag_in_ecr_is_asked_of_ecr(pushed: FakeAws, session: Session) -> None:
    found = registries.find(session, f"{REGISTRY}/ray:mine")
    assert (found.exists, found.size_bytes) == (True, 1234)
    missing = registries.find(session, f"{REGISTRY}/ray:other")
    assert (missing.exists, "no ray with other" in missing.why) == (False, True)
    nowhere = registries.find(session, f"{REGISTRY}/rye:mine")
    assert (nowhere.exists, "no repository rye" in nowhere.why) == (False, True)


def test_a_repository_that_may_not_be_read_says_nothing_either_way(pushed: FakeAws, session: Session) -> None:
    pushed.faults.denied.add("ecr:BatchGetImage")
    found = registries.find(session, f"{REGISTRY}/ray:mine")
    assert found.exists is None
    assert "ecr:BatchGetImage" in found.why


def test_other_registries_are_asked_as_anybody(monkeypatch: pytest.MonkeyPatch, session: Session) -> None:
    monkeypatch.setattr(registries, "find_image", lambda name: Image(name, True))
    assert registries.find(session, "public.ecr.aws/a/b:c").exists
