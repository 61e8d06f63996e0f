"""`up` and `down` whose process is killed outright, eksctl left running: another run comes to the same end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from diptych.eks import job, status
from diptych.eks.down import take_down
from diptych.eks.up import bring_up
from diptych.kube import service
from eks import test_eks_whole
from eks.alone import PENDING_S
from eks.test_eks_down import NOTHING
from eks.world import World, world
from fakes import probed
from fakes.kubernetes import KubeRay
from fakes.provable_endpoint import ProvableEndpoint, probing
from kube.world import look_often

STEPS = ("cluster", "nodes")
ALONE = Path(__file__).with_name("alone.py")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """With all that the steps inside the cluster need."""
    look_often(monkeypatch)
    monkeypatch.setattr("diptych.kube.release._PENDING_S", PENDING_S)
    with ExitStack() as stack:
        made = stack.enter_context(world(tmp_path, monkeypatch))
        test_eks_whole.job(made)  # writes the keys
        endpoint = stack.enter_context(ProvableEndpoint(probing(probed.proven_on_g6)))
        made.kubernetes.backends[8000] = ("127.0.0.1", int(endpoint.url.rpartition(":")[2]))
        stack.enter_context(KubeRay(made.kubernetes, time_scale=0.02))
        yield made


def kill(here: World, what: str, moment: str, steps: tuple[str, ...] = STEPS) -> None:
    """Run `up` or `down` in a process, and kill it once it tells of the moment."""
    here.aws.clock.scale = 0.004
    command = [sys.executable, str(ALONE), what, str(here.folder), *steps]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as running:
        assert running.stdout
        told = []
        for line in running.stdout:
            told.append(line)
            if line.startswith(moment):
                running.send_signal(signal.SIGKILL)
                break
        assert running.wait() == -signal.SIGKILL, f"it never told of {moment!r}: {''.join(told)}"
    here.aws.clock.scale = 0.0005


def with_either_plugins(state: dict[str, Any]) -> dict[str, Any]:
    """The state, with device plugins counted: where eksctl was killed before it installed its own, ours are there."""
    return {**state, "daemon sets": len(state["daemon sets"]), "releases": None}


def test_an_up_that_was_killed_within_a_step_is_gone_on_with_and_nothing_of_it_is_left(here: World) -> None:
    kill(here, "up", "detail cluster control plane", ("cluster",))
    bring_up(here.job(), ("cluster",))
    assert here.state()["nodes"] == ["system"]
    take_down(here.job(), ("cluster",))
    assert here.state() == NOTHING


@pytest.mark.long
@pytest.mark.parametrize(
    "moment",
    [
        "start cluster",
        "detail cluster control plane",
        "detail cluster node group",
        "done cluster",
        "start nodes",
        "detail nodes node group",
        "done nodes",
    ],
)
def test_after_up_was_killed_another_up_comes_to_the_same_end(here: World, moment: str) -> None:
    kill(here, "up", moment)
    bring_up(here.job(), STEPS)
    killed = with_either_plugins(here.state())
    take_down(here.job(), STEPS)
    bring_up(here.job(), STEPS)
    assert killed == with_either_plugins(here.state())  # as if nobody had killed it


@pytest.mark.long
@pytest.mark.parametrize(
    "moment",
    [
        "start nodes",
        "detail nodes removing the stack",
        "detail nodes The stack",
        "done nodes",
        "start cluster",
        "detail cluster control plane",
        "done cluster",
        "start leftovers",
    ],
)
def test_after_down_was_killed_another_down_leaves_nothing(here: World, moment: str) -> None:
    bring_up(here.job(), STEPS)
    kill(here, "down", moment)
    take_down(here.job(), STEPS)
    assert here.state() == NOTHING


# The end of a step is the beginning of the next: killed there, nothing lies between.
WITHIN_UP = (
    "done nodes",
    "detail operator helm installs",
    "done operator",
    "detail service The service is made",
    "detail service proving a KV transfer",
    "done service",
)
WITHIN_DOWN = (
    "start service",
    "done service",
    "detail operator",
    "done operator",
    "detail nodes",
    "done nodes",
    "detail cluster",
    "done cluster",
)


@pytest.mark.long
def test_a_whole_life_killed_at_each_boundary_and_within_each_step_ends_as_if_nobody_had(
    whole: World,
) -> None:
    for moment in WITHIN_UP:
        kill(whole, "up", moment, job.STEPS)
    bring_up(test_eks_whole.job(whole), job.STEPS)
    killed = _end(whole)
    for moment in WITHIN_DOWN:
        kill(whole, "down", moment, job.STEPS)
    take_down(test_eks_whole.job(whole), job.STEPS)
    assert whole.state() == NOTHING
    bring_up(test_eks_whole.job(whole), job.STEPS)
    assert _end(whole) == killed


def _end(whole: World) -> dict[str, object]:
    """What there is once all is up, inside the cluster too."""
    mine = test_eks_whole.job(whole)
    with whole.reach() as there:
        seen = status.look(mine, there)
        assert [step.state for step in (*seen.steps, service.look(mine, there))] == ["ready"] * 3
    kinds = ("RayService", "Service", "Deployment", "ConfigMap", "Secret", "NetworkPolicy", "Namespace")
    inside = {
        kind: sorted({_stable(each) for each in whole.kubernetes.all(kind) if "owner" not in _labels(each)})
        for kind in kinds
    }
    return {**whole.state(), **inside}


def _labels(thing: dict[str, object]) -> dict[str, str]:
    return dict(thing["metadata"].get("labels") or {})  # type: ignore[attr-defined]


def _stable(thing: dict[str, object]) -> str:
    """The name, without what is generated of it."""
    about = thing["metadata"]
    assert isinstance(about, dict)
    return str(about["name"]) if not about.get("ownerReferences") else "owned"
