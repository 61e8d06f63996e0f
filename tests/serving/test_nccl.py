"""NCCL measured from inside: which nodes, with what, one run at a time; and a whole run over two of Ray's nodes."""

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

import ray
from ray.exceptions import ActorAlreadyExistsError

from diptych.serving import children, nccl
from diptych.serving.nccl import GpuNode, gpu_nodes, mpi_command, telling
from diptych.serving.relay import Relay
from diptych.verify.nccl import Link, judge
from fakes import nccl as printed

PROGRAMS = Path(__file__).parents[1] / "fakes" / "mpi"
SOURCE = Path(nccl.__file__).parents[2]


def node(name: str, host: str, gpus: float, alive: bool = True) -> dict[str, Any]:
    resources = {"CPU": 4.0} | ({"GPU": gpus} if gpus else {})
    return {"NodeID": name, "NodeManagerAddress": host, "Alive": alive, "Resources": resources}


def test_the_nodes_are_those_that_are_alive_and_have_gpus_with_our_own_first() -> None:
    told = [
        node("a", "10.0.0.1", 4),
        node("head", "10.0.0.2", 0),
        node("b", "10.0.0.3", 8),
        node("gone", "10.0.0.4", 8, alive=False),
    ]
    assert gpu_nodes(told, "b") == [GpuNode("b", "10.0.0.3", 8), GpuNode("a", "10.0.0.1", 4)]


def test_mpi_starts_a_process_for_each_gpu_and_reaches_others_by_our_agent_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FI_PROVIDER", "efa")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    nodes = [GpuNode("b", "10.0.0.3", 8), GpuNode("a", "10.0.0.1", 4)]
    command = mpi_command("/x/mpirun", "/x/all_reduce_perf", nodes, Path("/tmp/d/agent"), 120.0)
    words = " ".join(command)
    assert "--host 10.0.0.3:8,10.0.0.1:4 -np 12" in words
    assert "--mca plm_rsh_agent /tmp/d/agent --mca plm_rsh_no_tree_spawn 1" in words
    assert "--mca orte_leave_session_attached 1" in words
    handed_on = [each for before, each in itertools.pairwise(command) if before == "-x"]
    assert handed_on == ["FI_PROVIDER", "NCCL_DEBUG", "NCCL_DEBUG_FILE"]
    assert words.endswith("/x/all_reduce_perf -b 8M -e 128M -f 2 -g 1 -n 10 -c 1")


def test_each_nodes_gpus_are_shown_to_what_runs_there() -> None:
    assert GpuNode("a", "10.0.0.1", 4).environment == {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}


def test_of_nccls_log_what_tells_of_the_network_is_kept_once_and_of_others_all() -> None:
    log = printed.log("ok") + "libfabric:1: efa: warn: no memory\n"
    kept = telling(log).splitlines()
    assert [line.partition("NCCL INFO ")[2] for line in kept[:3]] == [
        "NET/OFI Initializing aws-ofi-nccl 1.19.0",
        "NET/OFI Selected provider is efa, fabric is efa (found 1 nics)",
        "Using network Libfabric",
    ]
    assert kept[-1] == "libfabric:1: efa: warn: no memory"
    assert len(kept) == 5


# The relay


def relayed(folder: Path, *arguments: str, answer: Any) -> "subprocess.CompletedProcess[str]":
    """Call the agent as mpirun does."""

    async def call() -> "subprocess.CompletedProcess[str]":
        relay = Relay(folder, answer)
        serving = asyncio.create_task(relay.serve())
        try:
            return await asyncio.to_thread(
                subprocess.run, [relay.agent, *arguments], capture_output=True, text=True, timeout=20
            )
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving

    return asyncio.run(call())


def test_the_agent_hands_on_host_and_command_and_ends_as_the_command_did(tmp_path: Path) -> None:
    calls = []

    async def run(host: str, command: str) -> tuple[int, str]:
        calls.append((host, command))
        return 7, "orted: not found\n"

    done = relayed(tmp_path, "-x", "10.0.0.2", "PATH=/x:$PATH ; orted", "-mca", "ess", '"env"', answer=run)
    assert calls == [("10.0.0.2", 'PATH=/x:$PATH ; orted -mca ess "env"')]
    assert (done.returncode, done.stderr) == (7, "orted: not found\n")


