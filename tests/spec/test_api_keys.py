"""Files with keys, read before a service starts as `diptych.serving.keys` reads them inside it."""

import pytest

from diptych.serving.keys import ApiKeys
from diptych.spec.api_keys import faulty_lines, key_lines


def test_empty_lines_and_remarks_are_left_out() -> None:
    assert key_lines("# ours\n\n  dk-1\tadmin \n#dk-2\n") == {3: ["dk-1", "admin"]}


@pytest.mark.parametrize(
    "line",
    [
        "dk-1",
        "dk-1 admin",
        "dk-1 priority=-5 admin",
        "dk-1 priority=999999999",
        "dk-1 admin admin",
        "dk-1 dk-2",
        "dk-1 Admin",
        "dk-1 priority",
        "dk-1 priority=1.5",
        "dk-1 priority=9999999999",
        "dk-1 priority=\u0661",
        "dk-1 admin # mine",
        "admin",
        "priority=1 admin",
        "# dk-1",
        "",
    ],
)
def test_both_readers_refuse_the_same_lines(line: str, tmp_path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"dk-0\n{line}\n")
    words = line.split()
    let_in = bool(words) and ApiKeys(str(file)).find(words[0]) is not None
    names_a_key = 2 in key_lines(file.read_text())
    assert faulty_lines(file.read_text()) == ([2] if names_a_key and not let_in else [])
