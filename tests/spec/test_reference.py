"""docs/document.md says what the models say: every field, its default, and where it is read."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic_core import PydanticUndefined

from diptych.check import places
from diptych.spec import Document, Place, Section
from diptych.spec.fields import RESERVED_ENGINE_KWARGS
from diptych.spec.overrides import from_environment
from diptych.spec.problems import FieldPath, dotted
from diptych.spec.scalars import written
from diptych.spec.sizes import format_size
from diptych.spec.tree import section_at

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "document.md").read_text()
BYTES = {"kubernetes.head_memory"}
# Errors of `diptych check` on this machine, where the rest of what is not read is a warning.
REFUSED_HERE = (
    "prefill.autoscaling_config",
    "decode.autoscaling_config",
    "model.token_secret",
    "access.api_key_secret",
)


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Path, default, places and meaning of each row of the tables below "Fields"."""
    prefixes = [""]
    for line in TEXT.partition("## Fields")[2].partition("\n## ")[0].splitlines():
        if line.startswith("### "):
            prefixes = [f"{name}." for name in re.findall(r"`([a-z_.]+)`", line)] or [""]
        elif match := re.match(r"\| `(\w+)` \| (.*?) \| (.*?) \| (.*) \|$", line):
            yield from ((prefix + match[1], *match.groups()[1:]) for prefix in prefixes)


def fields(section: type[Section] = Document, path: FieldPath = ()) -> Iterator[tuple[str, Any]]:
    for name, field in section.model_fields.items():
        inner = section_at(section, name)
        if inner is not None:
            yield from fields(inner, (*path, name))
        else:
            default = field.default
            yield dotted((*path, name)), field.default_factory() if default is PydanticUndefined else default


FIELDS = dict(fields())


def test_no_field_is_missing_and_none_is_invented() -> None:
    described = [path for path, *_ in rows()]
    assert sorted(described) == sorted(FIELDS)


@pytest.mark.parametrize(("path", "default", "where", "meaning"), list(rows()), ids=lambda each: each[:40])
def test_a_field_has_the_default_and_the_places_that_are_written_down(
    path: str, default: str, where: str, meaning: str
) -> None:
    value = FIELDS[path]
    if value is None or value == "":
        assert default == "–"
    elif path in BYTES:
        assert default == f"`{format_size(value).replace(' ', '')}`"
    else:
        assert default.strip("`").replace('"', "'") == written(value)
    read = [place for place in get_args(Place) if is_read(path, place)]
    assert where == ("all" if len(read) == 3 else ", ".join(read))
    assert meaning


def is_read(path: str, place: str) -> bool:
    unread = [*places._UNREAD[place]]
    if place == "kubernetes":
        unread += [
            f"{holder}nodes.{name}"
            for holder in ("", "prefill.", "decode.")
            for name in places._EKS_ONLY_NODES
        ]
    if place == "local":
        unread += REFUSED_HERE
    return not any(path == each or path.startswith(f"{each}.") for each in unread)


def test_the_arguments_that_are_refused_are_listed_with_the_reason() -> None:
    for name, (why, instead) in RESERVED_ENGINE_KWARGS.items():
        assert f"| `{name}` | {why} | {instead} |" in TEXT


def test_the_fields_that_variables_never_set_are_listed() -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith("| environment |"))
    for path in FIELDS:
        variable = "DIPTYCH_" + path.upper().replace(".", "__")
        refused = bool(from_environment({variable: "x"})[1])
        named = f"`{path}`" in row.rpartition(" | ")[2]
        by_group = path.startswith("eks.") or path.endswith(("nodes.zone", "nodes.capacity_reservation"))
        assert refused is (named or by_group), path


@pytest.mark.parametrize("page", ["document.md", "local.md"])
def test_links_to_headings_and_files_lead_somewhere(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        file, _, heading = target.partition("#")
        path = (ROOT / "docs" / file) if file else ROOT / "docs" / page
        assert path.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
            assert heading in anchors, target
