"""Where a service keeps its files: private, writable or refused, and short enough for sockets."""

import os
import stat
from pathlib import Path

import pytest

from diptych.errors import SetupError
from diptych.local.paths import ServicePaths
from diptych.remembering import state_root, write_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_services_directory_is_private_whatever_the_umask_and_whatever_it_was() -> None:
    paths = ServicePaths.of("one")
    paths.directory.mkdir(parents=True)
    paths.directory.chmod(0o777)
    paths.create()
    assert mode(paths.directory) == 0o700
    assert list(paths.directory.iterdir()) == []


def test_private_files_are_private_from_their_first_byte_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("old")
    path.chmod(0o666)
    previous = os.umask(0)
    try:
        write_private(path, "new")
    finally:
        os.umask(previous)
    assert (path.read_text(), mode(path)) == ("new", 0o600)
    assert names_in(tmp_path) == ["key"]


def test_a_private_file_replaces_a_link_and_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    (tmp_path / "key").symlink_to(target)
    for name in ("key.new", ".key.new", "key~"):
        (tmp_path / name).write_text("mine")
    write_private(tmp_path / "key", "secret")
    assert target.read_text() == "kept"
    assert not (tmp_path / "key").is_symlink()
    assert {(tmp_path / name).read_text() for name in ("key.new", ".key.new", "key~")} == {"mine"}
    assert len(names_in(tmp_path)) == 5


def test_a_private_file_that_cannot_be_written_leaves_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "key" / "in the way").mkdir(parents=True)
    with pytest.raises(SetupError, match="key cannot be written: ") as caught:
        write_private(tmp_path / "key", "secret")
    assert "DIPTYCH_STATE_DIR" in caught.value.hint
    with pytest.raises(SetupError) as caught:
        write_private(tmp_path / "key", "secret", "Move it.")
    assert caught.value.hint == "Move it." and names_in(tmp_path) == ["key"]


def test_a_state_directory_that_cannot_be_made_is_an_error_that_names_it_and_the_variable(
    state_root: Path,
) -> None:
    state_root.write_text("a file in the way")
    with pytest.raises(SetupError, match="cannot write its state") as caught:
        ServicePaths.of("one").create()
    assert str(state_root) in caught.value.message
    assert "DIPTYCH_STATE_DIR" in caught.value.hint


def test_rays_directory_is_short_and_its_own_for_each_state_directory(tmp_path: Path) -> None:
    deep = ServicePaths(tmp_path / ("x" * 200) / "name")
    longest_socket = "session_2026-11-29_23-08-53_123456_1234567/sockets/plasma_store"
    assert len(f"{deep.ray}/{longest_socket}") < 107
    assert deep.ray != ServicePaths(tmp_path / "name").ray
    assert deep.ray == ServicePaths(deep.directory).ray


def test_the_state_directory_is_the_variables_else_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DIPTYCH_STATE_DIR", str(tmp_path / "a"))
    assert state_root() == tmp_path / "a"
    monkeypatch.delenv("DIPTYCH_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_root() == tmp_path / "xdg" / "diptych"
