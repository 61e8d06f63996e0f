"""What the benchmarks share: the services under comparison, streams with the time of each token, and costs.

Both sides of a comparison run one after the other in one run, on the same cores, each alone on the machine.
Memory is PSS, summed over every process that a side started, Ray's included, so that pages shared between
processes count once. Processor time is what the kernel counted for those processes.
"""

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from diptych.local.paths import STATE_DIR_ENV, ServicePaths
from diptych.local.processes import MARK_ENV, Mark, end_all, marked
from diptych.local.state import load
from diptych.models.hub import resolve_model

MODEL = "smollm2-135m-instruct"
WORDS = tuple("river stone lamp seven north paper cloud harbour green violin window forty silver".split())  # noqa: SIM905


@dataclass
class Side:
    """One service under comparison, up and answering."""

    name: str
    url: str
    headers: dict[str, str]
    mark: Mark
    first_token_s: float

    def memory_bytes(self) -> int:
        """PSS of every process of this side."""
        total = 0
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total

    def cpu_seconds(self) -> float:
        """Processor time that the living processes of this side have used."""
        total = 0.0
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

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
        side = Side(name, state.url, headers, Mark(state.run_id, paths.ray), 0.0)
        try:
            wait_for_first_token(side)
            side.first_token_s = time.monotonic() - started
            yield side
        finally:
            subprocess.run([*command, "down"], env=environment, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def stock_up(kv_cache_gib: int = 1) -> Iterator[Side]:
    """Ray's own prefill/decode application from a Serve YAML, by `ray start` and `serve deploy`."""
    cores = sorted(os.sched_getaffinity(0))
    half = max(len(cores) // 2, 1)
    model = str(resolve_model("embedded", None))
    args = {
        "prefill_config": _stock_config("prefill", model, cores[:half], kv_cache_gib),
        "decode_config": _stock_config("decode", model, cores[half:] or cores, kv_cache_gib),
    }
    application = {
        "name": "stock",
        "import_path": "ray.serve.llm:build_pd_openai_app",
        "route_prefix": "/",
        "args": args,
    }
    with tempfile.TemporaryDirectory(prefix="stock-") as directory:
        config = Path(directory) / "serve.yaml"
        config.write_text(json.dumps({"applications": [application]}))
        ray_directory = Path(tempfile.gettempdir()) / f"ray-{uuid.uuid4().hex[:8]}"
        run_id = uuid.uuid4().hex
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        environment = kept | {MARK_ENV: run_id, "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        environment["RAY_AUTH_MODE"] = "disabled"
        mark = Mark(run_id, ray_directory)
        ray, serve = (str(Path(sys.executable).with_name(tool)) for tool in ("ray", "serve"))
        started = time.monotonic()
        try:
            start = [ray, "start", "--head", "--num-cpus=8", f"--temp-dir={ray_directory}"]
            quiet = {
                "env": environment,
                "check": True,
                "stdout": subprocess.DEVNULL,
                "stderr": subprocess.DEVNULL,
            }
            subprocess.run(start, **quiet)  # type: ignore[call-overload]
            subprocess.run([serve, "deploy", str(config)], **quiet)  # type: ignore[call-overload]
            side = Side("stock", "http://127.0.0.1:8000", {}, mark, 0.0)
            wait_for_first_token(side)
            side.first_token_s = time.monotonic() - started
            yield side
        finally:
            end_all(mark)


def _stock_config(phase: str, model: str, cores: list[int], kv_cache_gib: int) -> dict[str, Any]:
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in cores),
    }
    transfer = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_buffer_device": "cpu",
        "engine_id": phase,
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
            "kv_transfer_config": transfer,
        },
        "deployment_config": {"num_replicas": 1},
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


@dataclass
class Stream:
    """One streamed answer: when it was sent and when each token came, in seconds."""

    sent: float
    tokens: list[float] = field(default_factory=list)

    @property
    def ttft_ms(self) -> float:
        return (self.tokens[0] - self.sent) * 1e3

    @property
    def tpot_ms(self) -> float:
        return (self.tokens[-1] - self.tokens[0]) / (len(self.tokens) - 1) * 1e3

    @property
    def itl_ms(self) -> list[float]:
        return [(b - a) * 1e3 for a, b in zip(self.tokens, self.tokens[1:], strict=False)]


async def stream(client: httpx.AsyncClient, prompt: str, max_tokens: int) -> Stream:
    """Stream one greedy answer of exactly `max_tokens` tokens."""
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    answer = Stream(time.monotonic())
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                answer.tokens.append(time.monotonic())
    return answer


def client_of(side: Side) -> httpx.AsyncClient:
    """A client for many requests at a time."""
    return httpx.AsyncClient(base_url=side.url, headers=side.headers, timeout=600.0, trust_env=False)


def prompt_of(words: int, seed: int) -> str:
    """A prompt of about `words` tokens that no cache knows."""
    step = 1 + seed % 11
    return f"Note {seed}. " + " ".join(WORDS[(i * step + seed) % len(WORDS)] for i in range(words))


def percentile(values: list[float], share: float) -> float:
    """The value that `share` (0 to 1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def median(values: list[float]) -> float:
    """The middle value."""
    return statistics.median(values)


def run(coroutine: Any) -> Any:
    """Run a coroutine; Ctrl-C ends the benchmark and, through the context managers, its services."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return asyncio.run(coroutine)
