"""What only Ray Serve itself does to a service under test: `python serve_tool.py ADDRESS PLAN`.

Reads what to do from standard input, one of the functions below a line, and answers each by a line.
Replicas are taken away and replaced as an operator of Serve has it done: by deploying the application anew. Serve
leaves those deployments alone whose version stays the same.
"""

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP"] = "1"  # here is no loop, as the service has

import ray
from ray import serve
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve.api import _run
from ray.serve.generated.serve_pb2 import DeploymentRoute

from diptych.serving.builder import build_app


def scale_prefill_to_one(application: dict[str, Any]) -> None:
    """Have one prefill replica taken away, and touch no other."""
    args = copy.deepcopy(application["args"])
    args["prefill_config"]["deployment_config"]["num_replicas"] = 1
    _deploy(application, args, replaced=())


def replace_prefill_by_other_settings(application: dict[str, Any]) -> None:
    """Have the prefill replicas replaced by ones of another setting, and leave decode as it is."""
    args = copy.deepcopy(application["args"])
    args["prefill_config"]["deployment_config"]["num_replicas"] = 1
    args["prefill_config"]["engine_kwargs"]["max_num_seqs"] = 7
    _deploy(application, args, replaced=("Prefill",))


def ask_prefill(application: dict[str, Any]) -> dict[str, Any]:
    """What a prefill replica answers to a decode replica of a generation that there is none of."""
    model = application["args"]["prefill_config"]["model_loading_config"]["model_id"]
    handle = serve.get_deployment_handle(f"Prefill:{model}", application["name"]).options(stream=False)
    asked = {
        "prompt": {"type": "token", "prompt_token_ids": [1, 2, 3]},
        "id": "0" * 32,
        "replica": "any",
        "generation": "another",
        "uncached_tokens": 3,
        "priority": 0,
        "trace_headers": None,
    }
    answer: dict[str, Any] = handle.prefill.remote(asked).result(timeout_s=30)
    return answer


def _deploy(application: dict[str, Any], args: dict[str, Any], replaced: tuple[str, ...]) -> None:
    decode = build_app(args)
    prefill = decode._bound_deployment.init_kwargs["prefill_server"]
    controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    for deployment in (decode._bound_deployment, prefill._bound_deployment):
        if not deployment.name.startswith(replaced or "none"):
            told = ray.get(controller.get_deployment_info.remote(deployment.name, application["name"]))
            route = DeploymentRoute.FromString(told)
            deployment._version = DeploymentInfo.from_proto(route.deployment_info).version
    _run(decode, _blocking=False, name=application["name"], route_prefix="/")


if __name__ == "__main__":
    address, plan = sys.argv[1:]
    ray.init(address=address, namespace="serve", log_to_driver=False, configure_logging=False)
    application = json.loads(Path(plan).read_text())["serve_config"]["applications"][0]
    print("answer: null", flush=True)
    for word in sys.stdin:
        print("answer:", json.dumps(globals()[word.strip()](application)), flush=True)
