"""What rehearsals of failures need: a service whose KV link a test holds, requests, and what became of each."""

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from engines.link import FOLDER_ENV, Link
from engines.service import NAME, PHASES, START_TIMEOUT_S, Service, repeatedly, seconds_until

ANSWERED_WITHIN_S = 45.0
"""No request takes longer, whatever happens to the engines under it: a replica is replaced in less."""
WELL_WITHIN_S = 90.0
BASELINE_WITHIN_S = 20.0
LEASE_S = 10
PORT = 18457
MAX_TOKENS = 12

_SETTINGS = {
    "kv_transfer.lease_s": LEASE_S,
    # Longer than the lease on purpose: what is read after it must not be believed all the same.
    "orchestrator.kv_transfer_deadline_s": 15,
    # What prefill can't do decode does, on a machine of whatever speed.
    "orchestrator.recovery_backlog_s": 60,
    # Small, so that what the lease gives up is soon written over; and room for one whole sequence.
    "prefill.kv_cache_memory": "120MiB",
    "engine_kwargs.max_model_len": 2048,
    "prefill.engine_kwargs.worker_extension_cls": "engines.held_connector.Extension",
    "decode.engine_kwargs.worker_extension_cls": "engines.held_connector.Extension",
}
_SENTENCE = (
    "The harbour lay quiet under the morning fog, and the old keeper counted the boats that had come home. "
)
_TOKENS_OF_SENTENCE = 21


class ChaosService(Service):
    """The service with `held_connector` in its engines."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        folder = root / "link"
        folder.mkdir()
        self.link = Link(folder)
        path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment |= {FOLDER_ENV: str(folder), "PYTHONPATH": os.pathsep.join(path)}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{PORT}"

    def up(self) -> Any:
        settings = [word for name, value in _SETTINGS.items() for word in ("--set", f"{name}={value}")]
        return self.run("up", "--name", NAME, "--port", str(PORT), *settings, timeout_s=START_TIMEOUT_S)

    def process(self, words: str) -> Any:
        """One of Ray's processes, by what it is called."""
        return next(each for each in self.processes() if words in " ".join(each.cmdline()[:1]))

    def pids(self, name: str = "engine_pid") -> dict[str, int]:
        """The engines' process ids by phase; with "pid" those of their replicas."""
        return {phase: replicas[0][name] for phase, replicas in self.phases().items()}

    def readiness(self) -> str:
        """What decode says of itself: ready, degraded, starting or down."""
        with self.client(key=self.admin_key) as client:
            state: str = client.get("/diptych/v1/status").json()["readiness"]["state"]
        return state

    def undisturbed(self, prompt: str, max_tokens: int = MAX_TOKENS) -> str:
        """The text that a prompt gives while nothing fails, and from no cache."""
        text: str = self.complete(prompt, max_tokens, cache_salt=uuid.uuid4().hex)["choices"][0]["text"]
        return text