def test_what_fails_on_the_way_is_said_to_mpirun(tmp_path: Path) -> None:
    async def run(host: str, command: str) -> tuple[int, str]:
        raise LookupError("none of Ray's nodes has this address")

    done = relayed(tmp_path, "10.0.0.9", "orted", answer=run)
    assert (done.returncode, done.stderr) == (255, "10.0.0.9: none of Ray's nodes has this address\n")


def test_a_call_that_can_not_be_read_is_answered_and_others_go_on(tmp_path: Path) -> None:
    async def run(host: str, command: str) -> tuple[int, str]:
        return 0, ""

    broken = tmp_path / "calls" / "1"

    async def play() -> tuple[str, str]:
        relay = Relay(tmp_path, run)
        for call in (broken, broken.with_name("2")):
            call.mkdir()
            if call != broken:
                (call / "host").write_text("h")
                (call / "command").write_text("c")
            (call / "asked").touch()
        serving = asyncio.create_task(relay.serve())
        while not all((call / "answered").exists() for call in (broken, broken.with_name("2"))):
            assert not serving.done()
            await asyncio.sleep(0.01)
        serving.cancel()
        return (broken / "code").read_text(), (broken.with_name("2") / "code").read_text()

    assert asyncio.run(asyncio.wait_for(play(), 10)) == ("255", "0")


def test_the_agent_ends_when_nobody_is_there_to_answer(tmp_path: Path) -> None:
    relay = Relay(tmp_path, lambda host, command: asyncio.sleep(0, (0, "")))
    quiet = "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    starter = f"import subprocess; print(subprocess.Popen([{str(relay.agent)!r}, 'h', 'c'], {quiet}).pid)"
    done = subprocess.run([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True, check=True)
    until = time.monotonic() + 5
    while time.monotonic() < until and Path(f"/proc/{done.stdout.strip()}").exists():
        time.sleep(0.05)
    assert not Path(f"/proc/{done.stdout.strip()}").exists()


# With Open MPI itself


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_open_mpi_brings_ranks_together_by_the_agent_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its second host is an address of nobody's: only the agent can lead there, and it leads back to this machine."""
    monkeypatch.setenv("FI_PROVIDER", "efa")
    program = tmp_path / "all_reduce_perf"
    shown = "$OMPI_COMM_WORLD_RANK/$OMPI_COMM_WORLD_SIZE $OMPI_COMM_WORLD_LOCAL_RANK $CUDA_VISIBLE_DEVICES $FI_PROVIDER"
    program.write_text(f'#!/bin/sh\necho "{shown}"\necho "log" > "$NCCL_DEBUG_FILE"\n')
    program.chmod(0o700)
    nodes = [GpuNode("a", socket.gethostbyname(socket.gethostname()), 1), GpuNode("b", "198.51.100.7", 2)]
    hosts = []

    async def run(host: str, command: str) -> tuple[int, str]:
        hosts.append(host)
        ended = await asyncio.to_thread(nccl.daemon, command, nodes[1].environment, uuid.uuid4().hex, 30.0)
        return (255 if ended.code is None else ended.code), ended.log

    async def measured() -> children.Ended:
        with tempfile.TemporaryDirectory() as folder:
            relay = Relay(Path(folder), run)
            serving = asyncio.create_task(relay.serve())
            mpirun = shutil.which("mpirun")
            assert mpirun is not None
            command = mpi_command(mpirun, str(program), nodes, relay.agent, 30.0)
            environment = nccl.environment_of(nodes[0])
            try:
                return await asyncio.to_thread(
                    children.run, command, environment, mark=uuid.uuid4().hex, within_s=30.0
                )
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)

    ended = asyncio.run(measured())
    assert ended.code == 0, ended.log
    assert sorted(ended.output.split("\n")) == ["", "0/3 0 0 efa", "1/3 0 0,1 efa", "2/3 1 0,1 efa"]
    assert [line for line in ended.log.splitlines() if line == "log"] == ["log"] * 3
    assert hosts == ["198.51.100.7"]


