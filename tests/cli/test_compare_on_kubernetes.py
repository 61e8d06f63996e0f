"""`diptych bench compare` on a cluster: each side in one run, and the service what it was, whatever came between.

Everything is as in a run by a user but the sending of the load.
"""

import json
import os
import pty
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import diptych.bench.measure
from cli import on_kubernetes
from cli.commands import Done, Shell, ctrl_c_at
from diptych.bench.client import Sent
from diptych.bench.load import Load
from diptych.bench.results import Sample
from diptych.bench.workload import Workload
from diptych.cli import bench
from diptych.cli.bench_turns import _ended_as_by_ctrl_c
from diptych.endpoint import Endpoint
from diptych.errors import EndpointError
from diptych.kube import remembered
from fakes import probed
from fakes.kubernetes import Behaviour, install_operator
from fakes.measured_endpoint import MeasuredEndpoint
from fakes.provable_endpoint import ADMIN_KEY, KEY, probing
from fakes.provable_endpoint import Behaviour as Endpoints
from kube.test_up_and_down import with_crds
from kube.world import NAMESPACE, World, node

LOAD = ("--rate", "2", "--requests", "60", "--input", "64", "--output", "8")


class OfTheCluster(MeasuredEndpoint):
    """What answers is what the cluster's RayService says that it is."""

    def __init__(self, here: World) -> None:
        self._here = here
        super().__init__()

    @property
    def behaviour(self) -> Endpoints:
        self._behaviour.aggregated = "aggregated" in groups(self._here)
        return self._behaviour

    @behaviour.setter
    def behaviour(self, value: Endpoints) -> None:
        self._behaviour = value


class Loads:
    """What was sent, in order, in place of the client.

    Attributes:
        sent: which worker groups the service had, and the blocks of the first prompt.
        then: done as often as a load, warm-ups left out, has been sent; takes its number, from 1.
    """

    def __init__(self, here: World) -> None:
        self._here = here
        self.sent: list[tuple[tuple[str, ...], int]] = []
        self.then: Any = lambda number: None

    def send(self, endpoint: Endpoint, workload: Workload, *_: object) -> Sent:
        assert endpoint.read_key() == ADMIN_KEY
        load: Load = workload.load
        is_split = "prefill" in groups(self._here)
        if load.rate is not None:
            first = getattr(workload, "requests", ())
            self.sent.append((groups(self._here), first[0].blocks[0] if first else 0))
            self.then(len(self.sent))
        gap_ms = 7.0 if is_split else 11.0
        fake = self._here.endpoint
        assert isinstance(fake, MeasuredEndpoint)
        fake.answering.path = "remote" if is_split else "aggregated"
        for _ in range(load.requests):
            fake.end(200, 64, 8, 50.0)
        samples = tuple(Sample(each / 2, 64, 3, 100.0, (gap_ms, gap_ms)) for each in range(load.requests))
        return Sent(samples, time.time(), 30.0)


def groups(here: World) -> tuple[str, ...]:
    """The worker groups of the service that is there."""
    service = here.fake.get("RayService", "llm", NAMESPACE)
    specs = service["spec"]["rayClusterConfig"]["workerGroupSpecs"] if service else []
    return tuple(each["groupName"] for each in specs)


SPLIT, AGGREGATED = ("prefill", "decode"), ("aggregated",)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A cluster without an operator, to which this process's kubeconfig leads."""
    monkeypatch.setattr(bench, "require_client", lambda: None)
    with on_kubernetes.cluster(tmp_path, monkeypatch) as made, OfTheCluster(made) as endpoint:
        endpoint.behaviour.probe = probing(probed.proven_on_g6)
        made.endpoint = endpoint
        made.fake.backends[8000] = ("127.0.0.1", int(endpoint.url.rpartition(":")[2]))
        yield made


@pytest.fixture
def here(bare: World) -> World:
    """The same with an operator."""
    install_operator(bare.fake, "kuberay-system")
    return bare


@pytest.fixture
def loads(bare: World, monkeypatch: pytest.MonkeyPatch) -> Loads:
    found = Loads(bare)
    monkeypatch.setattr(diptych.bench.measure, "send", found.send)
    return found


@pytest.fixture
def file(bare: World) -> Path:
    """The document of a service `llm`."""
    return on_kubernetes.document(bare)


@pytest.fixture
def up(here: World, file: Path, shell: Shell) -> Path:
    """The document of a service that is up."""
    return on_kubernetes.brought_up(file, shell)


def compared(shell: Shell, file: Path, *options: str, answer: str | None = None) -> Done:
    """A comparison without a question, unless there is an answer."""
    yes = ["--yes"] if answer is None else []
    return shell("bench", *LOAD, "compare", file, *yes, *options, answer=answer)


