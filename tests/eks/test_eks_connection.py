"""The way into a cluster whose API is open to some addresses only, and this machine's may have changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diptych.eks.connection import connect
from diptych.eks.control_plane import EksCluster
from diptych.errors import AccountError
from diptych.kube.connection import UnreachableError
from eks.world import World, world


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A cluster whose API lets 203.0.113.7 in, and does not answer."""
    found = EksCluster("llm", "arn", "ACTIVE", "1.35", (), ("203.0.113.7/32",), "", {})

    def silent(*_: Any, **__: Any) -> None:
        raise UnreachableError("The Kubernetes API does not answer.", "Is the network up?")

    monkeypatch.setattr("diptych.eks.control_plane.find", lambda job: found)
    monkeypatch.setattr("diptych.eks.kubeconfig.write", lambda *_: "llm")
    monkeypatch.setattr("diptych.eks.connection.connect_to", silent)
    with world(tmp_path, monkeypatch) as made:
        yield made


def hint(here: World) -> str:
    with pytest.raises(UnreachableError, match="does not answer") as caught:
        connect(here.job())
    return caught.value.hint


def test_a_changed_address_is_named_with_the_command_that_opens_the_api_to_it(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diptych.eks.address.own_cidr", lambda: "198.51.100.9/32")
    said = hint(here)
    assert "not open to 198.51.100.9/32" in said
    assert said.endswith(
        "aws eks update-cluster-config --name llm --region us-east-2 --resources-vpc-config endpointPublicAccess=true,"
        "endpointPrivateAccess=true,publicAccessCidrs=203.0.113.7/32,198.51.100.9/32"
    )


def test_an_address_that_is_let_in_or_that_nobody_tells_is_not_blamed(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> str:
        raise AccountError("nobody tells")

    for own in (lambda: "203.0.113.7/32", lambda: "2001:db8::7/128", unknown):
        monkeypatch.setattr("diptych.eks.address.own_cidr", own)
        assert hint(here) == "Is the network up?"
