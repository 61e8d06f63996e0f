"""An endpoint to verify, scripted by each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diptych.endpoint import Endpoint
from fakes.provable_endpoint import MODEL, ProvableEndpoint


@pytest.fixture
def fake() -> Iterator[ProvableEndpoint]:
    with ProvableEndpoint() as server:
        yield server


@pytest.fixture
def endpoint(fake: ProvableEndpoint, tmp_path: Path) -> Endpoint:
    return Endpoint(fake.url, fake.key_file(tmp_path), MODEL)
