"""All four steps on EKS: up from an empty account to a proven service, and down to an empty account."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from diptych.eks.down import take_down
from diptych.eks.job import STEPS, EksJob
from diptych.eks.up import bring_up
from diptych.errors import ClusterError
from diptych.render.archive import serving_archive
from eks.test_eks_down import NOTHING
from eks.world import Heard, World, world
from fakes import probed
from fakes.kubernetes import KubeRay
from fakes.provable_endpoint import ADMIN_KEY, KEY, ProvableEndpoint, probing
from kube.world import look_often


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    look_often(monkeypatch)
    with world(tmp_path, monkeypatch) as made, ProvableEndpoint(probing(probed.proven_on_g6)) as endpoint:
        made.kubernetes.backends[8000] = ("127.0.0.1", int(endpoint.url.rpartition(":")[2]))
        with KubeRay(made.kubernetes, time_scale=0.002):
            yield made


def job(here: World, view: Heard | None = None) -> EksJob:
    keys = here.folder / "keys"
    keys.write_text(f"{KEY}\n{ADMIN_KEY} admin\n")
    keys.chmod(0o600)
    made = here.job(view=view, access={"api_key_file": str(keys)})
    return replace(made, facts=replace(made.facts, serving_archive=serving_archive()))


def test_up_and_down_with_all_steps(here: World) -> None:
    bring_up(job(here), STEPS)
    assert [each.stage for each in here.view.events if each.kind == "done"] == list(STEPS)
    with pytest.raises(ClusterError, match="still up on these nodes"):
        take_down(job(here), ["nodes"])
    here.view.events.clear()
    take_down(job(here), STEPS)
    done = [each.stage for each in here.view.events if each.kind == "done"]
    assert done == ["service", "operator", "nodes", "cluster", "leftovers"]
    assert here.state() == NOTHING


@pytest.mark.long
@pytest.mark.report("T3")
def test_the_service_goes_before_its_operator_and_that_before_the_nodes_wherever_down_is_interrupted(
    here: World,
) -> None:
    bring_up(job(here), STEPS)
    for moment in (
        ("start", "service", ""),
        ("done", "service", ""),
        ("done", "operator", ""),
        ("done", "nodes", ""),
    ):
        with pytest.raises(KeyboardInterrupt):
            take_down(job(here, Heard(moment)), STEPS)
    take_down(job(here), STEPS)
    assert here.state() == NOTHING


@pytest.mark.long
@pytest.mark.report("B11")
def test_the_pods_go_where_capacity_led_the_nodes(here: World) -> None:
    here.aws.machines.left["g6.8xlarge", "us-east-2a"] = 0
    bring_up(job(here), STEPS)
    workers = [pod for pod in here.kubernetes.all("Pod") if "-worker-" in pod["metadata"]["name"]]
    nodes = {node["metadata"]["name"]: node["metadata"]["labels"] for node in here.kubernetes.all("Node")}
    zones = {nodes[pod["spec"]["nodeName"]]["topology.kubernetes.io/zone"] for pod in workers}
    assert zones == {"us-east-2b"}