# A whole run, with threads in place of Ray's tasks


class Ref:
    """What stands for the result of a task, as Ray's does: awaited, or turned into a future."""

    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def __await__(self) -> Any:
        return asyncio.wrap_future(self._future).__await__()

    def future(self) -> "Future[Any]":
        return self._future


@pytest.fixture
def threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two nodes with two GPUs and one, whose tasks are threads here; the file that says how NCCL's run goes."""
    for name in ("mpirun", "all_reduce_perf"):
        monkeypatch.setitem(nccl._PLACES, name, str(PROGRAMS / name))
    monkeypatch.setenv("FAKE_NCCL", str(tmp_path / "kind"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as Ray leaves it
    told = [node("b", "10.0.0.2", 1), node("a", "10.0.0.1", 2)]
    monkeypatch.setattr(ray, "nodes", lambda: told)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "a"))
    monkeypatch.setattr(ray, "cancel", lambda ref: None)
    monkeypatch.setattr(nccl, "_claimed", lambda node_id: contextlib.nullcontext())
    with ThreadPoolExecutor() as pool:

        def remote(function: Any, node: GpuNode) -> Any:
            return SimpleNamespace(remote=lambda *arguments: Ref(pool.submit(function, *arguments)))

        monkeypatch.setattr(nccl, "_remote", remote)
        yield tmp_path / "kind"


@pytest.mark.parametrize(
    ("kind", "code", "state"),
    [
        ("ok", 0, "holds"),
        ("sockets", 0, "fails"),
        ("wrong", 1, "fails"),
        ("out of memory", 3, "skipped"),
        ("hanging", None, "fails"),
    ],
)
def test_what_each_outcome_prints_is_told_and_judged(
    kind: str, code: int | None, state: str, threads: Path
) -> None:
    threads.write_text(kind)
    told = asyncio.run(nccl.measure(4.0 if kind == "hanging" else 30.0))
    assert told["exit_code"] == code, told
    assert [(each["host"], each["gpus"]) for each in told["nodes"]] == [("10.0.0.1", 2), ("10.0.0.2", 1)]
    assert f"Rank  2 Group  0 Pid     72 on {'10.0.0.2':>10} device  0" in told["output"]
    assert "NCCL INFO" not in told["output"]
    judged = judge(told, Link(25.0, False, efa=True))
    assert judged.state == state, judged


def test_what_a_node_lacks_is_named(threads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "missing", lambda paths: paths[1:])
    lacks = f"node 10.0.0.1 has no {PROGRAMS / 'all_reduce_perf'}"
    assert asyncio.run(nccl.measure()) == {"skipped": lacks}
    monkeypatch.setitem(nccl._PLACES, "mpirun", "/nowhere/mpirun")
    monkeypatch.setenv("PATH", "/nowhere")
    assert asyncio.run(nccl.measure()) == {"skipped": "the image has no mpirun"}


