"""The commands on a cluster that exists, as a user runs them, and what they remember of it from one to the next."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cli import on_kubernetes
from cli.commands import Shell, ctrl_c_at
from diptych.cli import cluster_status, places, status
from diptych.kube import remembered
from diptych.kube.connection import connect
from diptych.kube.remembered import Remembered
from diptych.spec import load
from fakes import probed
from fakes.kubernetes import FakeKubernetes, install_operator
from fakes.provable_endpoint import KEY, probing
from kube.test_up_and_down import with_crds
from kube.world import NAMESPACE, World


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A cluster with nodes, to which this process's kubeconfig leads."""
    with on_kubernetes.cluster(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def file(here: World) -> Path:
    """The document of a service `llm`, with keys that its endpoint knows."""
    return on_kubernetes.document(here)


@pytest.fixture
def up(here: World, file: Path, shell: Shell) -> Path:
    """The document of a service that is up, under somebody else's operator."""
    install_operator(here.fake, "kuberay-system")
    return on_kubernetes.brought_up(file, shell)


@contextmanager
def ctrl_c_after(work: Callable[[], object]) -> Iterator[None]:
    """Do work in another thread, then press Ctrl-C; what it raises is raised here."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
    if raised:
        raise raised[0]


def test_the_whole_life_of_a_service(here: World, file: Path, shell: Shell) -> None:
    with_crds(here)
    checked = shell("check", file)
    assert checked.code == 0, checked.out
    before = here.left()
    dry = shell("up", file, "--dry-run")
    assert dry.code == 0, dry.err
    assert "would apply RayService" in dry.err and here.left() == before
    assert shell("up", file, answer="").code == 1
    assert here.left() == before

    done = shell("up", file, answer="yes")
    assert done.code == 0, done.err
    assert "llm goes into namespace inference of the cluster of context" in done.err
    assert "operator done" in done.err and "a KV transfer is proven" in done.out
    again = shell("up", file, "--yes")
    assert again.code == 0, again.err

    status = shell("status")
    assert status.code == 0, status.out
    assert "llm: ready" in status.out and "operator  ready" in status.out and "gpu-a" in status.out
    assert json.loads(shell("status", "--json").out)["place"] == "kubernetes"
    assert shell("verify").code == 0
    assert shell("chat", "Hello").out.startswith("Hello there")

    assert shell("down", answer="n").code == 1
    assert shell("down", "--yes", "--step", "service").code == 0
    assert here.left() == [] or here.fake.get("RayService", "llm", NAMESPACE) is None
    assert remembered.known() != []  # the operator is still there
    last = shell("down", "--yes", "--step", "operator")
    assert (last.code, "llm is down after" in last.out) == (0, True), last.err
    assert here.fake.get("Namespace", NAMESPACE) is None and remembered.known() == []


def test_a_fallback_that_verify_put_up_with_is_in_every_status_until_a_verify_finds_the_right_one(
    here: World, up: Path, shell: Shell
) -> None:
    def fallback() -> str | None:
        told: str | None = json.loads(shell("status", "--json").out)["fallback"]
        return told

    here.endpoint.behaviour.probe = probing(probed.tcp_for_efa)
    assert shell("verify").code == 1
    assert fallback() is None
    assert shell("verify", "--allow-fallback").code == 0
    assert (fallback() or "").startswith("EFA was asked for, and LIBFABRIC over tcp is in use")
    assert "fallback allowed: EFA was asked for" in shell("status").out
    assert shell("verify").code == 1  # and it stays said
    assert "fallback allowed: EFA was asked for" in shell("status", up).out
    here.endpoint.behaviour.probe = probing(probed.proven_on_g6)
    assert shell("verify").code == 0
    assert fallback() is None


def test_a_watch_remembers_a_fallback_too_and_up_that_proves_a_transfer_ends_it(
    here: World, up: Path, shell: Shell
) -> None:
    def watched(*options: str) -> None:
        def until_asked_twice() -> None:
            asked = len(here.endpoint.behaviour.asked)
            while len(here.endpoint.behaviour.asked) < asked + 2:
                time.sleep(0.05)

        with ctrl_c_after(until_asked_twice):
            shell("verify", "--watch", "--period", "1", *options)

    def fallback() -> str | None:
        known = remembered.recall("llm", "kubernetes")
        assert known is not None
        return known.fallback

    here.endpoint.behaviour.probe = probing(probed.tcp_for_efa)
    watched()
    assert fallback() is None
    watched("--allow-fallback")
    assert (fallback() or "").startswith("EFA was asked for")
    with remembered.exclusive("llm", "kubernetes"):
        assert shell("up", up, "--yes").code == 1  # another command is at work
    assert fallback() is not None
    here.endpoint.behaviour.probe = probing(probed.proven_on_g6)
    assert shell("up", up, "--yes").code == 0
    assert fallback() is None


def test_a_forwarded_port_leads_to_the_service_and_survives_a_cut(
    here: World, up: Path, shell: Shell
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def ask() -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                answer = httpx.post(
                    f"http://127.0.0.1:{port}/tokenize",
                    json={"prompt": "hi"},
                    headers={"authorization": f"Bearer {KEY}"},
                )
            except httpx.TransportError:
                time.sleep(0.1)
                continue
            assert answer.json()["count"] == 2
            return
        raise AssertionError("no answer")

    def twice() -> None:
        ask()
        here.fake.cut_forwards()
        ask()

    with ctrl_c_after(twice):
        done = shell("forward", "--port", port)
    assert done.code == 0, done.err
    assert f"llm is at http://127.0.0.1:{port}/v1, with the key in " in done.out
    assert KEY not in done.out + done.err

    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = shell("forward", "--port", taken.getsockname()[1])
    assert done.code == 1 and "in use" in done.failure


def test_a_watch_goes_on_while_the_cluster_can_not_be_asked_and_ends_with_ctrl_c(
    here: World, up: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diptych.cli.status._EVERY_S", 0.1)
    monkeypatch.setitem(connect.__kwdefaults__, "patience_s", 0.2)

    shown: list[str] = []

    def wait_for(name: str, more: int) -> None:
        wanted, until = shown.count(name) + more, time.monotonic() + 60
        while shown.count(name) < wanted:
            assert time.monotonic() < until, shown
            time.sleep(0.05)

    def work() -> None:
        wait_for("_tell", 2)
        until = time.monotonic() + 60
        while "print_error" not in shown and time.monotonic() < until:  # a look may outlast one absence
            here.fake.go_away(1.5)
            time.sleep(2)
        wait_for("_tell", 2)

    def noted(name: str) -> Callable[..., Any]:
        told = getattr(status, name)

        def tell(*arguments: object, **named: object) -> Any:
            shown.append(name)
            return told(*arguments, **named)

        return tell

    for name in ("_tell", "print_error"):
        monkeypatch.setattr(status, name, noted(name))
    with ctrl_c_after(work):
        done = shell("status", "--watch")
    assert done.code == 0, done.err
    assert done.out.count("llm: ready") > 1 and "Error: " in done.err


def test_a_watch_that_is_ended_at_its_first_look_is_no_failure(
    up: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(up: places.Up, meter: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster_status, "look_at", look)
    assert shell("status", "--watch").code == 130


def test_logs_follow_what_is_written_until_ctrl_c(
    here: World, up: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = next(p for p in here.fake.all("Pod", NAMESPACE) if "decode-worker" in p["metadata"]["name"])
    name = pod["metadata"]["name"]
    here.fake.write_log(name, NAMESPACE, "ray-worker", "before")
    written: list[str] = []
    monkeypatch.setattr("diptych.cli.logs._POLL_S", 0.05)
    monkeypatch.setattr("diptych.cli.logs.write", written.append)

    def wait_for(words: str) -> None:
        until = time.monotonic() + 20
        while not any(words in line for line in written):
            assert time.monotonic() < until, written
            time.sleep(0.05)

    def work() -> None:
        wait_for("before")
        here.fake.write_log(name, NAMESPACE, "ray-worker", "and after")
        wait_for("and after")

    with ctrl_c_after(work):
        assert shell("logs", "decode", "--follow").code == 130
    assert [line.split()[-1] for line in written][-2:] == ["before", "after"]


def test_it_is_known_by_its_name_when_its_document_has_moved_or_gone(
    here: World, up: Path, shell: Shell
) -> None:
    up.unlink()
    assert shell("status", "--name", "llm").code == 0
    assert shell("status", up).code == 2
    down = shell("down", "--yes")
    assert down.code == 0, down.err
    assert here.fake.get("RayService", "llm", NAMESPACE) is None
    assert "No service called 'llm'" in shell("down", "--name", "llm", "--yes").failure


def test_another_current_context_leads_nowhere_else(
    here: World, up: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(os.environ["KUBECONFIG"])
    content = yaml.safe_load(path.read_text())
    mine = content["current-context"]
    content["clusters"].append({"name": "other", "cluster": {"server": "http://127.0.0.1:9"}})
    content["contexts"].append({"name": "other", "context": {"cluster": "other"}})
    content["current-context"] = "other"
    path.write_text(yaml.safe_dump(content))
    assert shell("status").code == 0
    assert shell("check", up).code == 0
    again = shell("up", up, "--yes")
    assert again.code == 0, again.err
    assert f"the cluster of context {mine}" in again.err

    content["contexts"] = content["contexts"][1:]
    path.write_text(yaml.safe_dump(content))
    gone = shell("down", "--yes")
    assert gone.code == 1 and f"has no context {mine!r}. Contexts that it has: other." in gone.failure


def test_another_namespace_or_context_than_before_is_refused_with_what_to_do(
    here: World, file: Path, shell: Shell
) -> None:
    document = load(file)
    elsewhere = document.kubernetes.model_copy(update={"namespace": "before", "context": "lab"})
    known = Remembered(
        file=None, document=document.model_copy(update={"kubernetes": elsewhere}), started_at=time.time()
    )
    remembered.remember(known)
    done = shell("up", file, "--yes")
    assert done.code == 1
    assert "llm is up in context lab, namespace before; this would be context" in done.failure
    assert "diptych down --name llm" in done.failure
    assert remembered.known() == [known] and here.fake.all("RayService") == []


def test_a_kubeconfig_with_the_same_context_for_another_cluster_leads_nowhere(
    here: World, up: Path, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = remembered.recall("llm", "kubernetes")
    assert known is not None and known.cluster_uid is not None
    with FakeKubernetes() as other:
        other.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        install_operator(other, "kuberay-system")
        other.put(here.fake.all("RayService", NAMESPACE)[0] | {"status": {}})
        monkeypatch.setenv("KUBECONFIG", str(other.kubeconfig(tmp_path / "b")))
        uid = (other.get("Namespace", "kube-system") or {})["metadata"]["uid"]
        for command in (
            ["up", up, "--yes", "--offline"],
            ["down", "--yes"],
            ["down", up, "--yes"],
            ["status"],
            ["logs"],
        ):
            done = shell(*command)
            assert done.code == 1, (command, done)
            assert "llm is up in another cluster: context fake" in done.failure, (command, done)
            assert known.cluster_uid in done.failure and uid in done.failure
            assert "KUBECONFIG" in done.failure
            assert ("down --name llm --forget" in done.failure) == (command[0] in ("up", "down"))
        assert len(other.all("RayService")) == 1
    assert remembered.known() == [known]
    assert here.fake.get("RayService", "llm", NAMESPACE) is not None


def test_another_name_for_the_same_cluster_is_the_same_place(
    here: World, up: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(here.fake.kubeconfig(tmp_path / "renamed", context="lab")))
    up.write_text(up.read_text().replace("namespace: inference,", "namespace: inference, context: lab,"))
    done = shell("up", up, "--yes")
    assert done.code == 0, done.err
    assert shell("status").code == 0


def test_what_an_earlier_version_remembered_has_no_cluster_and_gets_it_with_the_next_up(
    here: World, up: Path, shell: Shell
) -> None:
    place = remembered.file_of("llm", "kubernetes")
    told = json.loads(place.read_text())
    uid = told.pop("cluster_uid")
    place.write_text(json.dumps(told))
    assert shell("status").code == 0
    assert shell("up", up, "--yes").code == 0
    assert json.loads(place.read_text())["cluster_uid"] == uid


def test_what_is_neither_there_nor_remembered_is_not_taken_down(
    here: World, file: Path, shell: Shell
) -> None:
    done = shell("down", file, "--yes")
    assert (done.code, done.out) == (3, "")
    assert "Nothing of llm is in namespace inference of the cluster of the current context." in done.failure
    assert "name its context (kubernetes.context)" in done.failure


def test_with_its_document_somebody_elses_service_goes_down(here: World, up: Path, shell: Shell) -> None:
    remembered.forget("llm", "kubernetes")
    assert shell("down", up, "--yes").code == 0
    assert here.fake.get("RayService", "llm", NAMESPACE) is None
    assert shell("down", up, "--yes").code == 3


def test_of_two_places_with_the_same_name_the_document_says_which(
    here: World, up: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    known = remembered.recall("llm", "kubernetes")
    assert known is not None
    other = known.document.model_copy(update={"on": "eks"})
    remembered.remember(Remembered(file=None, document=other, started_at=time.time()))
    for command in (["down", "--yes"], ["chat", "Hello"], ["logs"], ["forward"], ["verify"]):
        done = (
            shell(*command, "--name", "llm") if command[0] != "verify" else shell("verify", "--name", "llm")
        )
        assert done.code == 3, done.err
        assert "llm on kubernetes, llm on eks. Give its document" in done.failure
    both = shell("status")
    assert both.code == 1
    assert "llm: ready" in both.out and "llm: not ready, on eks" in both.out
    assert [each["ready"] for each in json.loads(shell("status", "--json").out)] == [True, False]
    assert shell("status", up).code == 0
    assert shell("down", up, "--yes").code == 0
    assert [each.place for each in remembered.known()] == ["eks"]


def test_interrupted_commands_say_how_to_go_on(here: World, file: Path, shell: Shell) -> None:
    install_operator(here.fake, "kuberay-system")
    with ctrl_c_at("detail", "service"):
        stopped = shell("up", file, "--yes")
    assert stopped.code == 130
    assert "What was made stays: the same command goes on from here" in stopped.err
    assert shell("status").code == 1
    assert shell("up", file, "--yes").code == 0
    with ctrl_c_at("start", "service"):
        assert shell("down", "--yes").code == 130
    assert shell("down", "--yes").code == 0
    assert here.left() == []


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ("/nowhere/kubeconfig", "There is no kubeconfig: /nowhere/kubeconfig does not exist"),
        ("unreachable", "does not answer"),
    ],
)
def test_a_cluster_that_cannot_be_reached_is_said(
    file: Path, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: str, said: str
) -> None:
    if environment == "unreachable":
        content = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
        content["clusters"][0]["cluster"] = {"server": "http://127.0.0.1:9"}
        environment = str(tmp_path / "unreachable")
        Path(environment).write_text(yaml.safe_dump(content))
    monkeypatch.setenv("KUBECONFIG", environment)
    monkeypatch.setitem(connect.__kwdefaults__, "patience_s", 0.2)
    for command in ("check", "up", "status", "down", "forward", "verify"):
        done = shell(command, file, *(["--yes"] if command in ("up", "down") else []))
        assert done.code in (1, 2), (command, done)
        assert said in " ".join((done.out + done.err).split()), (command, done)


@pytest.mark.parametrize("step", ["cluster", "nodes"])
def test_steps_of_eks_are_not_those_of_a_cluster_that_exists(file: Path, shell: Shell, step: str) -> None:
    done = shell("up", file, "--yes", "--step", step)
    assert (done.code, f"on kubernetes there is no step {step!r}" in done.failure) == (2, True)
