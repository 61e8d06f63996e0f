"""Files with keys: what a line may say, when it is read, and what is told of one that is wrong."""

from pathlib import Path

import pytest

from diptych.serving.keys import ApiKeys, Key

KEY = "dk-right"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n")
    return path


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (KEY, Key()),
        (f"  {KEY}\t", Key()),
        (f"{KEY} admin", Key(admin=True)),
        (f"{KEY}\tpriority=7", Key(priority=7)),
        (f"{KEY} priority=-20  admin", Key(admin=True, priority=-20)),
        (f"# the first\n\n{KEY} admin", Key(admin=True)),
    ],
)
def test_a_line_is_a_key_and_what_it_may(file: Path, line: str, key: Key) -> None:
    file.write_text(f"dk-other\n{line}\n")
    keys = ApiKeys(str(file))
    assert keys.find(KEY) == key
    assert keys.find("dk-other") == Key()


@pytest.mark.parametrize(
    "presented", ["", " ", "#", "# the first", "the", f"{KEY} admin", f"{KEY}x", KEY[:-1], "\xff"]
)
def test_nothing_else_is_a_key(file: Path, presented: str) -> None:
    file.write_text(f"# the first\n\n{KEY} admin\n")
    assert ApiKeys(str(file)).find(presented) is None


@pytest.mark.parametrize(
    "line",
    [
        f"{KEY} administrator",
        f"{KEY} dk-second",
        f"{KEY} admin # of mine",
        f"{KEY} priority",
        f"{KEY} priority=",
        f"{KEY} priority=high",
        f"{KEY} priority=1.5",
        f"{KEY} priority=9999999999",
        f"{KEY} Admin",
        "admin",
        "priority=1 admin",
    ],
)
def test_a_line_with_a_word_that_is_not_known_lets_nobody_in_and_is_told_once_by_its_number(
    file: Path, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text(f"dk-good\n{line}\n")
    keys = ApiKeys(str(file))
    for presented in (KEY, "dk-second", "admin", "priority=1"):
        assert keys.find(presented) is None
    assert keys.find("dk-good") == Key()
    [told] = caplog.messages
    assert told.startswith(f"Line 2 of {file} lets nobody in")
    assert KEY not in caplog.text
    assert "dk-second" not in caplog.text


def test_keys_of_several_files_are_all_ours_and_one_that_is_gone_does_not_matter_to_the_rest(
    file: Path, tmp_path: Path
) -> None:
    admins = tmp_path / "admins"
    admins.write_text("dk-admin admin\n")
    keys = ApiKeys([str(file), str(admins)])
    assert (keys.find(KEY), keys.find("dk-admin")) == (Key(), Key(admin=True))
    file.unlink()
    assert (keys.find(KEY), keys.find("dk-admin")) == (None, Key(admin=True))


def test_keys_rotate_when_their_file_changes(file: Path) -> None:
    keys = ApiKeys(str(file))
    assert keys.find(KEY) == Key()
    file.write_text("dk-second admin\n\n  dk-third  \n")
    assert keys.find(KEY) is None
    assert keys.find("dk-second") == Key(admin=True)
    assert keys.find("dk-third") == Key()


def test_a_file_that_is_gone_or_empty_lets_nobody_in(file: Path) -> None:
    keys = ApiKeys(str(file))
    file.write_text("\n\n")
    assert keys.find("") is None
    assert keys.find(KEY) is None
    file.unlink()
    assert keys.find(KEY) is None
    file.write_text(KEY)
    assert keys.find(KEY) == Key()


def test_a_file_that_cannot_be_read_is_told_once_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    keys = ApiKeys(str(path))
    assert [keys.find(KEY) for _ in range(3)] == [None, None, None]
    [told] = caplog.messages
    assert f"can't be read from {path} (No such file or directory)" in told
    path.write_text(f"{KEY}\n")
    assert keys.find(KEY) == Key()
    path.write_bytes(b"\xff" + KEY.encode())
    assert keys.find(KEY) is None
    assert "it is not UTF-8" in caplog.messages[1]
    assert len(caplog.messages) == 2
    assert KEY not in caplog.text


def test_the_keys_themselves_are_not_kept_in_memory(file: Path) -> None:
    keys = ApiKeys(str(file))
    assert keys.find(KEY)
    [own] = keys._files
    assert own.current()
    assert KEY not in repr(vars(own))
