"""A configuration for Ray Serve LLM's own prefill/decode application, with no word changed but `import_path`."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from diptych.models.hub import resolve_model
from engines.questions import QUESTIONS
from engines.service import MARK, START_TIMEOUT_S, seconds_until
from engines.test_kv_transfer import BLOCK_TOKENS, BYTES_PER_TOKEN, unseen_prompt

pytestmark = [pytest.mark.engines, pytest.mark.long]

READY_WITHIN_S = START_TIMEOUT_S
"""Ray's own application takes 75 to 90 s on two cores of its own; decode without a proof is never ready."""

STOCK = """\
http_options: {{host: 127.0.0.1, port: {port}}}
applications:
- name: pd
  import_path: {import_path}
  route_prefix: /
  args:
    prefill_config: &phase
      model_loading_config: {{model_id: smol, model_source: {model}}}
      accelerator_config: {{kind: cpu}}
      placement_group_config: {{bundles: [{{CPU: 1}}]}}
      runtime_env:
        env_vars: {{VLLM_CPU_KVCACHE_SPACE: "1", VLLM_CPU_OMP_THREADS_BIND: nobind, OMP_NUM_THREADS: "1"}}
      engine_kwargs:
        max_model_len: 2048
        dtype: float32
        enforce_eager: true
        kv_transfer_config: {{kv_connector: NixlConnector, kv_role: kv_both, kv_buffer_device: cpu}}
      deployment_config: {{num_replicas: 1, ray_actor_options: {{num_cpus: 0}}}}
    decode_config: *phase
    ingress_deployment_config: {{max_ongoing_requests: 64}}
"""


@pytest.fixture(scope="module")
def started(reference: object) -> Iterator[tuple[str, float]]:
    """The endpoint's address, and the seconds after which it was ready."""
    with tempfile.TemporaryDirectory(prefix="dt-") as directory:
        port, run_id, file = _free_port(), uuid.uuid4().hex, Path(directory) / "stock.yaml"
        importing = "diptych.serving.builder:build_app"
        file.write_text(STOCK.format(port=port, import_path=importing, model=resolve_model("embedded")))
        own = {MARK: run_id, "RAY_TMPDIR": directory, "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "ray.serve.scripts", "run", str(file)]
        log = Path(directory) / "serve.log"
        began = time.monotonic()
        with log.open("wb") as output:
            serving = subprocess.Popen(command, env=os.environ | own, stdout=output, stderr=output)
        try:
            yield f"http://127.0.0.1:{port}", _ready(f"http://127.0.0.1:{port}", serving, log, began)
        finally:
            _end(serving, run_id)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _ready(url: str, serving: "subprocess.Popen[bytes]", log: Path, began: float) -> float:
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/ready", trust_env=False).status_code == 200:
                return time.monotonic() - began
        said = log.read_text(errors="replace")[-4000:]
        assert serving.poll() is None, said
        assert time.monotonic() - began < READY_WITHIN_S, said
        time.sleep(0.5)


def _end(serving: "subprocess.Popen[bytes]", run_id: str) -> None:
    """Have Serve end what it started, and Ray with it."""
    serving.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        serving.wait(60)
    serving.kill()
    with contextlib.suppress(AssertionError):
        seconds_until(lambda: not _marked(run_id), 15.0)
    for process in _marked(run_id):
        with contextlib.suppress(psutil.Error):
            process.kill()


def _marked(run_id: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == run_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _complete(url: str, prompt: str | list[int], **more: Any) -> httpx.Response:
    body = {"model": "smol", "prompt": prompt, "temperature": 0, "max_tokens": 24} | more
    headers = {"x-diptych-prefill": "remote", "x-diptych-timing": "include"}
    response = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=120, trust_env=False)
    assert response.status_code == 200, response.text
    return response


def test_it_is_ready_within_the_usual_time(started: tuple[str, float]) -> None:
    print(f"\nready after {started[1]:.1f} s")
    assert started[1] < READY_WITHIN_S


def test_the_headers_of_an_answer_tell_how_many_bytes_of_kv_cache_crossed(started: tuple[str, float]) -> None:
    response = _complete(started[0], unseen_prompt(200))
    assert response.headers["x-diptych-path"] == "remote"
    assert int(response.headers["x-diptych-kv-transfer-bytes"]) == 2 * BLOCK_TOKENS * BYTES_PER_TOKEN
    assert float(response.headers["x-diptych-kv-transfer-ms"]) > 0


def test_the_answers_are_those_of_one_engine(
    started: tuple[str, float], reference: list[dict[str, str]]
) -> None:
    said = [_complete(started[0], question).json() for question in QUESTIONS[:4]]
    assert [each["diptych"]["path"] for each in said] == ["remote"] * 4
    assert [each["choices"][0]["text"] for each in said] == [row["completion"] for row in reference[:4]]
