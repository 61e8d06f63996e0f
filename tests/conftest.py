"""What every test gets: a state directory of its own, so that no service of the user's is seen or touched."""

import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import botocore.session
import pytest

_ENGINES_TIMEOUT_S = 1500
"""For a test that starts engines, and may be the one that waits for the session's service first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests with engines their time."""
    for item in items:
        if item.get_closest_marker("engines"):
            item.add_marker(pytest.mark.timeout(_ENGINES_TIMEOUT_S))


def pytest_configure() -> None:
    """Let Ctrl-C be tried where a shell put this in the background, which has it ignored there."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def state_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that holds services' states for this test; not made yet."""
    root = tmp_path / "state"
    monkeypatch.setenv("DIPTYCH_STATE_DIR", str(root))
    return root


@pytest.fixture(scope="session", autouse=True)
def models_are_read_once() -> Iterator[None]:
    """botocore's descriptions of services are large; each of our sessions would read them again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(botocore.session.create_loader))
        yield
