"""`diptych bench compare` on EKS: both sides on the nodes of both phases, with what that costs."""

import time
from pathlib import Path

import pytest

import diptych.bench.measure
from cli.commands import Shell
from cli.test_commands_on_eks import surroundings, written
from diptych.bench.client import Sent
from diptych.bench.results import Sample
from diptych.bench.workload import Workload
from diptych.cli import bench
from diptych.kube import remembered
from diptych.kube.objects import node_of
from eks.world import World
from fakes import probed
from fakes.measured_endpoint import MeasuredEndpoint
from fakes.provable_endpoint import probing

NAMESPACE = "inference"
LOAD = ("--rate", "2", "--requests", "60", "--input", "64", "--output", "8")


def standing(here: World) -> dict[str, list[str]]:
    """The node groups on which the pods of each phase are."""
    groups = {
        node["metadata"]["name"]: node["metadata"]["labels"]["diptych.dev/phase"]
        for node in here.kubernetes.all("Node")
    }
    found: dict[str, list[str]] = {}
    for pod in here.kubernetes.all("Pod", NAMESPACE):
        phase = pod["metadata"]["labels"].get("diptych.dev/phase")
        if phase is not None:
            found[phase] = sorted([*found.get(phase, []), groups[node_of(pod)]])
    return found


@pytest.mark.long
def test_both_sides_stand_on_the_nodes_that_are_there(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    stood: list[dict[str, list[str]]] = []
    with surroundings(tmp_path) as here, MeasuredEndpoint() as endpoint:

        def send(_: object, workload: Workload, *__: object) -> Sent:
            if workload.load.rate is not None:
                stood.append(standing(here))
            samples = tuple(
                Sample(each / 2, 64, 3, 100.0, (7.0, 7.0)) for each in range(workload.load.requests)
            )
            return Sent(samples, time.time(), 30.0)

        monkeypatch.setattr(bench, "require_client", lambda: None)
        monkeypatch.setattr(diptych.bench.measure, "send", send)
        endpoint.behaviour.probe = probing(probed.proven_on_g6)
        here.kubernetes.backends[8000] = ("127.0.0.1", int(endpoint.url.rpartition(":")[2]))
        file = written(tmp_path)
        early = shell("bench", *LOAD, "compare", file, "--yes")
        assert early.code == 1 and "There is no cluster llm yet." in early.failure
        up = shell("up", file, "--yes")
        assert up.code == 0, up.err
        before, account = remembered.recall("llm", "eks"), here.state()

        done = shell("bench", *LOAD, "compare", file, answer="yes")
        assert done.code == 0, done.err
        own = {"prefill": ["prefill"], "decode": ["decode"]}
        aggregated = {"aggregated": ["decode", "prefill"]}
        assert stood == [own, aggregated, aggregated, own] and standing(here) == own
        assert (remembered.recall("llm", "eks"), here.state()) == (before, account)
        plan = " ".join(done.err.split())
        assert "llm in the cluster llm, us-east-2 in account 123456789012" in plan
        assert "The cluster costs $4.62 per hour meanwhile, as it does now: AWS's price list" in plan
        assert "A million output tokens cost" in done.out
        assert shell("down", "--yes").code == 0
