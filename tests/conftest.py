"""What every test gets: a state directory of its own, so that no service of the user's is seen or touched."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def state_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that holds services' states for this test; not made yet."""
    root = tmp_path / "state"
    monkeypatch.setenv("DIPTYCH_STATE_DIR", str(root))
    return root
