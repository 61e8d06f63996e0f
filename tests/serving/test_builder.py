"""Which of our classes the builder deploys, as Ray's own classes see the application."""

import json
import subprocess
import sys

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

def built(ranks):
    split = build_app({"prefill_config": config(ranks), "decode_config": config(ranks)})
    prefill = split._bound_deployment.init_kwargs["prefill_server"]
    return [told(prefill), told(split), told(build_app({"llm_config": config(ranks)}))]

print("BUILT", json.dumps({"1": built(1), "2": built(2)}))
"""


def test_data_parallel_ranks_are_replicas_that_start_and_end_together() -> None:
    pytest.importorskip("ray.serve")
    pytest.importorskip("vllm")
    done = subprocess.run(
        [sys.executable, "-c", _BUILD], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("BUILT "))
    built = json.loads(line.removeprefix("BUILT "))
    assert built["1"] == [
        ["PrefillServer", 2, None],
        ["DecodeServer", 2, None],
        ["AggregatedServer", 2, None],
    ]
    assert built["2"] == [
        ["DataParallelPrefillServer", 4, 2],
        ["DataParallelDecodeServer", 4, 2],
        ["DataParallelAggregatedServer", 4, 2],
    ]