def started(here: World) -> int:
    """How often a RayService was made."""
    return len([name for name in created(here) if name])


def created(here: World) -> list[str]:
    return [
        each.path
        for each in here.fake.requests
        if each.method == "PATCH"
        and "/rayservices/" in each.path
        and each.status == 201
        and "dryRun" not in each.query
    ]


def test_both_sides_in_one_run_and_its_own_document_at_the_end(
    here: World, up: Path, loads: Loads, shell: Shell
) -> None:
    before, made = remembered.recall("llm", "kubernetes"), started(here)
    done = compared(shell, up, answer="yes")
    assert done.code == 0, done.err
    assert [which for which, _ in loads.sent] == [SPLIT, AGGREGATED, AGGREGATED, SPLIT]
    assert groups(here) == SPLIT and remembered.recall("llm", "kubernetes") == before
    assert started(here) - made == 2  # a side that is up already stays
    assert done.out.splitlines()[-1].startswith("At 2 requests/s of 64/8 the split pays. "), done.out
    assert "not in one run" not in done.out and "each side was up once" not in done.out
    assert shell("status").code == 0

    plan = " ".join(done.err.split())
    assert "llm in namespace inference of the cluster of context" in plan
    assert "split, then aggregated, then aggregated, then split." in plan
    assert "it is changed 2 times: all its pods end and start anew." in plan
    assert "about as long as its last start" in plan and "the loads take" in plan
    assert "it is not available to its users" in plan
    assert (
        f"put back to its document. Should this be killed, do that yourself: diptych up {up} --step service"
        in plan
    )
    assert "Round 2 of 2: aggregated" in done.err and "service done in" in done.err
    assert KEY not in done.out + done.err and ADMIN_KEY not in done.out + done.err


def test_both_sides_of_a_round_get_the_same_tokens_and_no_other_round_does(
    up: Path, loads: Loads, shell: Shell
) -> None:
    assert compared(shell, up).code == 0
    first, second, third, fourth = (tokens for _, tokens in loads.sent)
    assert first == second != third == fourth


def test_results_are_those_of_both_sides_with_the_nodes_that_served_them(
    up: Path, loads: Loads, shell: Shell
) -> None:
    done = shell("bench", *LOAD, "--json", "compare", up, "--yes", "--rounds", "1")
    (told,) = json.loads(done.out)["comparisons"]
    sides = [told["split"][0], told["aggregated"][0]]
    assert [each["topology"] for each in sides] == ["split", "aggregated"]
    assert {each["devices"] for each in sides} == {"1 × g6.8xlarge and 1 × g6.8xlarge"}
    assert [each["usd_per_hour"] for each in sides] == pytest.approx([2 * 2.0144] * 2)
    assert any("each side was up once" in each for each in told["doubts"])


def test_the_last_side_is_put_back(here: World, up: Path, loads: Loads, shell: Shell) -> None:
    done = compared(shell, up, "--rounds", "1")
    assert done.code == 0, done.err
    assert [which for which, _ in loads.sent] == [SPLIT, AGGREGATED] and groups(here) == SPLIT
    assert (
        "Putting llm back to what it was: split" in done.err and "llm is what it was again after" in done.err
    )


def test_ctrl_c_in_the_middle_of_the_second_side_puts_it_back(
    here: World, up: Path, loads: Loads, shell: Shell
) -> None:
    before = remembered.recall("llm", "kubernetes")
    loads.then = lambda number: os.kill(os.getpid(), signal.SIGINT) if number == 2 else None
    done = compared(shell, up)
    assert done.code == 130
    assert [which for which, _ in loads.sent] == [SPLIT, AGGREGATED]
    assert groups(here) == SPLIT and shell("status").code == 0
    assert "llm is what it was again" in done.err
    assert remembered.recall("llm", "kubernetes") == before


def test_a_second_ctrl_c_leaves_it_as_it_is_and_says_so(
    here: World, up: Path, loads: Loads, shell: Shell
) -> None:
    loads.then = lambda number: os.kill(os.getpid(), signal.SIGINT) if number == 2 else None
    with ctrl_c_at("detail", "service", "Restarts the whole service for changed pods of aggregated"):
        done = compared(shell, up)
    assert done.code == 130
    assert "Press Ctrl-C again to leave the service as it is now." in done.err
    told = " ".join(done.err.split())
    assert "llm was not put back. Up now: 1 aggregated (" in told or "Up now: 2 aggregated (" in told
    assert f"Then put it back: diptych up {up} --step service" in told
    assert groups(here) == AGGREGATED
    assert shell("up", up, "--step", "service", "--yes").code == 0 and groups(here) == SPLIT


