"""A file is written whole, or it stays what it was."""

from pathlib import Path

import pytest

from diptych.cli.files import write_whole


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "diptych.yaml"
    file.write_text("mine")

    with pytest.MonkeyPatch.context() as patched:

        def full(self: Path, text: str, encoding: str) -> int:
            self.write_bytes(b"half of it")
            raise OSError(28, "No space left on device")

        patched.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space"):
            write_whole(file, "new")
    assert file.read_text() == "mine"
    assert [each.name for each in tmp_path.iterdir()] == ["diptych.yaml"]


def test_a_link_is_replaced_and_what_it_names_is_not(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("mine")
    link.symlink_to(victim)
    write_whole(link, "new")
    assert (victim.read_text(), link.read_text(), link.is_symlink()) == ("mine", "new", False)
