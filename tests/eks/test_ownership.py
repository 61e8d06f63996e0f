"""Whose something is: by tags alone, and another account or region stops before anything is changed."""

from pathlib import Path

import pytest

from diptych.eks import ownership
from diptych.eks.ownership import Owner
from diptych.errors import AccountError
from eks.world import OWN, World, place, world


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    with world(tmp_path, monkeypatch) as made:
        yield made


def test_the_tags_say_account_region_cluster_and_the_documents_that_use_it(here: World) -> None:
    assert ownership.tags_of(here.job(eks={"tags": {"team": "search"}})) == {"team": "search", **OWN}
    assert Owner.of(OWN) == Owner("123456789012", "us-east-2", "llm", frozenset({"llm"}))


def test_what_has_no_tag_of_ours_is_not_ours(here: World) -> None:
    assert Owner.of({"alpha.eksctl.io/cluster-name": "llm", "team": "search"}) is None
    assert not ownership.is_ours(here.job(), {"diptych.dev/cluster": "other"})


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (
            {"account": "999999999999"},
            "another account: this is 123456789012, and it was brought up in 999999999999",
        ),
        ({"region": "eu-west-1"}, "another region: this is us-east-2, and it was brought up in eu-west-1"),
        ({"cluster": "shared"}, "another cluster: this is llm, and it was brought up in shared"),
    ],
)
def test_another_place_than_is_remembered_stops(here: World, before: dict[str, str], words: str) -> None:
    with pytest.raises(AccountError, match=words) as stopped:
        ownership.require_same_place(here.job(remembered=place(**before)))
    assert "Nothing was changed" in stopped.value.message
    assert stopped.value.hint


@pytest.mark.parametrize("tag", ["account", "region"])
def test_another_place_than_the_tags_say_stops(here: World, tag: str) -> None:
    owner = Owner.of({**OWN, f"diptych.dev/{tag}": "elsewhere"})
    with pytest.raises(AccountError, match=f"another {tag}: .* the tags of llm say it was made in elsewhere"):
        ownership.require_same_place(here.job(remembered=place()), owner)


def test_the_same_place_goes_on(here: World) -> None:
    ownership.require_same_place(here.job(remembered=place()), Owner.of(OWN))
