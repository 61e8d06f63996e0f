"""Every way in which a field can be wrong is worded here, never by Pydantic."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from diptych.spec import Document, Section
from diptych.spec.document import REFUSED_FIELDS
from diptych.spec.explain import explain, path_of
from diptych.spec.problems import FieldPath, dotted
from diptych.spec.tree import section_at

WRONG: dict[str, Any] = {
    "text": "no such word",
    "no text": "",
    "a long text": "x" * 2000,
    "text with a line feed": "a\nb",
    "a number in quotes": "2",
    "a yes": "yes",
    "a whole number": 7,
    "zero": 0,
    "a negative number": -1,
    "a large number": 10**30,
    "a fraction": 1.5,
    "a negative fraction": -0.5,
    "a truth value": True,
    "a list": [],
    "a list of numbers": [1],
    "a list of texts": ["no such word"],
    "a list of mappings": [{"a": 1}],
    "a list of nothing": [None],
    "a mapping": {},
    "a mapping of numbers": {"a": 1},
    "a mapping with a bad key": {"a b!": "c"},
    "a mapping of lists": {"a": [1]},
    "a mapping of bad texts": {"a": "no such word!"},
    "nothing": None,
}


def fields(section: type[Section] = Document, path: FieldPath = ()) -> Iterator[FieldPath]:
    for name in section.model_fields:
        inner = section_at(section, name)
        yield (*path, name)
        if inner is not None:
            yield from fields(inner, (*path, name))


def errors(path: FieldPath, value: Any) -> list[ErrorDetails]:
    for step in reversed(path):
        value = {step: value}
    try:
        Document.model_validate(value)
    except ValidationError as error:
        return error.errors(include_url=False)
    return []


@pytest.mark.parametrize("kind", WRONG)
def test_no_wrong_value_of_any_field_is_left_to_pydantics_words(kind: str) -> None:
    seen = 0
    for path in fields():
        for error in errors(path, WRONG[kind]):
            seen += 1
            what, do = explain(error)
            assert path_of(error)[: len(path)] == path
            assert not what.startswith("is ") or " must be " in what or " can " in what or len(what) < 200
            for words in (what, do):
                assert words, dotted(path)
                assert "Input" not in words
                assert "\n" not in words
            assert do != "correct the value", f"{dotted(path)}: {error['type']} has no words of its own"
    assert seen > 20


def test_every_field_has_a_kind_of_value_that_it_refuses() -> None:
    assert [
        dotted(path) for path in fields() if not any(errors(path, value) for value in WRONG.values())
    ] == []


@pytest.mark.parametrize("path", REFUSED_FIELDS)
def test_a_field_that_people_look_for_in_vain_says_why_and_what_instead(path: str) -> None:
    steps = tuple(path.split("."))
    assert steps not in set(fields())
    [error] = errors(steps, "x")
    why, do = REFUSED_FIELDS[path]
    assert explain(error) == (f"can't be set: {why}", do)


def test_what_to_do_names_only_fields_that_exist() -> None:
    known = {dotted(path) for path in fields()}
    for _, do in REFUSED_FIELDS.values():
        for word in do.replace(",", " ").replace(":", " ").replace(";", " ").split():
            assert "." not in word.strip(".") or word.strip(".") in known, word


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("monitoring", "yes", ("is 'yes', and must be true or false", "write true")),
        ("monitoring", "off", ("is 'off', and must be true or false", "write false")),
        ("monitoring", 1, ("is 1, and must be true or false", "write true or false, without quotes")),
        (
            "staging.enabled",
            [],
            ("is a list, and must be true or false", "write true or false, without quotes"),
        ),
        (
            "image.packages",
            "accelerate",
            ("is 'accelerate', and must be a list", "write `- ` before each value, or put them into [ ]"),
        ),
        ("nodes.selector.role", 5, ("is 5, and must be text", "put it in quotes")),
        (
            "eks.kubernetes_version",
            1.35,
            ("is 1.35, and must be text", "put it in quotes"),
        ),
        (
            "prefill.autoscaling_config.target_ongoing_requests",
            "2",
            ("is '2', and must be a number", "write it without quotes"),
        ),
        (
            "prefill.autoscaling_config.target_ongoing_requests",
            "many",
            ("is 'many', and must be a number", "write it like 2 or 1.5"),
        ),
        (
            "prefill.autoscaling_config.target_ongoing_requests",
            0,
            ("is 0, and must be more than 0", "give more than 0"),
        ),
        (
            "prefill.autoscaling_config.upscale_delay_s",
            -0.5,
            ("is -0.5, and must be at least 0", "give 0 or more"),
        ),
        (
            "eks.system_nodes.count",
            101,
            ("is 101, and must be at most 100", "give 100 or less"),
        ),
        (
            "decode.autoscaling_config",
            4,
            ("is 4, and must be a mapping", "write `name: value` lines, indented below it"),
        ),
        ("access.api_key_file", ["a"], ("is a list, and must be a path", "write the path of a file")),
    ],
)
def test_a_wrong_type_says_what_it_must_be(path: str, value: Any, words: tuple[str, str]) -> None:
    [error] = errors(tuple(path.split(".")), value)
    assert explain(error) == words
