"""An endpoint to talk to, scripted by each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diptych.endpoint import Endpoint
from fakes.openai_endpoint import MODEL, FakeEndpoint


@pytest.fixture
def fake() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as server:
        yield server


@pytest.fixture
def endpoint(fake: FakeEndpoint, tmp_path: Path) -> Endpoint:
    return Endpoint(fake.url, fake.key_file(tmp_path), MODEL)
