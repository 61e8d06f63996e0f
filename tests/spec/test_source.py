import json
import time

import pytest

from diptych.spec.source import MAX_DEPTH, MAX_VALUES, parse, parse_all


def test_on_is_a_word_and_not_a_truth_value() -> None:
    assert parse("on: local\n").value == {"on": "local"}
    assert parse("%YAML 1.1\n---\non: local\n").value == {"on": "local"}


def test_values_are_those_of_yaml_1_2() -> None:
    text = (
        "a: yes\nb: 010\nc: 0o17\nd: 0x1F\ne: 1_000\nf: 1e-3\ng: ~\nh: true\ni: 2026-11-29\nj: '5'\nk: -3\n"
    )
    assert parse(text).value == {
        "a": "yes",
        "b": 10,
        "c": 15,
        "d": 31,
        "e": "1_000",
        "f": 0.001,
        "g": None,
        "h": True,
        "i": "2026-11-29",
        "j": "5",
        "k": -3,
    }


def test_every_field_knows_its_line() -> None:
    lines = parse("# a comment\na:\n  b: 1\n\n  c:\n    - x\n    - y\n").lines
    assert lines["a",] == 2
    assert lines["a", "b"] == 3
    assert lines["a", "c"] == 5
    assert lines["a", "c", 1] == 7


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n"])
def test_an_empty_text_holds_nothing(text: str) -> None:
    parsed = parse(text)
    assert parsed.value is None
    assert parsed.faults == []


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_json_is_yaml(indent: int | str | None) -> None:
    values = {"name": "x", "prefill": {"cores": 2, "engine_kwargs": {"😀": [1.5, None, True, "a/b\t😀"]}}}
    assert parse(json.dumps(values, indent=indent)).value == values


def test_anchors_and_merge_keys_work_and_what_is_written_wins() -> None:
    text = "x: &x {a: 1, b: 2}\ny: &y {a: 5, c: 6}\nz:\n  <<: [*x, *y]\n  b: 3\nw: *x\n"
    parsed = parse(text)
    assert parsed.value["z"] == {"a": 1, "b": 3, "c": 6}
    assert parsed.value["w"] == {"a": 1, "b": 2}
    assert parsed.lines["z", "b"] == 5


def test_an_aliased_mapping_is_a_value_of_its_own() -> None:
    values = parse("a: &a {x: 1}\nb: *a\n").value
    values["a"]["x"] = 2
    assert values["b"] == {"x": 1}


def test_all_doubled_keys_are_found_with_both_lines() -> None:
    faults = parse("a: 1\nb: {c: 1, c: 2}\na: 3\n").faults
    assert [(f.line, f.path, f.what) for f in faults] == [
        (2, ("b", "c"), "it is given twice, first on line 2"),
        (3, ("a",), "it is given twice, first on line 1"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "what", "excerpt"),
    [
        ("a:\n\t- b\n", 2, "at column 1: a tab indents this line", "    →- b\n    ^"),
        ("a: 1\nb: c: d\n", 2, "at column 5: a `:` can't stand here", "    b: c: d\n        ^"),
        ("a: 1\nb: 'c\nd: 2\n", 2, "a quote is opened and never closed", "    b: 'c\n       ^"),
        ("a: *nope\n", 1, "found undefined alias 'nope'", "    a: *nope\n       ^"),
        ("a: 1\n---\nb: 2\n", 2, "a second document begins here", "    ---\n    ^"),
        ("a: @x\n", 1, "this character can't begin a value", "    a: @x\n       ^"),
        ("a: [1,\n", 2, "a value is missing here, or a bracket is never closed", ""),
        ("a: [b?c]\n", 1, "at column 6: a `?` can't stand between brackets", "    a: [b?c]\n         ^"),
        ("a: *.x\n", 1, "at column 5: this can't be in the name that follows", "    a: *.x\n        ^"),
        (
            'a: 1\nb: "\\UFFFFFFFF"\n',
            2,
            "at column 7: a number is too large here",
            '    b: "\\UFFFFFFFF"\n          ^',
        ),
    ],
)
def test_a_syntax_error_names_line_and_column_and_shows_the_line(
    text: str, line: int, what: str, excerpt: str
) -> None:
    [fault] = parse(text).faults
    assert fault.line == line
    assert what in fault.what
    assert fault.excerpt == excerpt


