"""Which of our classes the builder deploys, as Ray's own classes see the application."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

_BUILD = """
import json
from diptych.serving.builder import build_app

def config(ranks):
    transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    return {
        "model_loading_config": {"model_id": "m", "model_source": "/nowhere"},
        "engine_kwargs": {"kv_transfer_config": transfer, "data_parallel_size": ranks},
        "deployment_config": {"num_replicas": 2},
    }

def told(app):
    deployment = app._bound_deployment
    gang = deployment._deployment_config.gang_scheduling_config
    return [deployment.func_or_class.__name__, deployment.num_replicas, gang and gang.gang_size]

def router(app):
    chosen = app._bound_deployment._deployment_config.request_router_config.request_router_class
    return chosen.rpartition(":")[2] if isinstance(chosen, str) else chosen.__name__

def built(ranks):
    ingress = {"max_ongoing_requests": 77}
    configs = {"prefill_config": config(ranks), "decode_config": config(ranks)}
    split = build_app({**configs, "ingress_deployment_config": ingress})
    prefill = split._bound_deployment.init_kwargs["prefill_server"]
    whole = build_app({"llm_config": config(ranks)})
    apps = [prefill, split, whole]
    ongoing = [app._bound_deployment.max_ongoing_requests for app in apps]
    return {"told": [*map(told, apps)], "routers": [*map(router, apps)], "ongoing": ongoing}

print("BUILT", json.dumps({"1": built(1), "2": built(2)}))
"""


def built(**environment: str) -> dict[str, Any]:
    """What the builder makes of one rank and of two, in a process with these variables."""
    pytest.importorskip("ray.serve")
    pytest.importorskip("vllm")
    done = subprocess.run(
        [sys.executable, "-c", _BUILD],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("BUILT "))
    found: dict[str, Any] = json.loads(line.removeprefix("BUILT "))
    return found


@pytest.mark.long  # imports of three processes, 40 s of two cores
def test_data_parallel_ranks_are_replicas_that_start_and_end_together() -> None:
    made = built()
    assert made["1"]["told"] == [
        ["PrefillServer", 2, None],
        ["DecodeServer", 2, None],
        ["AggregatedServer", 2, None],
    ]
    assert made["2"]["told"] == [
        ["DataParallelPrefillServer", 4, 2],
        ["DataParallelDecodeServer", 4, 2],
        ["DataParallelAggregatedServer", 4, 2],
    ]
    for each in made.values():
        assert each["routers"] == ["ChosenReplicaRouter", "FacingRouter", "FacingRouter"]
        prefill, decode, aggregated = each["ongoing"]
        assert decode == 77  # as the ingress was told, in whose place it stands
        assert prefill == aggregated != 77


def test_behind_haproxy_serves_own_router_is_before_what_faces_clients() -> None:
    """Serve refuses to deploy another one there."""
    made = built(RAY_SERVE_ENABLE_HA_PROXY="1")
    for each in made.values():
        prefill, *facing = each["routers"]
        assert prefill == "ChosenReplicaRouter"
        assert len(set(facing)) == 1
        assert "PowerOfTwoChoicesRequestRouter" in facing[0]
