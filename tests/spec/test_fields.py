"""What each field takes and refuses, as it is written in YAML."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diptych.spec import Document, InvalidDocumentError, Section, load
from diptych.spec.problems import FieldPath, dotted
from diptych.spec.tree import section_at
from spec.field_values import BAD, GOOD


def fields(section: type[Section] = Document, path: FieldPath = ()) -> Iterator[FieldPath]:
    for name in section.model_fields:
        inner = section_at(section, name)
        if inner is None:
            yield (*path, name)
        else:
            yield from fields(inner, (*path, name))


def value_of(document: Document, field: str) -> Any:
    value: Any = document
    for name in field.split("."):
        value = getattr(value, name)
    return value


def write(tmp_path: Path, field: str, text: str) -> Path:
    steps = field.split(".")
    lines = [f"{'  ' * depth}{step}:" for depth, step in enumerate(steps)]
    file = tmp_path / "diptych.yaml"
    file.write_text("# a comment\n" + "\n".join(lines) + f" {text}\n")
    return file


@pytest.mark.parametrize("table", [GOOD, BAD], ids=["good", "bad"])
def test_no_field_is_missing_in_these_tables(table: list[tuple[str, str, Any]]) -> None:
    tried = {re.sub("^decode.", "prefill.", field).replace("prefill.nodes.", "nodes.") for field, *_ in table}
    known = {dotted(path) for path in fields() if path[0] != "decode" and path[:2] != ("prefill", "nodes")}
    assert known - tried == ({"version"} if table is BAD else {"model.revision"})


@pytest.mark.parametrize(("field", "text", "value"), GOOD, ids=lambda each: str(each)[:40])
def test_a_field_takes(tmp_path: Path, field: str, text: str, value: Any) -> None:
    read = value_of(load(write(tmp_path, field, text), environ={}), field)
    if value is not None:
        assert read == value
        assert type(read) is type(value) or isinstance(value, Path)
    else:
        assert read


@pytest.mark.parametrize(("field", "text", "words"), BAD, ids=lambda each: str(each)[:40])
def test_a_field_refuses_and_says_on_which_line_what_is_wrong_and_what_to_do(
    tmp_path: Path, field: str, text: str, words: str
) -> None:
    file = write(tmp_path, field, text)
    with pytest.raises(InvalidDocumentError) as caught:
        load(file, environ={})
    [problem] = caught.value.problems
    assert problem.where == f"{file}:{len(field.split('.')) + 1}"
    assert problem.line == len(field.split(".")) + 1
    assert problem.field.startswith(field)
    assert words in str(problem)
    assert problem.do
    assert len(str(problem)) < 300 + len(str(file))


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        (
            "model: {token_file: a, token_env: B}",
            "model.token_env",
            "names the token a second time, beside token_file",
        ),
        (
            "model: {token_env: B, token_secret: c}",
            "model.token_secret",
            "beside token_env (keep one of them)",
        ),
        ("access: {api_key_file: a, api_key_env: B}", "access.api_key_env", "names the keys a second time"),
        ("access: {api_key_env: B, api_key_secret: c}", "access.api_key_secret", "beside api_key_env"),
        ("model: {source: 's3://bucket/m', revision: a}", "model.revision", "belongs to a Hugging Face id"),
    ],
)
def test_what_says_the_same_thing_twice_is_refused(tmp_path: Path, text: str, field: str, words: str) -> None:
    file = tmp_path / "diptych.yaml"
    file.write_text(text)
    with pytest.raises(InvalidDocumentError) as caught:
        load(file, environ={})
    [problem] = caught.value.problems
    assert problem.field == field
    assert words in str(problem)


@pytest.mark.parametrize(
    ("toleration", "field", "words"),
    [
        (
            "value: a",
            "operator",
            "is Equal, and there is no key to compare (set key, or write operator: Exists)",
        ),
        ("key: a, operator: Exists, value: b", "value", "is 'b', and operator is Exists, which takes any"),
        ("key: a, tolerationSeconds: 5", "tolerationSeconds", "is 5, and counts for NoExecute only"),
        ("key: a, nonsense: 1", "nonsense", "no such field (the fields here are key, operator, value"),
    ],
)
def test_a_toleration_that_kubernetes_refuses_is_refused(
    tmp_path: Path, toleration: str, field: str, words: str
) -> None:
    with pytest.raises(InvalidDocumentError) as caught:
        load(write(tmp_path, "nodes.tolerations", f"[{{{toleration}}}]"), environ={})
    [problem] = caught.value.problems
    assert problem.field == f"nodes.tolerations.0.{field}"
    assert words in str(problem)


def test_a_value_that_is_made_to_be_slow_is_refused_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    for field, text in (("image.packages", f"['a==1{' ' * 100_000}b']"), ("access.hostname", "a" * 100_000)):
        with pytest.raises(InvalidDocumentError):
            load(write(tmp_path, field, text), environ={})
    assert time.monotonic() - began < 1
