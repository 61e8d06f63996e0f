"""Replicas asked by name, past Ray Serve's routing, and what a cluster remembers: on Ray itself, without an engine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engines, pytest.mark.long]

PROGRAM = Path(__file__).with_name("replicas_of_serve.py")


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    own = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    command = [sys.executable, str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | own)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("SEEN "))
    found: dict[str, Any] = json.loads(line.removeprefix("SEEN "))
    return found


def test_one_replica_is_asked_by_its_name_with_arguments(seen: dict[str, Any]) -> None:
    assert len(set(seen["names"])) == 2
    assert seen["only"] == [{"replica": seen["names"][1], "arguments": [[1, 2], 3]}]


def test_replicas_that_are_gone_hang_or_fail_are_left_out(seen: dict[str, Any]) -> None:
    assert (seen["gone"], seen["hanging"], seen["broken"]) == ([], [], [])


def test_the_cluster_remembers_what_was_proven_and_nothing_else(seen: dict[str, Any]) -> None:
    assert seen["remembered"] == [False, True, False]
