"""`diptych down --forget`: a name whose cluster is gone for good; nothing is deleted in any cluster."""

import time
from pathlib import Path

import pytest
import yaml

from cli.commands import Shell
from diptych.kube import remembered
from diptych.kube.remembered import Remembered
from diptych.spec import load

DOCUMENT = "version: 1\nname: llm\non: kubernetes\nmodel: Qwen/Qwen3-8B\nnodes: {instance_type: g6.8xlarge}\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The document of a service that came up in a context which the kubeconfig no longer has."""
    path, kubeconfig = tmp_path / "diptych.yaml", tmp_path / "kubeconfig"
    path.write_text(DOCUMENT)
    content = {
        "clusters": [{"name": "lab", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab"}}],
        "current-context": "lab",
    }
    kubeconfig.write_text(yaml.safe_dump(content))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    remembered.remember(
        Remembered(file=str(path), document=load(path), context="gone", started_at=time.time())
    )
    return path


def test_a_service_whose_cluster_is_gone_is_forgotten_after_one_question(file: Path, shell: Shell) -> None:
    for how in ([], [file]):
        down = shell("down", *how, "--yes")
        assert down.code == 1 and "has no context 'gone'" in down.failure
        assert "If that cluster is gone for good: diptych down --name llm --forget" in down.failure

    kept = shell("down", "--name", "llm", "--forget", answer="n")
    assert (kept.code, len(remembered.known())) == (1, 1)
    assert "Nothing is deleted: what there is of it in namespace diptych" in kept.err
    assert "context gone stays." in kept.err
    nobody = shell("down", "--forget")
    assert (nobody.code, len(remembered.known())) == (2, 1)
    done = shell("down", "--forget", answer="y")
    assert (done.code, done.out) == (0, "llm is forgotten; nothing was deleted.\n")
    assert remembered.known() == [] and not remembered.folder_of("llm", "kubernetes").exists()
    assert shell("status").code == 3


def test_what_can_not_be_read_can_be_forgotten_by_its_name(file: Path, shell: Shell) -> None:
    place = remembered.file_of("llm", "kubernetes")
    place.write_bytes(b"\xff")
    status = shell("status")
    assert status.code == 1 and f"{place}: it is not UTF-8 at byte 0." in status.failure
    assert "`diptych down --name llm --forget` only forgets it" in status.failure
    assert shell("down", "--name", "llm", "--forget", "--yes").code == 0
    assert remembered.known() == []


@pytest.mark.parametrize("more", [["--step", "service"], ["--dry-run"], ["--timeout", "5m"]], ids="".join)
def test_forgetting_takes_no_other_option(file: Path, shell: Shell, more: list[str]) -> None:
    done = shell("down", "--forget", "--yes", *more)
    assert done.code == 2 and "--forget deletes nothing" in done.failure
    assert len(remembered.known()) == 1


def test_there_is_nothing_to_forget_where_nothing_is_remembered_or_on_this_machine(
    file: Path, shell: Shell
) -> None:
    remembered.forget("llm", "kubernetes")
    done = shell("down", file, "--forget", "--yes")
    assert done.code == 3 and "Nothing is remembered of llm on kubernetes." in done.failure
    here = shell("down", "--name", "here", "--forget", "--yes")
    assert here.code == 2 and "--forget is for on: kubernetes" in here.failure


def test_a_cluster_of_ones_own_is_not_added_to_ones_kubeconfig(file: Path, shell: Shell) -> None:
    for document in (file, None):
        done = shell("up", *([document] if document else []), "--kubeconfig", "--yes")
        assert done.code == 2 and "--kubeconfig is for clusters that Diptych makes" in done.failure
