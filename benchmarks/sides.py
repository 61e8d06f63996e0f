"""The services under comparison, each brought up as its user would, and what they cost.

Memory is PSS, summed over every process that a side started, Ray's included, so that pages shared between
processes count once. Processor time is what the kernel counted for those processes.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from diptych.local.paths import STATE_DIR_ENV, ServicePaths
from diptych.local.processes import MARK_ENV, Mark, end_all, marked
from diptych.local.state import load
from diptych.models.hub import resolve_model

MODEL = "smollm2-135m-instruct"
RAY_URL = "http://127.0.0.1:8000"


@dataclass
class Side:
    """One service under comparison, up and answering."""

    name: str
    url: str
    headers: dict[str, str]
    mark: Mark
    first_token_s: float = 0.0

    def memory_bytes(self) -> int:
        """PSS of every process of this side."""
        total = 0
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total

    def cpu_seconds(self) -> float:
        """Processor time that the living processes of this side have used."""
        return sum(self.cpu_by_process().values())

    def cpu_by_process(self) -> dict[str, float]:
        """The same for each process, by its number and title."""
        used = {}
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                times, title = process.cpu_times(), " ".join(process.cmdline())[:60]
                used[f"{process.pid} {title}"] = times.user + times.system
        return used

    def idle_share(self, after_s: float = 10.0, for_s: float = 10.0) -> float:
        """The share of one core that is used from `after_s` seconds after the last request on."""
        time.sleep(after_s)
        before = self.cpu_seconds()
        time.sleep(for_s)
        return (self.cpu_seconds() - before) / for_s

    def _processes(self) -> list[psutil.Process]:
        found = []
        for process in marked(self.mark):
            with contextlib.suppress(psutil.Error):
                found.append(psutil.Process(process.pid))
        return found


def variables(run_id: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a side: the caller's without Ray's settings, the mark of the run, and `more`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    fixed = {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    return kept | fixed | {MARK_ENV: run_id} | dict(more or {})


@contextlib.contextmanager
def diptych_up(name: str, document: dict[str, Any] | None = None) -> Iterator[Side]:
    """`diptych up` as a user runs it, with a state directory of its own."""
    with tempfile.TemporaryDirectory(prefix="diptych-bench-") as directory:
        environment = os.environ | {STATE_DIR_ENV: directory}
        path = Path(directory) / "document.yaml"
        path.write_text(json.dumps(document or {}))
        command = [sys.executable, "-m", "diptych"]
        started = time.monotonic()
        subprocess.run([*command, "up", str(path)], env=environment, check=True, stdout=subprocess.DEVNULL)
        os.environ[STATE_DIR_ENV] = directory
        paths = ServicePaths.of("diptych")
        state = load(paths)
        assert state is not None
        headers = {"authorization": f"Bearer {paths.api_key.read_text().strip()}"}
        side = Side(name, state.url, headers, Mark(state.run_id, paths.ray))
        try:
            wait_for_first_token(side)
            side.first_token_s = time.monotonic() - started
            yield side
        finally:
            subprocess.run([*command, "down"], env=environment, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def ray_up(
    name: str,
    application: dict[str, Any],
    more: Mapping[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Iterator[Side]:
    """An application from a Serve YAML, by `ray start` and `serve deploy`, with `more` in its environment."""
    with tempfile.TemporaryDirectory(prefix="serve-") as directory:
        config = Path(directory) / "serve.yaml"
        config.write_text(json.dumps({"applications": [{"route_prefix": "/", **application}]}))
        mark = Mark(uuid.uuid4().hex, Path(tempfile.gettempdir()) / f"ray-{uuid.uuid4().hex[:8]}")
        ray, serve = (str(Path(sys.executable).with_name(tool)) for tool in ("ray", "serve"))
        environment = variables(mark.run_id, more)
        started = time.monotonic()
        try:
            for command in (
                [ray, "start", "--head", "--num-cpus=8", f"--temp-dir={mark.ray_directory}"],
                [serve, "deploy", str(config)],
            ):
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                subprocess.run(command, env=environment, check=True, **quiet)  # type: ignore[call-overload]
            side = Side(name, RAY_URL, headers or {}, mark)
            wait_for_first_token(side)
            side.first_token_s = time.monotonic() - started
            yield side
        finally:
            end_all(mark)


@contextlib.contextmanager
def stock_up(
    kv_cache_gib: int = 1, name: str = "stock", more: Mapping[str, str] | None = None
) -> Iterator[Side]:
    """Ray's own prefill/decode application."""
    cores = sorted(os.sched_getaffinity(0))
    half = max(len(cores) // 2, 1)
    model = str(resolve_model("embedded", None))
    args = {
        "prefill_config": _stock_config("prefill", model, cores[:half], kv_cache_gib),
        "decode_config": _stock_config("decode", model, cores[half:] or cores, kv_cache_gib),
    }
    application = {"name": "stock", "import_path": "ray.serve.llm:build_pd_openai_app", "args": args}
    with ray_up(name, application, more) as side:
        yield side


def _stock_config(phase: str, model: str, cores: list[int], kv_cache_gib: int) -> dict[str, Any]:
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in cores),
    }
    return {
        "model_loading_config": {"model_id": MODEL, "model_source": model},
        "accelerator_config": {"kind": "cpu"},
        "placement_group_config": {"bundles": [{"CPU": 1}]},
        "runtime_env": {"env_vars": variables},
        "engine_kwargs": {
            "max_model_len": 8192,
            "dtype": "float32",
            "enforce_eager": True,
            "kv_transfer_config": kv_transfer(phase),
        },
        "deployment_config": {"num_replicas": 1},
    }


def kv_transfer(phase: str) -> dict[str, Any]:
    """vLLM's own connector, on a CPU."""
    return {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_buffer_device": "cpu",
        "engine_id": phase,
    }


def wait_for_first_token(side: Side, deadline_s: float = 600.0) -> None:
    """Ask until one token comes back."""
    body = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.post(f"{side.url}/v1/completions", json=body, headers=side.headers, timeout=60.0)
            if answer.status_code == 200:
                return
        time.sleep(0.3)
    raise SystemExit(f"{side.name} gave no token within {deadline_s:.0f} s")
