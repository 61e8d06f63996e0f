"""What is remembered of a service on EKS keeps `up` and `down` in one account, and goes with the service alone."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cli.commands import Shell
from cli.test_commands_on_eks import empty, file, here  # noqa: F401  fixtures
from diptych.kube import remembered
from diptych.kube.remembered import Remembered, UnreadableError
from diptych.spec import load
from eks.test_eks_down import NOTHING
from eks.world import World

OTHER = "arn:aws:iam::999999999999:user/other"
MINE = "arn:aws:iam::123456789012:user/tester"


def known_from(path: Path, **about: object) -> Remembered:
    """What an earlier `up` of the document has left."""
    return Remembered.model_validate(
        {"file": str(path), "document": load(path), "started_at": time.time(), **about}
    )


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own kubeconfig, which is not there yet."""
    config = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(config))
    return config


def unreadable(path: Path) -> Path:
    """What an earlier `up` of the document has left, damaged."""
    remembered.remember(known_from(path, account="123456789012"))
    place = remembered.file_of("llm", "eks")
    place.write_text(place.read_text()[:40])
    return place


def test_a_cluster_that_was_made_without_a_check_is_taken_down_in_its_own_account_alone(
    here: World,  # noqa: F811
    file: Path,  # noqa: F811
    shell: Shell,
    mine: Path,
) -> None:
    mine.write_text(yaml.safe_dump({"clusters": [{"name": "lab", "cluster": {}}], "current-context": "lab"}))
    up = shell("up", file, "--yes", "--offline", "--kubeconfig", "--step", "cluster")
    assert up.code == 0, up.err
    assert f"us-east-2 in account 123456789012 ({MINE})" in up.err.partition("cluster started")[0]
    own = remembered.folder_of("llm", "eks") / "kubeconfig"
    assert f"for kubectl: KUBECONFIG={own}" in up.out and own.is_file()
    assert f"The context llm.us-east-2 is in {mine}, too" in up.out
    both = yaml.safe_load(mine.read_text())
    assert [each["name"] for each in both["clusters"]] == ["lab", "llm.us-east-2"]

    here.aws.faults.arn = OTHER
    elsewhere, state = shell("down", "--yes"), here.state()
    assert elsewhere.code == 1 and f"in account 999999999999 ({OTHER})" in elsewhere.err
    assert "llm is in another account: this is 999999999999" in elsewhere.failure
    assert here.state() == state and [each.name for each in remembered.known()] == ["llm"]

    here.aws.faults.arn = MINE
    asked = shell("down", "--dry-run")
    assert asked.code == 0 and "1 × cluster llm" in asked.err and "In all $" in asked.err, asked.err
    down = shell("down", "--yes")
    assert down.code == 0, down.err
    assert f"us-east-2 in account 123456789012 ({MINE})" in down.err.partition("service started")[0]
    assert here.state() == NOTHING and remembered.known() == []
    left = yaml.safe_load(mine.read_text())
    assert [each["name"] for each in left["clusters"]] == ["lab"] and left["current-context"] == "lab"


@pytest.mark.parametrize("leave", [unreadable, lambda path: remembered.remember(known_from(path))])
def test_what_is_not_found_where_nobody_remembers_an_account_is_not_forgotten(
    empty: World,  # noqa: F811
    file: Path,  # noqa: F811
    shell: Shell,
    leave: Callable[[Path], object],
) -> None:
    leave(file)
    place = remembered.file_of("llm", "eks")
    text = place.read_text()
    for how in (["--yes"], ["--dry-run"]):
        done = shell("down", file, *how)
        assert done.code == 3, done.err
        assert f"us-east-2 in account 123456789012 ({MINE})" in done.err
        assert "Nothing of llm is in account 123456789012, region us-east-2, cluster llm." in done.failure
        assert "AWS_PROFILE" in done.failure and str(place) in done.failure
    assert place.read_text() == text


def test_what_can_not_be_read_is_said_by_every_command_and_not_written_over(
    empty: World,  # noqa: F811
    file: Path,  # noqa: F811
    shell: Shell,
) -> None:
    place = unreadable(file)
    text = place.read_text()
    why = f"What is remembered of llm on eks can't be read: {place}: Invalid JSON"
    for command in (
        ("up", file, "--yes"),
        ("up", file, "--yes", "--offline"),
        ("check", file),
        ("down", "--yes"),
        ("status",),
        ("logs",),
        ("chat", "Hello"),
    ):
        done = shell(*command)
        assert done.code == 1, (command, done)
        assert why in done.failure and "diptych down FILE" in done.failure, (command, done)
    assert place.read_text() == text and empty.aws.eks.clusters == {}

    other = load(file).model_copy(update={"name": "other"})
    remembered.remember(Remembered(file=None, document=other, account="123456789012", started_at=time.time()))
    both = shell("status")
    assert both.code == 1 and "other: not ready, on eks" in both.out, both.err
    assert "llm: not ready, on eks" in both.out and "can't be read" in both.out


def test_with_its_document_a_service_goes_down_whose_memory_can_not_be_read(
    here: World,  # noqa: F811
    file: Path,  # noqa: F811
    shell: Shell,
) -> None:
    assert shell("up", file, "--yes", "--offline", "--step", "cluster").code == 0
    remembered.file_of("llm", "eks").write_text("{}")
    assert isinstance(remembered.known()[0], UnreadableError)
    down = shell("down", file, "--yes")
    assert down.code == 0, down.err
    assert "file: Field required. The document is taken instead." in " ".join(down.err.split())
    assert here.state() == NOTHING and remembered.known() == []


