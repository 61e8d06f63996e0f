"""Whatever a document holds, its text loads as the same document."""

import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.spec import Document, load
from diptych.spec.convert import to_text

plain = (
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
printable = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=40)
words = st.sampled_from(
    [
        "on",
        "yes",
        "no",
        "null",
        "~",
        "1.35",
        "0x1f",
        "1e3",
        "12:30",
        "2026-11-29",
        "a: b",
        "# x",
        "-",
        "",
        "a\nb",
    ]
)
scalars = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | printable | words
arguments = st.from_regex(r"\Ax_[a-z0-9_]{1,8}\Z")
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(printable, inner, max_size=3),
    max_leaves=6,
)
labels = st.dictionaries(
    st.from_regex(r"\A[a-z]{1,5}(\.[a-z]{1,3}/[A-Za-z]{1,5})?\Z"),
    st.sampled_from(["on", "yes", "1", "g6.8xlarge", "", "null"]),
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(
    kwargs=st.dictionaries(arguments, values, max_size=4),
    selector=labels,
    topology=st.sampled_from(["split", "aggregated"]),
)
def test_a_written_document_reads_as_the_same(
    kwargs: dict[str, Any], selector: dict[str, str], topology: str
) -> None:
    document = {
        "version": 1,
        "name": "on",
        "on": "kubernetes",
        "topology": topology,
        "engine_kwargs": kwargs,
        "nodes": {"selector": selector, "tolerations": [{"key": "a", "operator": "Exists"}]},
        "decode": {"engine_kwargs": kwargs, "resources": {"memory": "1GiB"}},
        "image": {"packages": ["a==1", "b>=2"]},
    }
    text = to_text(document, ["A heading.", ""])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "diptych.yaml"
        file.write_text(text, encoding="utf-8")
        assert load(file, environ={}) == Document.model_validate(document)


def test_other_readers_of_yaml_read_it_alike() -> None:
    document = {
        "version": 1,
        "name": "yes",
        "model": {"revision": "1e3"},
        "eks": {"kubernetes_version": "1.35"},
    }
    again = yaml.safe_load(to_text(document, []))
    assert again == document


def test_plain_mappings_go_on_one_line_and_long_ones_do_not() -> None:
    packages = [f"package-{number}==1.0.{number}" for number in range(9)]
    text = to_text({"image": {"packages": packages}, "eks": {"system_nodes": {"count": 2}}}, [])
    assert "  system_nodes: {count: 2}\n" in text
    assert "  packages:\n    - package-0==1.0.0\n    - package-1" in text
