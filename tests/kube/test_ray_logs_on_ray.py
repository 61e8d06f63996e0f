"""What Ray's own dashboard hands out, asked as `RayLogs` asks it through a port-forward."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import httpx
import pytest

from diptych.kube.connection import Cluster
from diptych.kube.ray_logs import NoFilesError, RayLogs
from diptych.spec import Document

pytest.importorskip("ray")

TOKEN = "t" * 44

pytestmark = pytest.mark.engines


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def dashboard() -> Iterator[str]:
    """The address of a head's dashboard that asks for a token, as KubeRay sets Ray up."""
    port = free_port()
    command = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--num-cpus=1"]
    command += [f"--port={free_port()}", f"--dashboard-port={port}", "--object-store-memory=80000000"]
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory(prefix="dt-") as folder:
        command.append(f"--temp-dir={folder}")
        head = subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.DEVNULL)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            head.terminate()
            head.wait(30)


def logs(address: str, token: str) -> RayLogs:
    """Open at that address; where a cluster is asked, `test_cluster_logs` tries it."""
    made = RayLogs(cast(Cluster, None), Document(name="llm"))
    headers = {"Authorization": f"Bearer {token}"}
    made._client = httpx.Client(base_url=address, headers=headers, timeout=10, trust_env=False)
    return made


def node(address: str) -> dict[str, object]:
    """The pod that stands for Ray's only node, once the dashboard tells of it."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            told = httpx.get(
                f"{address}/api/v0/nodes", headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False
            ).json()
            if found := told["data"]["result"]["result"]:
                return {"status": {"podIP": found[0]["node_ip"]}}
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            pass
        time.sleep(0.5)
    pytest.fail("the dashboard told of no node")


def test_a_nodes_files_and_their_last_lines_are_had(dashboard: str) -> None:
    pod = node(dashboard)
    open_ = logs(dashboard, TOKEN)
    files = open_.files(pod)
    assert {"gcs_server.out", "raylet.out", "dashboard.log"} <= set(files)
    last = open_.tail(pod, "dashboard.log", 3)
    assert len(last) == 3 and all(last)


def test_what_it_refuses_is_told(dashboard: str) -> None:
    pod = node(dashboard)
    with pytest.raises(NoFilesError, match="refuses /api/v0/logs"):
        logs(dashboard, "wrong" * 9).files(pod)
    with pytest.raises(NoFilesError):
        logs(dashboard, TOKEN).tail(pod, "nope.out", 3)
    with pytest.raises(NoFilesError):
        logs(dashboard, TOKEN).files({"status": {"podIP": "192.0.2.9"}})
