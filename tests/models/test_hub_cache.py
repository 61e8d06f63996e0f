import subprocess
import sys
from pathlib import Path

import pytest

from diptych.models import config_in_hub_cache
from diptych.models.hub_cache import hub_cache

COMMIT, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40
NAMES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub's cache that holds owner/tiny at two commits."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--owner--tiny"
    for revision, commit in (("main", COMMIT), ("refs/pr/1", OTHER)):
        reference = repository / "refs" / revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit)
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("revision", "commit"),
    [(None, COMMIT), ("main", COMMIT), ("refs/pr/1", OTHER), (OTHER, OTHER)],
)
def test_a_config_is_found_by_its_revision(cache: Path, revision: str | None, commit: str) -> None:
    found = config_in_hub_cache("owner/tiny", revision)
    assert found == cache / "models--owner--tiny" / "snapshots" / commit / "config.json"


@pytest.mark.parametrize(
    ("source", "revision"),
    [
        ("owner/other", None),
        ("owner/tiny", "v2"),
        ("owner/tiny", "a" * 40),
        ("owner/tiny", "../snapshots"),
        ("owner/tiny", "pr"),
        ("../owner/tiny", None),
        ("./owner", None),
        ("", None),
    ],
)
def test_what_is_not_there_is_none(cache: Path, source: str, revision: str | None) -> None:
    assert config_in_hub_cache(source, revision) is None


def test_a_snapshot_without_a_config_is_none(cache: Path) -> None:
    (cache / "models--owner--tiny" / "snapshots" / COMMIT / "config.json").unlink()
    assert config_in_hub_cache("owner/tiny") is None


def test_the_cache_is_where_the_hubs_own_library_puts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    assert hub_cache() == Path.home() / ".cache" / "huggingface" / "hub"
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert hub_cache() == Path("/caches/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "/hf")
    assert hub_cache() == Path("/hf/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/hub")
    assert hub_cache() == Path("/hub")


def test_looking_does_not_load_libraries_that_take_long() -> None:
    code = "import diptych.models, sys; print([m for m in ('torch', 'httpx', 'huggingface_hub') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
