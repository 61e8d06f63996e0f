"""What is up on EKS, step by step, and what it has cost so far."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diptych.eks import cluster, nodes, status
from diptych.eks.prices import price
from diptych.eks.up import bring_up
from diptych.errors import AccountError
from eks.world import World, world


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world(tmp_path, monkeypatch) as made:
        yield made


def test_status_has_each_step_with_its_state_and_the_cost_by_the_hour(here: World) -> None:
    nothing = status.look(here.job(), None)
    assert [(step.step, step.state) for step in nothing.steps] == [("cluster", "absent"), ("nodes", "absent")]
    assert nothing.cost.per_hour == 0
    bring_up(here.job(), ("cluster", "nodes"))
    with here.reach() as there:
        found = status.look(here.job(), there)
    assert [(step.step, step.state) for step in found.steps] == [("cluster", "ready"), ("nodes", "ready")]
    told = found.to_json()
    assert told["steps"]["cluster"]["documents"] == ["llm"]
    assert told["steps"]["nodes"]["llm-decode"]["desired"] == 1
    planned = price(here.job().document, here.job().facts, here.session)
    assert found.cost.per_hour == pytest.approx(
        planned.usd_per_hour
    )  # what `up` shows before it makes anything
    assert set(found.cost.sources) == set(planned.sources) and found.cost.is_whole
    assert 0 < (found.cost.so_far or 0) < 0.1  # made a moment ago


def test_a_cost_that_cannot_be_told_leaves_the_steps_as_they_are(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AccountError("AWS answers no more (ThrottlingException).")

    monkeypatch.setattr("diptych.eks.inventory.take", refuse)
    found = status.look(here.job(), None)
    assert [(step.step, step.state) for step in found.steps] == [("cluster", "absent"), ("nodes", "absent")]
    assert (found.cost.per_hour, found.cost.unasked) == (
        None,
        ("AWS answers no more (ThrottlingException).",),
    )


def test_a_group_that_failed_is_failed_with_what_eks_says_of_it(here: World) -> None:
    bring_up(here.job(), ("cluster", "nodes"))
    about = here.aws.eks.clusters["llm"].nodegroups["llm-decode"]
    about["status"] = "CREATE_FAILED"
    about["health"]["issues"] = [{"code": "NodeCreationFailure", "message": "Instances failed to join"}]
    with here.reach() as there:
        found = nodes.look(here.job(), there)
    assert (found.state, found.text) == (
        "failed",
        "llm-decode is CREATE_FAILED: NodeCreationFailure: Instances failed to join",
    )


def test_a_cluster_whose_stack_has_just_begun_is_coming(here: World) -> None:
    here.aws.clock.scale = 0.01
    here.aws.recipes.start_cluster(nodes.config_of(here.job(), None))
    assert cluster.look(here.job()).state == "coming"
