"""The ways that a request can take, each with engines that answer at once (`instant`)."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from diptych.local.environment import service_environment
from diptych.local.paths import STATE_DIR_ENV, ServicePaths
from diptych.local.planning import Model, make_plan
from diptych.local.processes import Mark, end_all
from diptych.models.hub import resolve_model
from diptych.render.ingress import HAPROXY
from diptych.spec import Document
from sides import MODEL, Side, kv_transfer, ray_up, stock_up, variables, wait_for_first_token

INSTANT = str(Path(__file__).with_name("instant"))
DIRECT = {"RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1", "RAY_SERVE_ENABLE_HA_PROXY": "1"}
_PORTS = {"proxy": 8010, "prefill": 8011, "decode": 8012}


def _with_instant(more: dict[str, str]) -> dict[str, str]:
    """The instant engines before all else that Python looks for; the package under test after them.

    No side yields to the client, which shares the cores: Ray would have its workers do so, and vLLM alone would not.
    """
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {"PYTHONPATH": os.pathsep.join([INSTANT, *known]), "RAY_worker_niceness": "0"} | more


@contextlib.contextmanager
def stock(name: str, more: dict[str, str]) -> Iterator[Side]:
    """Ray's own prefill/decode application."""
    with stock_up(name=name, more=_with_instant(more)) as side:
        yield side


@contextlib.contextmanager
def ours(name: str, more: dict[str, str]) -> Iterator[Side]:
    """The application that `diptych up` would deploy here, keys and Serve's settings included.

    With HAProxy's variables in `more`, by the way that `up` takes.
    Every prompt is prefilled remotely, as stock does: what `auto` saves by doing short ones here is another matter.
    """
    with tempfile.TemporaryDirectory(prefix="diptych-bench-") as directory:
        os.environ[STATE_DIR_ENV] = directory
        document = Document.model_validate({})
        paths = ServicePaths.of(document.name)
        paths.create()
        model = Model(resolve_model("embedded", None), "embedded", True)
        plan = make_plan(document, model, paths, lambda _: None)
        application = plan.serve_config["applications"][0]
        application["args"]["orchestrator"] = {"prefill": "always"}
        # Engines that compute nothing move nothing either: what carries it can't be proven.
        application["args"]["transport"] = {"allow_fallback": True}
        headers = {"authorization": f"Bearer {paths.api_key.read_text().strip()}"}
        served = service_environment(plan.run_id, plan.host, paths.ray_token)
        settings = {key: value for key, value in served.items() if key.startswith("RAY_SERVE_")}
        with ray_up(name, application, _with_instant(settings | more), headers) as side:
            yield side


@contextlib.contextmanager
def bare(name: str, more: dict[str, str]) -> Iterator[Side]:
    """Two vLLM servers behind the small proxy of `small_proxy`."""
    mark = Mark(uuid.uuid4().hex, Path(tempfile.gettempdir()) / "none")
    environment = variables(mark.run_id, _with_instant(more))
    proxy = [sys.executable, str(Path(__file__).with_name("small_proxy.py")), str(_PORTS["proxy"])]
    urls = [f"http://127.0.0.1:{_PORTS[phase]}" for phase in ("prefill", "decode")]
    commands = [_vllm("prefill"), _vllm("decode"), [*proxy, *urls]]
    try:
        for command in commands:
            subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        side = Side(name, f"http://127.0.0.1:{_PORTS['proxy']}", {}, mark)
        wait_for_first_token(side, 120.0)
        yield side
    finally:
        end_all(mark)


def _vllm(phase: str) -> list[str]:
    arguments = {
        "--model": str(resolve_model("embedded", None)),
        "--served-model-name": MODEL,
        "--port": str(_PORTS[phase]),
        "--host": "127.0.0.1",
        "--max-model-len": "8192",
        "--dtype": "float32",
        "--kv-transfer-config": json.dumps(kv_transfer(phase)),
    }
    flat = [word for pair in arguments.items() for word in pair]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flat, "--enforce-eager"]


Way = Callable[[str, dict[str, str]], AbstractContextManager[Side]]
WAYS: dict[str, tuple[Way, dict[str, str]]] = {
    "stock": (stock, {}),
    "stock, direct": (stock, DIRECT),
    "bare vLLM": (bare, {}),
    "diptych": (ours, dict(HAPROXY)),
    "diptych, Serve's proxy": (ours, {}),
}