def test_a_character_that_yaml_forbids_is_placed() -> None:
    [fault] = parse("a: 1\nb: \x07\n").faults
    assert fault.line == 2
    assert "column 4: U+0007" in fault.what


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_what_ends_a_line_in_yaml_1_1_only_begins_no_field(end: str) -> None:
    [fault] = parse(f"# a comment{end}on: eks\n").faults
    assert f"column 12: U+{ord(end):04X}" in fault.what
    assert parse(f'a: "\\u{ord(end):04x}"').value == {"a": end}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: !!python/object/apply:os.system [x]\nb: !secret x\n", "the tag !secret is not known here"),
        ("b: !!int x\n", "'x' is not a value of its kind"),
        ("b: .nan\n", "'.nan' is not a value of its kind"),
        ("b: " + "9" * 5000 + "\n", "is not a value of its kind"),
        ("b: 1\n<<: 3\n", "`<<` takes a mapping"),
        ("? [b]\n: 1\n", "can't be the name of a field"),
        ('"\\ud83d": 1\n', "can't be the name of a field"),
    ],
)
def test_what_is_no_plain_value_is_refused(text: str, what: str) -> None:
    assert any(what in fault.what for fault in parse(text).faults)


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: {c: *a}}\n", "a: &a {<<: *a}\n"])
def test_an_alias_of_itself_is_refused(text: str) -> None:
    [fault] = parse(text).faults
    assert fault.what == "an alias refers to what it is in"


def test_aliases_that_multiply_stop_at_a_limit() -> None:
    laughs = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 80))
    merges = "a0: &a0 {x: 1}\n" + "".join(
        f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 80)
    )
    began = time.monotonic()
    for text in (laughs, merges):
        [fault] = parse(text).faults
        assert f"more than {MAX_VALUES} values" in fault.what
    assert time.monotonic() - began < 5


def test_many_values_stop_at_a_limit() -> None:
    assert parse(f"[{'1,' * (MAX_VALUES - 1)}]").faults == []
    for text in (f"[{'1,' * MAX_VALUES}]", "[" + "1," * 100_000):
        [fault] = parse(text).faults
        assert f"more than {MAX_VALUES} values" in fault.what


CHAIN_OF_MERGES = "".join(
    f"? &a{n} {{<<: *a{n - 1}}}\n: 1\n" if n else "? &a0 {}\n: 1\n" for n in range(2000)
)


@pytest.mark.parametrize(
    "text",
    [
        "{a: " * 2000,
        "- " * 100_000,
        "a: " + "{a: " * MAX_DEPTH + "}" * MAX_DEPTH,
        f"a: &a {'[' * 40}{']' * 40}\nb: {'[' * 40}*a{']' * 40}\n",
        f"{CHAIN_OF_MERGES}z: *a1999\n",
    ],
)
def test_what_is_nested_too_deeply_is_refused(text: str) -> None:
    [fault] = parse(text).faults
    assert fault.what == "it is nested too deeply"


def test_what_is_nested_less_deeply_is_read() -> None:
    assert parse("[" * MAX_DEPTH + "x" + "]" * MAX_DEPTH).faults == []


def test_an_anchor_may_be_used_again() -> None:
    assert parse("a: &x 1\nb: &x 2\nc: *x\n").value == {"a": 1, "b": 2, "c": 2}


def test_several_documents_are_read_with_the_lines_of_the_whole_text() -> None:
    first, second, third = parse_all("a: 1\n---\n# nothing\n---\nb:\n  c: 2\n")
    assert (first.value, second.value, third.value) == ({"a": 1}, None, {"b": {"c": 2}})
    assert third.lines["b", "c"] == 6
    assert parse_all("") == []
    assert parse_all("a: 1\n") == [parse("a: 1\n")]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a: 1\n---\nb: c: d\n", 3, "a `:` can't stand here"),
        ("a: 1\n---\nb: 1\nb: 2\n", 4, "it is given twice, first on line 3"),
        ("a: 1\n---\nb: \x07\n", 3, "U+0007"),
        ('a: 1\n---\nb: "\\UFFFFFFFF"\n', 3, "a number is too large here"),
        ("a: 1\n---\n" + "[" * 100, 3, "it is nested too deeply"),
        ("- 1\n---\n" * (MAX_VALUES + 1), None, f"more than {MAX_VALUES} values"),
    ],
)
def test_what_is_wrong_in_one_of_several_documents_is_placed(text: str, line: int | None, what: str) -> None:
    [fault] = [fault for parsed in parse_all(text) for fault in parsed.faults]
    assert what in fault.what
    assert line is None or fault.line == line
