"""Both steps, up and down, ended at every point and run again: the end is the same, and nothing is left over."""

import os
import re
import signal
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from diptych.errors import ClusterError
from diptych.kube.down import take_down
from diptych.kube.job import Job
from diptych.kube.release import VERSION_NOTE
from diptych.kube.requests import Requests
from diptych.kube.up import bring_up
from diptych.progress import Event
from fakes.kubernetes import Behaviour, crds, install_operator
from kube.jobs import Told, told
from kube.world import NAMESPACE, World

OPERATOR = "kuberay-operator"
MOST_POINTS = 80


class Interrupter:
    """Raises KeyboardInterrupt at the n-th point: after each write that reached the cluster, and at each event.

    Args:
        step: from one point to the next that is tried.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        self.left, self.step = -1, step
        send, stage = Requests.send, Told.stage

        def sent(requests: Requests, method: str, path: str, **options: Any) -> Any:
            answer = send(requests, method, path, **options)
            if method != "GET":
                self.point()
            return answer

        def staged(view: Told, event: Event) -> None:
            stage(view, event)
            self.point()

        monkeypatch.setattr(Requests, "send", sent)
        monkeypatch.setattr(Told, "stage", staged)

    def point(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def at_every_point(self, work: Callable[[], None]) -> int:
        """Run `work` again and again, each time ended some points later, until it comes to its end; at which it did."""
        for number in count(1, self.step):
            self.left = number
            try:
                work()
            except KeyboardInterrupt:
                assert number < MOST_POINTS
            else:
                self.left = -1
                return number
        raise AssertionError


@pytest.fixture(
    params=[pytest.param(1, marks=pytest.mark.long, id="each point"), pytest.param(5, id="some points")]
)
def interrupter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Interrupter:
    return Interrupter(monkeypatch, request.param)


def up(here: World, job: Job, *steps: str) -> None:
    with here.cluster(job) as cluster:
        bring_up(job, cluster, steps or ("operator", "service"))


def down(here: World, job: Job, *steps: str) -> None:
    with here.cluster(job) as cluster:
        take_down(job, cluster, steps or ("operator", "service"))


def with_crds(here: World) -> None:
    """KubeRay's CRDs as Diptych puts them there: a megabyte each, which helm need not print in every test."""
    for definition in crds():
        definition["metadata"].setdefault("annotations", {})[VERSION_NOTE] = "1.7.0"
        definition["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "diptych"}
        here.fake.put(definition)


def state(here: World) -> list[str]:
    """All that is in the cluster but nodes, events and records of helm, without random parts of names."""
    random = re.compile(r"(?<=-)[a-z0-9]{5}(?=-|$)|-[0-9a-f]{10}-[a-z0-9]{5}$|-[0-9a-f]{10}$")
    found = []
    for kind, namespace, name in here.fake.objects:
        if kind not in ("Node", "Event", "Lease") and not name.startswith("sh.helm.release"):
            found.append(f"{kind} {namespace}/{random.sub('*', name)}")
    return sorted(found)


def test_both_steps_are_told_by_their_names_and_in_order(bare: World) -> None:
    with_crds(bare)
    before = state(bare)
    job = bare.job()
    up(bare, job)
    assert [(event.kind, event.stage) for event in told(job).events if event.kind != "detail"] == [
        ("start", "operator"),
        ("done", "operator"),
        ("start", "service"),
        ("done", "service"),
    ]
    assert all(event.at > 0 for event in told(job).events)
    told(job).events.clear()
    down(bare, job)
    assert [(event.kind, event.stage) for event in told(job).events if event.kind != "detail"] == [
        ("start", "service"),
        ("done", "service"),
        ("start", "operator"),
        ("done", "operator"),
    ]
    assert state(bare) == [each for each in before if "CustomResourceDefinition" not in each]


def test_a_step_that_fails_is_told_and_the_same_command_goes_on(bare: World) -> None:
    with_crds(bare)
    bare.kuberay.held.add("load")
    job = bare.job()
    failing = Job(job.document, job.facts, job.view, job.folder, timeout_s=3.0)
    with pytest.raises(ClusterError):
        up(bare, failing)
    last = told(job).events[-1]
    assert (last.kind, last.stage) == ("failed", "service") and last.text and last.hint
    bare.kuberay.held.clear()
    up(bare, job)
    assert told(job).events[-1].kind == "done"


def test_a_dry_run_of_the_way_down_tells_all_of_it_and_ends_nothing(bare: World) -> None:
    with_crds(bare)
    job = bare.job()
    up(bare, job)
    before = state(bare)
    dry = bare.job(dry_run=True)
    down(bare, dry)
    said = told(dry).said
    assert said[0] == f"would delete RayService {NAMESPACE}/ray-llm"
    assert any(text.startswith("would run helm uninstall") for text in said)
    gone = [f"would delete Namespace {name}" for name in (NAMESPACE, OPERATOR)]
    assert {*gone, "would delete CustomResourceDefinition rayservices.ray.io"} <= set(said)
    assert state(bare) == before


def test_an_interrupted_service_comes_up_all_the_same(bare: World, interrupter: Interrupter) -> None:
    install_operator(bare.fake, "kuberay-system")
    job = bare.job()
    up(bare, job, "service")
    wanted = state(bare)
    down(bare, job, "service")
    assert interrupter.at_every_point(lambda: up(bare, job, "service")) > 15
    assert state(bare) == wanted


def test_an_interrupted_service_goes_all_the_same(bare: World, interrupter: Interrupter) -> None:
    install_operator(bare.fake, "kuberay-system")
    job = bare.job()
    up(bare, job, "service")
    assert interrupter.at_every_point(lambda: down(bare, job, "service")) > 4
    assert bare.left() == [] and bare.fake.get("Namespace", NAMESPACE) is None


def test_an_interrupted_operator_comes_and_goes_all_the_same(bare: World, interrupter: Interrupter) -> None:
    job = bare.job()
    before = state(bare)
    interrupter.at_every_point(lambda: up(bare, job, "operator"))
    assert f"Deployment {OPERATOR}/{OPERATOR}" in state(bare)
    interrupter.at_every_point(lambda: down(bare, job, "operator"))
    assert state(bare) == before


def test_a_restart_that_was_interrupted_comes_to_its_end(bare: World, interrupter: Interrupter) -> None:
    install_operator(bare.fake, "kuberay-system")
    up(bare, bare.job(), "service")
    job = bare.job(decode={"resources": {"cpus": 4}})
    interrupter.at_every_point(lambda: up(bare, job, "service"))
    (pod,) = [each for each in bare.fake.all("Pod", NAMESPACE) if "decode-worker" in each["metadata"]["name"]]
    assert pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "4"


def test_an_interrupted_check_of_access_leaves_no_pod(
    bare: World, interrupter: Interrupter, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_operator(bare.fake, "kuberay-system")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    bare.kuberay.containers["ray-llm-access/*"] = Behaviour(["stage: x can be read"], exit_code=0)
    model = {"source": "meta-llama/Llama-3.1-8B-Instruct", "name": "qwen3.5-9b", "token_env": "HF_TOKEN"}
    job = bare.job(model=model)
    interrupter.at_every_point(lambda: up(bare, job, "service"))
    assert f"Pod {NAMESPACE}/ray-llm-access" not in state(bare)
    down(bare, job, "service")
    assert bare.left() == []


@pytest.mark.parametrize("delay_s", [0.1, 0.7, 1.5, 3.0])
def test_ctrl_c_at_any_moment_leaves_nothing_that_a_down_would_not_take(bare: World, delay_s: float) -> None:
    with_crds(bare)
    job = bare.job()
    timer = threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        up(bare, job)
        timer.join()
    except KeyboardInterrupt:
        pass
    timer.cancel()
    down(bare, job)
    assert state(bare) == [
        each for each in state(bare) if f"{NAMESPACE}/" not in each and OPERATOR not in each
    ]
