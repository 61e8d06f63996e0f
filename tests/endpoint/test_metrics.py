"""What an endpoint says about itself; that it says nothing is no error."""

import socket
import time
from pathlib import Path

import pytest

from diptych.endpoint import Endpoint
from diptych.endpoint.metrics import fetch_models, fetch_status
from fakes.openai_endpoint import FakeEndpoint


def test_the_status_is_the_endpoints_object(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.status = {"phases": {"prefill": {"ready": True}}}
    assert fetch_status(endpoint) == {"phases": {"prefill": {"ready": True}}}


def test_the_models_are_named(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.models = ["a", "b"]
    assert fetch_models(endpoint) == ["a", "b"]


def test_there_is_no_status_where_none_is_served(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.status = None
    assert fetch_status(endpoint) is None


def test_there_is_no_status_without_the_right_key(
    endpoint: Endpoint, fake: FakeEndpoint, tmp_path: Path
) -> None:
    fake.key = "another"
    assert fetch_status(endpoint) is None
    assert fetch_status(Endpoint(fake.url, tmp_path / "missing", "tiny")) is None


@pytest.mark.parametrize("backlog_only", [True, False], ids=["answers nothing", "refuses"])
def test_an_endpoint_that_does_not_answer_is_given_up_in_time(backlog_only: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint(f"http://127.0.0.1:{server.getsockname()[1]}", None, "tiny")
        if not backlog_only:
            server.close()
        started = time.monotonic()
        assert fetch_status(endpoint, timeout_s=0.2) is None
        assert time.monotonic() - started < 3