def test_a_terminal_that_is_closed_ends_it_as_ctrl_c_does(tmp_path: Path) -> None:
    done = tmp_path / "done"
    program = f"""
import os, pathlib, signal, time
from diptych.cli.bench_turns import _ended_as_by_ctrl_c
with _ended_as_by_ctrl_c():
    try:
        print("waiting", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        os.kill(os.getpid(), signal.SIGHUP)  # as the shell does that was in this terminal
        print("putting it back", flush=True)  # where nobody reads any more
        pathlib.Path({str(done)!r}).write_text("back")
"""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", program])
    while b"waiting" not in os.read(terminal, 1000):
        pass
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0 and done.read_text() == "back"


def test_who_ends_it_may_say_so_twice() -> None:
    with _ended_as_by_ctrl_c():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("ended", [signal.SIGTERM, signal.SIGINT])
def test_whoever_ends_it_while_a_side_comes_up_has_it_put_back_too(
    here: World, up: Path, loads: Loads, shell: Shell, ended: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "SIGINT", ended)  # what `ctrl_c_at` sends
    with ctrl_c_at("detail", "service", "Restarts the whole service"):
        done = compared(shell, up)
    assert done.code == 130
    assert [which for which, _ in loads.sent] == [SPLIT]
    assert groups(here) == SPLIT and shell("status").code == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("staging", "said"),
    [
        (Behaviour(exit_code=1, lines=["stage: no space left on device"]), "no space left on device"),
        (Behaviour(seconds=1e6), "service: not there after "),
    ],
    ids=["fails", "hangs"],
)
def test_a_second_side_that_never_gets_ready_is_told_and_put_back(
    here: World, up: Path, loads: Loads, shell: Shell, staging: Behaviour, said: str
) -> None:
    here.kuberay.containers["*aggregated*/stage-model"] = staging
    done = compared(shell, up, "--timeout", "8s")
    assert done.code == 1
    ended, back, error = (done.err.find(each) for each in ("It ends here: ", "Putting llm back", "Error: "))
    assert 0 < ended < back < error
    assert said in done.failure
    assert [which for which, _ in loads.sent] == [SPLIT]
    assert groups(here) == SPLIT and shell("status").code == 0


@pytest.mark.long
def test_a_way_back_that_fails_says_what_is_up_and_the_command(
    here: World, up: Path, loads: Loads, shell: Shell
) -> None:
    def spoil(number: int) -> None:
        if number == 2:
            here.endpoint.behaviour.down = True
            raise EndpointError("No request was answered: Service Unavailable")

    loads.then = spoil
    done = compared(shell, up, "--timeout", "20s")
    assert done.code == 1
    assert done.failure.startswith("No request was answered") and done.failure.count("Error: ") == 1
    assert "llm was not put back. Up now: 1 prefill and 1 decode (" in done.failure
    assert f"put it back: diptych up {up} --step service" in done.failure
    here.endpoint.behaviour.down = False
    assert shell("up", up, "--step", "service", "--yes").code == 0


def test_a_split_whose_proof_fails_is_not_measured(here: World, up: Path, loads: Loads, shell: Shell) -> None:
    here.endpoint.behaviour.probe = probing(probed.recomputed)
    done = compared(shell, up)
    assert done.code == 1 and loads.sent == [] and done.out == ""
    assert "Nothing but its own document (split) was applied to llm" in done.err
    assert f"diptych up {up} --step service goes on from there." in done.err and "Putting" not in done.err
    assert groups(here) == SPLIT


@pytest.mark.long
def test_its_own_document_that_fails_in_a_later_turn_is_tried_once_more(
    here: World, up: Path, loads: Loads, shell: Shell
) -> None:
    ways = iter([probing(probed.recomputed)])

    def spoil(number: int) -> None:
        if number == 3:
            here.endpoint.behaviour.probe = lambda sizes: next(ways, probing(probed.proven_on_g6))(sizes)

    loads.then = spoil
    done = compared(shell, up)
    assert done.code == 1 and "It ends here: " in done.err
    assert [which for which, _ in loads.sent] == [SPLIT, AGGREGATED, AGGREGATED]
    assert "llm is what it was again" in done.err and groups(here) == SPLIT


def test_without_a_terminal_and_without_yes_nothing_happens(
    here: World, up: Path, loads: Loads, shell: Shell
) -> None:
    count = started(here)
    refused = shell("bench", *LOAD, "compare", up)
    assert (refused.code, "Nobody is here to be asked whether to go on." in refused.failure) == (2, True)
    no = compared(shell, up, answer="n")
    assert (no.code, "Nothing was changed." in no.err) == (1, True)
    assert loads.sent == [] and started(here) == count


