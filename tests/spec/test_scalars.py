import pytest
import yaml

from diptych.spec.scalars import TAG, read, text_of, written
from diptych.spec.source import parse

WORDS = """
    on off yes no On YES y n tRUE nULL none
    1_000 0b11 0o18 0O17 0xg -0x1f 1:30 190:20:30 1.2.3 1e e3 . + \uff11
    2026-11-29 2026-11-29T10:00:00Z = <<
"""


@pytest.mark.parametrize("word", WORDS.split())
def test_a_word_that_the_core_schema_does_not_know_is_text(word: str) -> None:
    assert parse(f"a: {word}").value == {"a": word}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("0", 0),
        ("-3", -3),
        ("+3", 3),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("9" * 30, int("9" * 30)),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-1.", -1.0),
        ("1e3", 1000.0),
        ("1E-3", 0.001),
        ("true", True),
        ("FALSE", False),
        ("", None),
        ("~", None),
        ("Null", None),
    ],
)
def test_a_plain_word_has_the_value_of_the_core_schema(word: str, value: object) -> None:
    found = parse(f"a: {word}").value["a"]
    assert found == value
    assert type(found) is type(value)
    assert parse(f"a: '{word}'").value == {"a": word}


@pytest.mark.parametrize("word", [".inf", "-.INF", ".nan", "1e400", "9" * 5000])
def test_a_number_that_can_not_be_held_is_refused(word: str) -> None:
    [fault] = parse(f"a: {word}").faults
    assert fault.what == f"{word[:40]!r} is not a value of its kind"


@pytest.mark.parametrize(
    ("kind", "text"), [("int", "1_000"), ("int", "x"), ("bool", "yes"), ("null", "x"), ("float", "1:30")]
)
def test_a_tag_takes_only_words_of_its_kind(kind: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read(f"{TAG}{kind}", text)


def test_a_tag_makes_a_number_text_and_a_whole_number_a_float() -> None:
    assert parse("a: !!str 5\nb: !!float 5\n").value == {"a": "5", "b": 5.0}


def test_a_tag_that_is_not_known_is_named_as_such() -> None:
    with pytest.raises(KeyError):
        read(f"{TAG}binary", "aGk=")


def test_a_pair_of_surrogates_is_one_character_and_one_alone_is_refused() -> None:
    assert text_of("\ud83d\ude00!") == "😀!"
    with pytest.raises(ValueError, match="utf-16"):
        text_of("\ud83d")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("on", "'on'"),
        ("1.35", "'1.35'"),
        ("0o17", "'0o17'"),
        ("1e3", "'1e3'"),
        ("null", "'null'"),
        ("<<", "'<<'"),
        ("g6.8xlarge", "g6.8xlarge"),
        ("a: b", "'a: b'"),
        ("a\nb", '"a\\nb"'),
        ("", "''"),
        (True, "true"),
        (None, "null"),
        (1.5, "1.5"),
        ({"b": [1, "x"], "a": {}}, "{b: [1, x], a: {}}"),
    ],
)
def test_a_value_is_written_so_that_both_versions_of_yaml_read_it_alike(value: object, text: str) -> None:
    assert written(value) == text
    assert parse(f"a: {text}").value == yaml.safe_load(f"a: {text}") == {"a": value}