def letter(name: str, tokens: int) -> str:
    """A prompt that begins like no other, of about so many tokens."""
    return f"Letter {name}. " + _SENTENCE * max(1, tokens // _TOKENS_OF_SENTENCE)


@dataclass
class Reply:
    """What became of one request.

    `status` is None where the connection broke, or was left; `whole` says whether a text came to its end.
    """

    prompt: str
    streamed: bool
    status: int | None = None
    seconds: float = 0.0
    text: str = ""
    whole: bool = False
    path: str | None = None
    body: str = ""
    retry_after: str | None = None
    problem: str | None = None

    def __str__(self) -> str:
        kind = "stream" if self.streamed else "whole"
        told = " ".join(filter(None, (self.path, self.problem and f"({self.problem})")))
        return f"{kind} {self.status} {told} {self.seconds:.1f} s"


def fetch(
    service: Service,
    prompt: str,
    *,
    streamed: bool,
    max_tokens: int = MAX_TOKENS,
    leave_after_s: float | None = None,
) -> Reply:
    """Send a greedy completion and follow it to its end, or leave after some seconds."""
    reply, began = Reply(prompt, streamed), time.monotonic()
    body = {"model": service.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    try:
        with service.client(timeout_s=leave_after_s or ANSWERED_WITHIN_S) as client:
            with client.stream("POST", "/v1/completions", json=body | {"stream": streamed}) as response:
                reply.path = response.headers.get("x-diptych-path")
                reply.retry_after = response.headers.get("retry-after")
                for text in response.iter_text():
                    reply.body += text
                    if leave_after_s is not None and time.monotonic() - began > leave_after_s:
                        return reply
            reply.status = response.status_code
            _read(reply)
    except httpx.HTTPError as error:
        reply.problem = repr(error)
    finally:
        reply.seconds = time.monotonic() - began
    return reply


def _read(reply: Reply) -> None:
    if reply.status != 200:
        return
    if not reply.streamed:
        reply.text, reply.whole = json.loads(reply.body)["choices"][0]["text"], True
        return
    data = [line.removeprefix("data: ") for line in reply.body.splitlines() if line.startswith("data: ")]
    reply.whole = data[-1:] == ["[DONE]"]
    chunks = [json.loads(one) for one in data if one != "[DONE]"]
    reply.text = "".join(choice["text"] for chunk in chunks for choice in chunk.get("choices", ()))
    # A stream's headers leave with its first token, before it is known what becomes of the KV transfer.
    told = [chunk["diptych"]["path"] for chunk in chunks if chunk.get("diptych")]
    reply.path = told[-1] if told else reply.path
    reply.problem = next((chunk["error"]["message"] for chunk in chunks if chunk.get("error")), None)


def complaint(reply: Reply, text: str, *, may_break: bool = False) -> str | None:
    """What is wrong with a reply, given the text its prompt gives undisturbed: wrong text, silence, or wrong words.

    Args:
        may_break: a stream that has begun may lose its connection: who wrote it is gone.
    """
    if may_break and reply.streamed and reply.status is None and reply.body:
        return None
    if reply.status == 200:
        if reply.whole and not reply.problem:  # vLLM ends a stream by [DONE] after an error, too
            return None if reply.text == text else f"{reply}: {reply.text!r} instead of {text!r}"
        told = reply.problem and text.startswith(reply.text)
        return None if told else f"{reply}: broke off without a word"
    if reply.status not in (503, 504):
        return f"{reply}: {reply.body[:200]}"
    try:
        error = json.loads(reply.body)["error"]
    except (ValueError, KeyError, TypeError):
        return f"{reply}: not an error in OpenAI's words: {reply.body[:200]}"
    if not {"message", "type", "code", "param"} <= error.keys() or "Traceback" in reply.body:
        return f"{reply}: {error}"
    return None if reply.retry_after else f"{reply}: no Retry-After"


@dataclass
class Asked:
    """Requests under way."""

    futures: list["Future[Reply]"] = field(default_factory=list)

    @property
    def replies(self) -> list[Reply]:
        return [each.result() for each in self.futures]


@contextlib.contextmanager
def asking(service: Service, prompts: Sequence[str]) -> Iterator[Asked]:
    """Each prompt asked for twice at the same time, streamed and not; at the end all have been answered."""
    with ThreadPoolExecutor(2 * len(prompts)) as pool:
        asked = Asked()
        for prompt in prompts:
            for streamed in (True, False):
                asked.futures.append(pool.submit(fetch, service, prompt, streamed=streamed))
        yield asked


@contextlib.contextmanager
def steadily(service: Service, prompt: str) -> Iterator[list[Reply]]:
    """One request after another all the while."""
    replies: list[Reply] = []

    def ask() -> None:
        replies.append(fetch(service, prompt, streamed=len(replies) % 2 == 0))

    with repeatedly(ask, every_s=0.3):
        yield replies


def reached(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    """Wait for a moment of a rehearsal."""
    seconds_until(condition, within_s, every_s=0.02)


def prefill_computes(service: Service) -> bool:
    return bool(service.phases()["prefill"][0]["waiting_tokens"])


def well_again(service: Service) -> float:
    """Seconds until both engines are well and KV cache crosses; else fails the test and says what is wrong."""
    began, wrong = time.monotonic(), ""
    while (wrong := _wrong(service)) is not None:
        assert time.monotonic() - began < WELL_WITHIN_S, f"not well within {WELL_WITHIN_S:.0f} s: {wrong}"
        time.sleep(0.5)
    return time.monotonic() - began


def _wrong(service: Service) -> str | None:
    try:
        phases = service.phases()
    except (httpx.HTTPError, ValueError, KeyError) as error:
        return f"no status: {error!r}"
    for phase in PHASES:
        if not phases.get(phase) or not phases[phase][0]["ready"]:
            return f"{phase} is not ready: {[each['problem'] for each in phases.get(phase, ())]}"
    reply = fetch(service, "Are you well?", streamed=False)
    return None if reply.path == "remote" else f"{reply} {reply.body[-600:]}"


def at_baseline(service: Service) -> float:
    """Seconds until neither engine holds KV cache for anybody."""

    def is_idle() -> bool:
        return all(each["kv_cache_usage"] == 0 for each in service.counters().values())

    return seconds_until(is_idle, BASELINE_WITHIN_S, every_s=0.5)
