"""Documents of earlier versions. There is only one version yet, so these tests invent some."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from diptych.spec import InvalidDocumentError, load_with_provenance, migrations
from diptych.spec.load import load
from diptych.spec.migrations import Step, UnknownVersionError, migrate
from diptych.spec.problems import Origin
from diptych.spec.tree import Tree


def rename_replicas(tree: Tree) -> None:
    """An invented version had `prefill.replicas`, and the lease at the top."""
    tree.move(("prefill", "replicas"), ("prefill", "num_replicas"))
    tree.move(("decode", "replicas"), ("decode", "num_replicas"))
    tree.move(("lease",), ("kv_transfer", "lease_s"))


def rename_arguments(tree: Tree) -> None:
    tree.move(("vllm",), ("engine_kwargs",))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Diptych as it might be once there were two versions before the current one."""
    monkeypatch.setattr(migrations.migrate, "__defaults__", ({-1: rename_arguments, 0: rename_replicas}, 1))
    monkeypatch.setattr(migrations, "FIRST", -1)
    yield


OLD = """\
version: 0
prefill:
  # more than one
  replicas: 2
lease: 60
decode:
  replicas: 3
"""


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "diptych.yaml"
    file.write_text(text)
    return file


@pytest.mark.usefixtures("steps")
def test_an_old_document_is_read_and_its_values_keep_their_lines(tmp_path: Path) -> None:
    loaded = load_with_provenance(write(tmp_path, OLD), (), {})
    document = loaded.document
    assert (document.prefill.num_replicas, document.decode.num_replicas) == (2, 3)
    assert (document.version, document.kv_transfer.lease_s) == (1, 60)
    assert loaded.provenance["prefill.num_replicas"] == "document line 4"
    assert loaded.provenance["kv_transfer.lease_s"] == "document line 5"
    assert loaded.provenance["decode.num_replicas"] == "document line 7"


@pytest.mark.usefixtures("steps")
def test_errors_in_an_old_document_name_its_lines(tmp_path: Path) -> None:
    file = write(tmp_path, OLD.replace("2", "none").replace("60", "5"))
    with pytest.raises(InvalidDocumentError) as caught:
        load(file, environ={})
    assert [str(problem) for problem in caught.value.problems] == [
        f"{file}:4: prefill.num_replicas: is 'none', and must be a whole number (write digits only)",
        f"{file}:5: kv_transfer.lease_s: is 5, and must be at least 10 (give 10 or more)",
    ]


@pytest.mark.usefixtures("steps")
def test_steps_run_one_after_another_and_overrides_use_the_current_names(tmp_path: Path) -> None:
    file = write(tmp_path, "version: -1\nvllm: {max_model_len: 8}\nprefill: {replicas: 2}\n")
    document = load(file, ["engine_kwargs.max_model_len=16"], {"DIPTYCH_DECODE__NUM_REPLICAS": "4"})
    assert document.engine_kwargs == {"max_model_len": 16}
    assert (document.prefill.num_replicas, document.decode.num_replicas) == (2, 4)


@pytest.mark.usefixtures("steps")
def test_a_document_without_a_version_is_one_of_the_first(tmp_path: Path) -> None:
    assert load(write(tmp_path, "vllm: {seed: 1}\n"), environ={}).engine_kwargs == {"seed": 1}


STEPS: Mapping[int, Step] = {1: rename_arguments, 2: rename_replicas}


@pytest.mark.parametrize(
    ("version", "what", "do"),
    [
        (
            4,
            "is 4, and this version of Diptych reads version 3, and 1 to 2 as well",
            "use a newer Diptych, or ",
        ),
        (
            0,
            "is 0, and this version of Diptych reads version 3, and 1 to 2 as well",
            "write it anew as version: 3",
        ),
        ("3", "is '3', and this version of Diptych reads version 3, and 1 to 2 as well", "write version: 3"),
        (True, "is true, and this version", "write version: 3"),
        ({}, "is a mapping, and this version", "write version: 3"),
    ],
)
def test_a_version_that_can_not_be_read_says_which_ones_can(version: object, what: str, do: str) -> None:
    tree = Tree({"version": version}, {("version",): Origin("document line 1", "diptych.yaml:1", 1)})
    with pytest.raises(UnknownVersionError) as caught:
        migrate(tree, STEPS, 3)
    assert caught.value.what.startswith(what)
    assert caught.value.do.startswith(do)


def test_a_version_that_no_step_leads_from_any_more_is_too_old() -> None:
    with pytest.raises(
        UnknownVersionError, match="is 1, and this version of Diptych reads version 3, and 2 as well"
    ):
        migrate(Tree({"version": 1}), {2: rename_replicas}, 3)


def test_there_is_one_step_for_each_version_but_the_current_one() -> None:
    assert sorted(migrations.STEPS) == list(range(migrations.FIRST, migrations.VERSION))


def test_moving_what_is_not_there_changes_nothing() -> None:
    tree = Tree({"a": {"b": 1}, "c": 2})
    for path in (("x",), ("a", "x"), ("c", "x"), ("x", "y", "z")):
        tree.move(path, ("d",))
    assert tree.values == {"a": {"b": 1}, "c": 2}