@pytest.mark.long
def test_a_service_that_is_not_up_is_brought_up_and_taken_down_again(
    here: World, file: Path, loads: Loads, shell: Shell
) -> None:
    done = compared(shell, file)
    assert done.code == 0, done.err
    assert [which for which, _ in loads.sent] == [SPLIT, AGGREGATED, AGGREGATED, SPLIT]
    assert "it is taken down again, for it is not up now." in done.err and "llm is down again" in done.err
    assert here.fake.get("RayService", "llm", NAMESPACE) is None and remembered.known() == []


@pytest.mark.long
def test_what_was_remembered_of_a_service_that_is_not_up_stays(
    here: World, up: Path, loads: Loads, shell: Shell
) -> None:
    before = remembered.recall("llm", "kubernetes")
    assert before is not None
    assert shell("down", "--step", "service", "--yes").code == 0
    remembered.remember(before)
    done = compared(shell, up, "--rounds", "1")
    assert done.code == 0, done.err
    assert here.fake.get("RayService", "llm", NAMESPACE) is None
    assert remembered.known() == [before]


@pytest.mark.long
def test_prompts_of_ones_own_go_to_engines_that_have_not_seen_them(
    here: World, up: Path, loads: Loads, shell: Shell, tmp_path: Path
) -> None:
    prompts, count = tmp_path / "prompts.jsonl", started(here)
    prompts.write_text('{"prompt": "Once", "output_tokens": 4}\n' * 60)
    done = shell("bench", "--rate", "2", "--prompts", prompts, "compare", up, "--yes")
    assert done.code == 0, done.err
    assert started(here) - count == 4 and groups(here) == SPLIT
    assert "is changed 4 times" in done.err and "were sent before" not in done.out


@pytest.mark.long
def test_of_two_splits_no_engine_of_one_stays_for_the_other(
    here: World, file: Path, loads: Loads, shell: Shell
) -> None:
    here.fake.put(node("gpu-more", 1))
    two = ("--set", "decode.num_replicas=2")
    assert shell("up", file, *two, "--yes").code == 0
    count = started(here)
    done = compared(shell, file, *two, "--ratio", "1:2,2:1", "--rounds", "1")
    assert done.code == 0, done.err
    assert [which for which, _ in loads.sent] == [SPLIT, SPLIT, AGGREGATED]
    assert started(here) - count == 3 and "is changed 3 times" in done.err


def test_what_is_up_must_be_the_document_that_is_compared(
    here: World, up: Path, loads: Loads, shell: Shell
) -> None:
    done = compared(shell, up, "--set", "engine_kwargs.max_model_len=4096")
    assert done.code == 1 and loads.sent == []
    assert (
        "What is up is not what the document says: engine_kwargs.max_model_len would change." in done.failure
    )
    assert f"diptych up {up} --set engine_kwargs.max_model_len=4096 --step service" in done.failure


def test_somebody_elses_service_is_compared_with_its_document(
    here: World, up: Path, loads: Loads, shell: Shell
) -> None:
    remembered.forget("llm", "kubernetes")
    done = compared(shell, up, "--rounds", "1")
    assert done.code == 0, done.err
    assert groups(here) == SPLIT and remembered.known() == []
    other = compared(shell, up, "--set", "decode.max_ongoing_requests=3")
    assert other.code == 1 and "serveConfigV2 would change" in other.failure


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("--set", "decode.nodes.selector={pool: b}"),
            "prefill and decode have nodes of two kinds, by nodes.selector",
        ),
        (("--set", "prefill.autoscaling_config={max_replicas: 2}"), "changes the number of devices"),
        (
            ("--ratio", "1:2"),
            "The nodes that are there can't hold split 1:2: GPUs are missing: 1 for decode.",
        ),
    ],
)
def test_sides_that_would_not_have_the_same_nodes_are_refused(
    here: World, up: Path, loads: Loads, shell: Shell, change: tuple[str, ...], said: str
) -> None:
    count = started(here)
    done = compared(shell, up, *change)
    assert done.code in (1, 2) and said in done.failure, done.err
    assert loads.sent == [] and started(here) == count


def test_a_cluster_without_an_operator_is_told_what_to_make_first(
    bare: World, file: Path, loads: Loads, shell: Shell
) -> None:
    with_crds(bare)
    done = compared(shell, file)
    assert done.code in (1, 2) and loads.sent == []
    assert "No KubeRay operator watches the namespace inference" in done.failure
    assert f"diptych up {file}" in done.failure


def test_two_commands_do_not_work_on_one_service(here: World, up: Path, loads: Loads, shell: Shell) -> None:
    with remembered.exclusive("llm", "kubernetes"):
        done = compared(shell, up)
    assert done.code == 1 and "Another diptych command is working on llm on kubernetes." in done.failure
    assert loads.sent == []
