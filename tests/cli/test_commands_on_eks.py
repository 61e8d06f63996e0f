"""The commands on EKS, as a user runs them: from an account that is empty to one that is empty again."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.commands import Shell, ctrl_c_at
from diptych.check.account import Image
from diptych.eks.job import EksJob
from diptych.kube import remembered
from diptych.kube.remembered import Remembered
from diptych.spec import load
from eks.test_eks_down import NOTHING
from eks.world import World, world
from fakes import probed
from fakes.kubernetes import KubeRay
from fakes.provable_endpoint import ADMIN_KEY, KEY, ProvableEndpoint, probing
from kube.world import look_often

STEPS = ("cluster", "nodes", "operator", "service")
DOCUMENT = """\
version: 1
name: llm
on: eks
model: Qwen/Qwen3-8B
nodes: {{instance_type: g6.8xlarge}}
kubernetes: {{namespace: inference}}
access: {{api_key_file: {keys}}}
eks: {{region: us-east-2}}
"""


@contextmanager
def surroundings(folder: Path) -> Iterator[World]:
    """An empty account and what will be in the cluster; no hub and no registry; waits that look often."""
    with (
        pytest.MonkeyPatch.context() as patch,
        world(folder, patch) as made,
        ProvableEndpoint(probing(probed.proven_on_g6)) as endpoint,
    ):
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr("diptych.eks.registries.find_image", lambda name: Image(name, True))
        patch.setattr("diptych.eks.address.own_cidr", lambda: "203.0.113.7/32")
        look_often(patch)
        patch.setitem(EksJob.__init__.__kwdefaults__, "every_s", 0.1)
        made.kubernetes.backends[8000] = ("127.0.0.1", int(endpoint.url.rpartition(":")[2]))
        with KubeRay(made.kubernetes, time_scale=0.002):
            yield made


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    """A world of this test's own."""
    with surroundings(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world in which nothing is made."""
    with surroundings(tmp_path_factory.mktemp("empty")) as made:
        yield made


def written(folder: Path) -> Path:
    """The document of a service `llm`, with keys that its endpoint knows."""
    keys, file = folder / "keys", folder / "diptych.yaml"
    keys.write_text(f"{KEY}\n{ADMIN_KEY} admin\n")
    keys.chmod(0o600)
    file.write_text(DOCUMENT.format(keys=keys))
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path)


def changed(here: World, since: int) -> list[str]:
    """What changed the account since that many calls."""
    reads = ("Describe", "List", "Get", "Simulate", "AssumeRole")
    return [call.action for call in here.aws.calls[since:] if not call.action.split(":")[1].startswith(reads)]


def test_the_whole_life_of_a_service(here: World, file: Path, shell: Shell) -> None:
    found = shell("check", file)
    assert found.code == 0, found.out
    dry = shell("up", file, "--dry-run")
    assert dry.code == 0, dry.err
    assert "would run eksctl create cluster" in dry.err and "would apply RayService" in dry.err
    assert here.state() == NOTHING and remembered.known() == []

    refused = shell("up", file, answer="n")
    assert (refused.code, here.state()) == (1, NOTHING)
    for word in ("g6.8xlarge", "per hour", "123456789012"):
        assert word in refused.err, refused.err
    assert refused.err.rstrip().endswith("Go on? [y/N] Nothing was changed.")

    up = shell("up", file, answer="y")
    assert up.code == 0, up.err
    for step in STEPS:
        assert f"{step} done" in up.err
    assert "llm is ready after" in up.out and "diptych down --name llm" in up.out
    assert KEY not in up.out + up.err and ADMIN_KEY not in up.out + up.err

    before, calls = here.state(), len(here.aws.calls)
    again = shell("up", file, "--yes")
    assert again.code == 0, again.err
    plan = again.err[: again.err.index("In all")]
    rows = [line for line in plan.splitlines() if re.search(r"\d\.\d{3}\s*$", line)]
    assert len(rows) == 8 and all("(there already)" in row for row in rows), plan
    for line in ("KubeRay 1.7.0, on the system nodes (there already)", "(decode) (there already)"):
        assert line in plan
    assert here.state() == before and changed(here, calls) == []

    _ask_it_all(here, shell)

    kept = shell("down", answer="no")
    assert (kept.code, here.state()) == (1, before)
    assert (
        "service, operator, nodes, cluster of llm on eks will be taken down in us-east-2 of account"
        in kept.err
    )
    for word in (
        "2 × instance g6.8xlarge (on-demand)",
        "1 × cluster llm",
        "per hour that will not be paid any more",
    ):
        assert word in kept.err, kept.err
    told = shell("down", "--dry-run")
    assert (told.code, here.state()) == (0, before), told.err
    assert "would delete RayService inference/llm" in told.err
    down = shell("down", "--yes")
    assert down.code == 0, down.err
    assert "an inventory by tag finds nothing" in down.err and "llm is down after" in down.out
    assert here.state() == NOTHING and remembered.known() == []
    assert shell("status").code == 3


def _ask_it_all(here: World, shell: Shell) -> None:
    """What is up tells of itself, in every way that there is."""
    status = shell("status")
    assert status.code == 0, status.out
    assert "llm: ready, qwen3-8b (split) on eks, since" in status.out
    for word in (*STEPS, "prefill", "decode", "us-east-2", "GPU 1/1", "per hour", "so far"):
        assert word in status.out, word
    answer = json.loads(shell("status", "--json").out)
    assert (answer["ready"], answer["place"], answer["blocker"]) == (True, "eks", None)
    assert [each["step"] for each in answer["steps"]] == list(STEPS)
    about = {each["step"]: each for each in answer["steps"]}
    assert about["cluster"]["differences"] == [] == about["nodes"]["llm-decode"]["differences"]
    assert "differs" not in status.out
    assert answer["cost"]["source"].startswith("AWS's price list for us-east-2")
    assert (answer["cost"]["at_least"], answer["cost"]["unasked"]) == (False, [])
    _tell_what_differs(here, shell)

    for phase in ("prefill", "decode"):
        (pod,) = [
            p for p in here.kubernetes.all("Pod", "inference") if f"{phase}-worker" in p["metadata"]["name"]
        ]
        here.kubernetes.write_log(pod["metadata"]["name"], "inference", "ray-worker", f"{phase} says so")
    logs = shell("logs")
    assert logs.code == 0 and "prefill: " in logs.out and "decode says so" in logs.out, logs.err
    assert "decode" not in shell("logs", "prefill", "--lines", "1").out

    verified = shell("verify")
    assert verified.code == 0, verified.out + verified.err
    chatted = shell("chat", "Hello")
    assert (chatted.code, chatted.out.splitlines()[0]) == (0, "Hello there"), chatted.err
    assert "KV transfer 3.1 MiB in 2.4 ms" in chatted.out + chatted.err


def _tell_what_differs(here: World, shell: Shell) -> None:
    """A status names what somebody changed, and what may not be asked for."""
    network = here.aws.eks.clusters["llm"].about["resourcesVpcConfig"]
    before, network["publicAccessCidrs"] = network["publicAccessCidrs"], ["198.51.100.0/24"]
    here.aws.faults.denied.add("ec2:DescribeVolumes")
    told = shell("status").out
    network["publicAccessCidrs"] = before
    here.aws.faults.denied.clear()
    assert "differs from the document: its API is open to 198.51.100.0/24, not 203.0.113.7/32" in told
    assert "costs at least $" in told and "not asked: " in told and "ec2:DescribeVolumes" in told


@pytest.mark.long
def test_what_is_interrupted_goes_on_with_the_same_command(here: World, file: Path, shell: Shell) -> None:
    here.aws.clock.scale = 0.004
    with ctrl_c_at("detail", "cluster", "control plane"):
        stopped = shell("up", file, "--yes")
    assert stopped.code == 130
    assert "the same command goes on from here, `diptych down --name llm` takes it away" in stopped.err
    here.aws.clock.scale = 0.0005
    assert "llm: not ready, on eks" in shell("status").out
    with ctrl_c_at("detail", "service"):
        assert shell("up", file, "--yes").code == 130
    up = shell("up", file, "--yes")
    assert up.code == 0, up.err
    with ctrl_c_at("done", "operator"):
        stopped = shell("down", "--yes")
    assert (stopped.code, "The same command goes on from here" in stopped.err) == (130, True)
    assert shell("down", "--yes").code == 0
    assert here.state() == NOTHING


@pytest.mark.long
def test_one_step_alone_there_and_back(here: World, file: Path, shell: Shell) -> None:
    early = shell("up", file, "--yes", "--step", "service")
    assert early.code == 1
    assert "There is no cluster llm yet. Make it: diptych up --step cluster." in early.failure
    assert shell("up", file, "--yes", "--step", "cluster").code == 0
    assert here.state()["nodes"] == ["system"]
    nodes = shell("up", file, "--yes", "--step", "nodes")
    assert (nodes.code, "nodes: done in" in nodes.out) == (0, True), nodes.err
    status = shell("status")
    assert status.code == 1 and "absent" in status.out, status.out
    assert shell("down", "--yes", "--step", "nodes").code == 0
    assert "g6.8xlarge" not in here.state()["instances"]
    assert remembered.known() != []  # there is still a cluster
    last = shell("down", "--yes", "--step", "cluster")
    assert (last.code, "llm is down after" in last.out) == (0, True), last.err
    assert here.state() == NOTHING and remembered.known() == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["up", "FILE"], 2, "Nobody is here to be asked whether to go on. Run it with --yes."),
        (["up", "FILE", "--step", "node"], 2, "on eks there is no step 'node'. One of: cluster, nodes"),
        (["up", "FILE", "--yes", "--timeout", "soon"], 2, "'soon' is no duration. Write it like 90s"),
        (["up", "FILE", "--yes", "--timeout", "-3m"], 2, "'-3m' is no duration"),
        (["up", "FILE", "--foreground"], 2, "--foreground is for this machine"),
        (["up", "FILE", "--set", "eks.region=mars-1"], 2, "mars-1"),
        (["down", "FILE", "--step", "pods", "--yes"], 2, "on eks there is no step 'pods'"),
        (["down", "FILE", "--name", "llm"], 2, "Both a document and --name"),
        (["down", "FILE"], 3, "Nothing of llm is in account 123456789012, region us-east-2, cluster llm."),
        (
            ["down", "FILE", "--forget"],
            2,
            "--forget is for on: kubernetes; llm on eks can always be looked for",
        ),
        (["down", "nowhere.yaml", "--yes"], 2, "nowhere.yaml"),
        (["status", "nowhere.yaml"], 2, "nowhere.yaml"),
        (["logs", "--document", "FILE"], 1, "There is no cluster llm yet"),
        (["logs", "prefil", "--document", "FILE"], 2, "'prefil' is not a phase"),
        (["chat", "Hello", "--document", "FILE"], 1, "There is no cluster llm yet"),
        (["verify", "FILE"], 1, "There is no cluster llm yet"),
        (["forward", "FILE"], 1, "There is no cluster llm yet"),
        (["forward"], 3, "No service called 'diptych' is up"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_said_and_changes_nothing(
    empty: World, file: Path, shell: Shell, arguments: list[str], code: int, said: str
) -> None:
    done = shell(*[str(file) if each == "FILE" else each for each in arguments])
    assert done.code == code, done.err
    assert said in done.failure or said in done.out + done.err
    assert empty.aws.eks.clusters == {} and remembered.known() == []


def test_a_plan_without_the_account_names_what_its_sum_is_of(empty: World, file: Path, shell: Shell) -> None:
    file.write_text(file.read_text().replace("g6.8xlarge}", "g6.8xlarge, market: spot}"))
    done = shell("up", file, "--offline", "--step", "cluster", "--step", "nodes", answer="n")
    told = " ".join(done.err.split())
    assert done.code == 1, done.err
    source = r"list price of [-0-9]{10} in us-east-1"
    assert re.search(rf"In all at least \$0\.3\d per hour \(about \$2\d\d per month\): {source};", told), told
    assert "not in it, since no price is known: extended support" in told
    assert "1 × g6.8xlarge (prefill), spot" in told and "not asked (--offline)" in told


def test_another_account_than_before_stops_everything(empty: World, file: Path, shell: Shell) -> None:
    known = Remembered(file=str(file), document=load(file), account="999999999999", started_at=time.time())
    remembered.remember(known)
    for command in (("up", file, "--yes"), ("up", file, "--yes", "--offline"), ("down", "--yes")):
        done = shell(*command)
        assert done.code != 0 and "999999999999" in done.err and "123456789012" in done.err, done.err
    assert empty.aws.eks.clusters == {} and remembered.known() == [known]


def test_a_service_that_is_up_elsewhere_is_not_forgotten(empty: World, file: Path, shell: Shell) -> None:
    document = load(file)
    eks = document.eks.model_copy(update={"cluster": "before"})
    known = Remembered(
        file=str(file),
        document=document.model_copy(update={"eks": eks}),
        account="123456789012",
        started_at=time.time(),
    )
    remembered.remember(known)
    for command in (("--yes",), ("--yes", "--offline"), ("--dry-run",)):
        done = shell("up", file, *command)
        assert done.code == 1, done.err
        assert "llm is up in cluster before; this would be cluster llm." in done.failure
        assert "diptych down --name llm" in done.failure
    assert empty.aws.eks.clusters == {} and remembered.known() == [known]


def test_what_another_command_works_on_is_remembered_as_it_was(
    empty: World, file: Path, shell: Shell
) -> None:
    known = Remembered(file="before", document=load(file), account="123456789012", started_at=time.time())
    remembered.remember(known)
    with remembered.exclusive("llm", "eks"):
        done = shell("up", file, "--yes")
    assert done.code == 1 and "Another diptych command is working on llm on eks." in done.failure
    assert empty.aws.eks.clusters == {} and remembered.known() == [known]


@pytest.mark.parametrize(
    ("credentials", "said"),
    [("expired", "expired"), ("invalid", "credentials")],
    ids=lambda value: str(value),
)
def test_credentials_that_are_no_good_are_said_by_every_command(
    empty: World, file: Path, shell: Shell, credentials: str, said: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(empty.aws.faults, "credentials", credentials)
        for command in ("check", "up", "status", "logs", "verify", "forward", "down"):
            how = ["--document"] if command == "logs" else []
            done = shell(command, *how, file, *(["--yes"] if command in ("up", "down") else []))
            assert done.code in (1, 2), (command, done)
            assert said in (done.out + done.err).lower(), (command, done)