@pytest.mark.parametrize("command", ["up", "down"])
def test_what_another_command_changed_while_this_one_asked_stays_as_it_is(
    empty: World,  # noqa: F811
    file: Path,  # noqa: F811
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    before = known_from(file, account="123456789012")
    after = before.model_copy(update={"zone": "us-east-2b"})
    remembered.remember(before)

    def agreed() -> bool:
        remembered.remember(after)
        return True

    monkeypatch.setattr("diptych.cli.cluster_plan.agreed", agreed)
    monkeypatch.setattr("diptych.cli.cluster_down.agreed", agreed)
    done = shell(command, file)
    assert done.code == 1, done.err
    assert "Another diptych command has changed llm on eks meanwhile." in done.failure
    assert "Run the same command again" in done.failure
    assert remembered.known() == [after] and empty.aws.eks.clusters == {}


def test_a_kubeconfig_that_could_not_be_added_to_is_said_before_anything_is_made(
    empty: World,  # noqa: F811
    file: Path,  # noqa: F811
    shell: Shell,
    mine: Path,
) -> None:
    mine.write_text("- a\n")
    done = shell("up", file, "--yes", "--offline", "--kubeconfig")
    assert done.code == 1 and f"{mine} is no kubeconfig." in done.failure
    assert empty.aws.eks.clusters == {} and remembered.known() == []


def test_a_context_of_the_clusters_name_that_is_somebody_elses_stops_before_anything_is_made(
    empty: World,  # noqa: F811
    file: Path,  # noqa: F811
    shell: Shell,
    mine: Path,
) -> None:
    text = yaml.safe_dump({"contexts": [{"name": "llm.us-east-2", "context": {"user": "me"}}]})
    mine.write_text(text)
    done = shell("up", file, "--yes", "--offline", "--kubeconfig")
    assert done.code == 1, done.err
    assert f"{mine} has a context llm.us-east-2 already, and Diptych did not make it." in done.failure
    assert mine.read_text() == text and empty.aws.eks.clusters == {} and remembered.known() == []


def test_one_context_is_not_for_two_accounts(
    empty: World,  # noqa: F811
    file: Path,  # noqa: F811
    shell: Shell,
    mine: Path,
) -> None:
    theirs = known_from(file, account="999999999999", kubeconfigs=[str(mine)])
    eks = theirs.document.eks.model_copy(update={"cluster": "llm"})
    other = theirs.document.model_copy(update={"name": "other", "eks": eks})
    remembered.remember(theirs.model_copy(update={"document": other}))
    done = shell("up", file, "--yes", "--offline", "--kubeconfig")
    assert done.code == 1 and empty.aws.eks.clusters == {}
    assert "has the context llm.us-east-2 for other already, in account 999999999999" in done.failure

    plugin = {"exec": {"args": ["-m", "diptych.eks.token"]}}
    mine.write_text(yaml.safe_dump({"users": [{"name": "llm.us-east-2", "user": plugin}]}))
    remembered.remember(known_from(file, account="123456789012", kubeconfigs=[str(mine)]))
    down = shell("down", "--name", "llm", "--yes")  # the other's cluster is not this one
    assert down.code == 0 and "was removed from" in down.err, down.err
    remembered.forget("other", "eks")


def test_a_user_of_an_odd_shape_in_ones_kubeconfig_does_not_end_a_down(
    empty: World,  # noqa: F811
    file: Path,  # noqa: F811
    shell: Shell,
    tmp_path: Path,
) -> None:
    for text in ("users: [{name: llm.us-east-2, user: text}]\n", "a: [\n"):
        (tmp_path / "config").write_text(text)
        remembered.remember(known_from(file, account="123456789012", kubeconfigs=[str(tmp_path / "config")]))
        down = shell("down", "--name", "llm", "--yes")
        assert down.code == 0, down.err
        assert remembered.known() == [] and (tmp_path / "config").read_text() == text
    assert "The context llm.us-east-2 stays in" in down.err


def test_a_context_that_two_documents_added_goes_with_the_second(
    empty: World,  # noqa: F811
    file: Path,  # noqa: F811
    shell: Shell,
    tmp_path: Path,
) -> None:
    mine = tmp_path / "config"
    name, plugin = "llm.us-east-2", ["-m", "diptych.eks.token"]
    mine.write_text(yaml.safe_dump({"users": [{"name": name, "user": {"exec": {"args": plugin}}}]}))
    first = known_from(file, account="123456789012", kubeconfigs=[str(mine)])
    eks = first.document.eks.model_copy(update={"cluster": "llm"})
    second = first.document.model_copy(update={"name": "second", "eks": eks})
    for each in (first, first.model_copy(update={"document": second})):
        remembered.remember(each)
    assert shell("down", "--name", "llm", "--yes").code == 0
    assert [each["name"] for each in yaml.safe_load(mine.read_text())["users"]] == [name]
    last = shell("down", "--name", "second", "--yes")
    assert last.code == 0 and f"The context {name} was removed from {mine}." in last.err
    assert yaml.safe_load(mine.read_text())["users"] == [] and remembered.known() == []
    assert empty.aws.eks.clusters == {}