def test_a_failure_that_says_nothing_is_told_by_its_name(
    threads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(paths: list[str]) -> list[str]:
        raise TimeoutError

    monkeypatch.setattr(nccl, "missing", fails)
    said = "node 10.0.0.1 runs no task of ours: TimeoutError"
    assert asyncio.run(nccl.measure()) == {"skipped": said}


@pytest.mark.parametrize(
    ("error", "raised"), [(ActorAlreadyExistsError, nccl.Busy), (ValueError, ValueError)]
)
def test_only_a_claim_that_another_holds_means_busy(
    error: type[Exception], raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> None:
        raise error("no")

    class Options:
        def options(self, **_: Any) -> Any:
            return SimpleNamespace(remote=make)

    monkeypatch.setattr(ray, "remote", lambda **_: lambda _: Options())

    async def claim() -> None:
        async with nccl._claimed("ab" * 28):
            pass

    with pytest.raises(raised):
        asyncio.run(claim())


# On Ray


class Cluster:
    """Two Ray nodes of this machine, with a GPU each as far as Ray knows, and what `measure` says from one of them."""

    def __init__(self, folder: Path) -> None:
        self.kind = folder / "kind"
        self.programs = folder / "programs"
        self.programs.mkdir()
        for each in PROGRAMS.iterdir():
            (self.programs / each.name).symlink_to(each)
        self.kind.write_text("ok")

    def measure(self, kind: str, **options: Any) -> dict[str, Any]:
        self.kind.write_text(kind)
        return asyncio.run(nccl.measure(**options))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from ray.cluster_utils import Cluster as RayCluster

    made = Cluster(tmp_path_factory.mktemp("nccl"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{made.programs}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("FAKE_NCCL", str(made.kind))
        patch.setenv("PYTHONPATH", str(SOURCE))
        small = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80 * 2**20}
        started = RayCluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
        try:
            started.add_node(**small, node_ip_address="127.0.0.2")
            ray.init(address=started.address, log_to_driver=False)
            yield made
        finally:
            ray.shutdown()
            started.shutdown()


def left() -> list[str]:
    """Processes of the fakes that are still there."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes()
            if any(name in line for name in (b"all_reduce_perf", b"orted", b"diptych-nccl-")):
                found.append(line.decode().replace("\0", " "))
    return found


def gone(within_s: float = 10.0) -> bool:
    until = time.monotonic() + within_s
    while left() and time.monotonic() < until:
        time.sleep(0.1)
    return not left()


@pytest.mark.long
@pytest.mark.engines
def test_over_two_nodes_it_tells_what_each_outcome_prints(cluster: Cluster) -> None:
    told = cluster.measure("ok")
    assert told["exit_code"] == 0, told
    assert [each["gpus"] for each in told["nodes"]] == [1, 1]
    hosts = sorted(each["host"] for each in told["nodes"])
    assert len(hosts) == 2 and "127.0.0.2" in hosts
    assert all(f" on {host:>10} device  0" in told["output"] for host in hosts)
    assert "   134217728      33554432" in told["output"]
    assert "NCCL INFO" not in told["output"]
    assert "Selected provider is efa" in told["log"]
    for kind, code in (("sockets", 0), ("wrong", 1), ("out of memory", 3)):
        told = cluster.measure(kind)
        assert told["exit_code"] == code, told
    assert "out of memory" in told["log"]
    assert gone(), left()


@pytest.mark.long
@pytest.mark.engines
def test_a_run_that_hangs_or_that_nobody_waits_for_any_more_is_ended_on_both_nodes(cluster: Cluster) -> None:
    assert cluster.measure("hanging", within_s=6)["exit_code"] is None
    assert gone(), left()

    async def given_up() -> None:
        run = asyncio.create_task(nccl.measure())
        while len([each for each in left() if "all_reduce_perf" in each and "mpirun" not in each]) < 2:
            await asyncio.sleep(0.1)
        with pytest.raises(nccl.Busy):
            await nccl.measure()
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run

    asyncio.run(given_up())
    assert gone(), left()
    assert cluster.measure("ok")["exit_code"] == 0  # and the next one may run


@pytest.mark.long
@pytest.mark.engines
def test_what_an_image_lacks_is_named(cluster: Cluster) -> None:
    perf = cluster.programs / "all_reduce_perf"
    target = perf.readlink()
    perf.unlink()
    try:
        assert cluster.measure("ok") == {"skipped": "the image has no all_reduce_perf"}
    finally:
        perf.symlink_to(target)


def test_on_one_node_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        def get_node_id(self) -> str:
            return "a"

    monkeypatch.setattr(ray, "get_runtime_context", Context)
    monkeypatch.setattr(ray, "nodes", lambda: [node("a", "10.0.0.1", 1), node("head", "10.0.0.2", 0)])
    told = asyncio.run(nccl.measure())
    assert told == {"skipped": "one node of the cluster has GPUs, and it takes two"}
