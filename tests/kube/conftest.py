"""What tests of whole steps share: the stand-ins for programs in PATH, and waits that don't take seconds."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fakes.kubernetes import FakeKubernetes, install_operator
from kube.world import World, look_often, programs_first, world


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-ins for helm and eksctl are first in PATH."""
    programs_first(monkeypatch)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing takes seconds."""
    look_often(monkeypatch)


@pytest.fixture
def bare(tmp_path: Path, quick: None, programs: None) -> Iterator[World]:
    """A cluster without an operator."""
    with world(tmp_path) as found:
        yield found


@pytest.fixture
def here(bare: World) -> World:
    """A cluster with an operator of somebody else's."""
    install_operator(bare.fake, "kuberay-system")
    return bare


@pytest.fixture
def api() -> Iterator[FakeKubernetes]:
    """The fake API alone, with nothing in it."""
    with FakeKubernetes() as found:
        yield found


@pytest.fixture
def http(api: FakeKubernetes) -> Iterator[httpx.Client]:
    """A client of it."""
    with httpx.Client(base_url=api.url) as client:
        yield client
