"""What tests of the placement need: services with settings of their own, and requests that leave the way to them."""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from engines.service import NAME, START_TIMEOUT_S, Service, leftovers, seconds_until
from engines.test_kv_transfer import unseen_prompt

PORT = 18441
COMPLETIONS = "/v1/completions"
REMOTE = {"x-diptych-prefill": "remote"}
_ANSWER = "answer: "


class PlacedService(Service):
    """A service with settings of its own."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{PORT}"

    @contextlib.contextmanager
    def serve(self) -> Iterator[Callable[[str], Any]]:
        """Have Ray Serve do things, by a process beside the service (`serve_tool`) that is ready to do them."""
        raylet = next(process for process in self.processes() if process.name() == "raylet")
        address = next(
            part.partition("=")[2] for part in raylet.cmdline() if part.startswith("--gcs-address=")
        )
        keeper = next(each for each in self.processes() if "diptych.local.keeper" in each.cmdline())
        command = [sys.executable, str(Path(__file__).with_name("serve_tool.py"))]
        command += [address, str(self.directory / "plan.json")]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=keeper.environ(), stdin=pipe, stdout=pipe, text=True) as tool:

            def answer() -> Any:
                line = next((line for line in tool.stdout or () if line.startswith(_ANSWER)), None)
                assert line, "serve_tool broke off"
                return json.loads(line.removeprefix(_ANSWER))

            def do(word: str) -> Any:
                print(word, file=tool.stdin, flush=True)
                return answer()

            answer()
            try:
                yield do
            finally:
                tool.kill()

    def readiness(self) -> dict[str, Any]:
        """What the decode replica says of itself."""
        with self.client(key=self.admin_key) as client:
            readiness: dict[str, Any] = client.get("/diptych/v1/status").json()["readiness"]
        return readiness

    def prefill(self) -> dict[str, dict[str, Any]]:
        """The prefill replicas by name, as they tell of themselves."""
        return {each["replica"]: each for each in self.phases()["prefill"]}

    def ready(self) -> list[str]:
        """The names of those that are well."""
        return [name for name, each in self.prefill().items() if each["ready"]]


@contextlib.contextmanager
def placed(settings: dict[str, Any]) -> Iterator[PlacedService]:
    """A service with these settings; nothing of it may be left at the end."""
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with tempfile.TemporaryDirectory(prefix="dt-") as directory:
        service = PlacedService(Path(directory))
        began = time.monotonic()
        up = service.run("up", "--name", NAME, "--port", str(PORT), *words, timeout_s=START_TIMEOUT_S)
        assert up.returncode == 0, up.stderr
        print(f"\nup after {time.monotonic() - began:.1f} s")
        try:
            yield service
        finally:
            service.down()
            assert leftovers(service) == []


@dataclass
class Told:
    """What became of one request."""

    status: int
    seconds: float
    ended_at: float
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = self.body["diptych"]
        return record

    @property
    def path(self) -> str | None:
        return self.headers.get("x-diptych-path")

    @property
    def error(self) -> dict[str, Any]:
        """The error, which has to be one in OpenAI's words."""
        error: dict[str, Any] = self.body["error"]
        assert {"message", "type", "code", "param"} <= error.keys(), self.body
        assert error["code"] == self.status
        return error

    def __str__(self) -> str:
        return f"{self.status} {self.path or ''} {self.seconds:.1f} s"


def ask(
    service: Service,
    prompt: list[int],
    max_tokens: int = 1,
    *,
    key: str | None = None,
    headers: dict[str, str] | None = None,
) -> Told:
    """A greedy completion whose way the service chooses, unless a header says otherwise."""
    own = {"authorization": f"Bearer {key or service.key}", "x-diptych-timing": "include", **(headers or {})}
    body = {"model": service.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    began = time.monotonic()
    response = httpx.post(
        service.url + COMPLETIONS, json=body | {"ignore_eos": True}, headers=own, timeout=90, trust_env=False
    )
    now = time.monotonic()
    return Told(response.status_code, now - began, now, dict(response.headers), response.json())


@contextlib.contextmanager
def asking(
    service: Service, prompts: Sequence[list[int]], headers: dict[str, str] | None = None
) -> Iterator["list[Future[Told]]"]:
    """Requests of one token each at the same time; at the end all have been answered."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        yield [pool.submit(ask, service, prompt, headers=headers) for prompt in prompts]


@contextlib.contextmanager
def held(
    service: Service,
    lengths: Sequence[int],
    prompt_tokens: int = 4,
    *,
    begun: bool = True,
    headers: dict[str, str] | None = None,
    key: str | None = None,
) -> Iterator[None]:
    """Streams of answers of those lengths, left at the end.

    Args:
        begun: wait until each has its first token.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    own = {"authorization": f"Bearer {key or service.key}", **(headers or {})}

    async def follow(length: int, first: threading.Event) -> None:
        body = {"model": service.model, "prompt": unseen_prompt(prompt_tokens), "max_tokens": length}
        body |= {"stream": True, "ignore_eos": True}
        client = httpx.AsyncClient(base_url=service.url, headers=own, timeout=90, trust_env=False)
        async with client, client.stream("POST", COMPLETIONS, json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for _ in response.aiter_raw():
                first.set()

    streams = [(length, threading.Event()) for length in lengths]
    under_way = [asyncio.run_coroutine_threadsafe(follow(*stream), loop) for stream in streams]
    try:
        if begun:
            ends = [future.done for future in under_way]
            seconds_until(
                lambda: all(first.is_set() for _, first in streams) or any(end() for end in ends), 60
            )
            assert all(first.is_set() for _, first in streams), [
                each.exception() for each in under_way if each.done()
            ]
        yield
    finally:
        for each in under_way:
            each.cancel()
        seconds_until(lambda: not asyncio.all_tasks(loop), 10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def busy(service: PlacedService, tokens: int) -> None:
    """Wait until so many tokens wait at prefill."""
    seconds_until(lambda: _at_prefill(service) >= tokens, 10, every_s=0.05)


def idle(service: PlacedService) -> None:
    """Wait until nothing waits at a prefill replica that is well."""
    seconds_until(lambda: bool(service.ready()) and _at_prefill(service) == 0, 30)


def waiting_for_decode(service: PlacedService, prompts: int) -> None:
    """Wait until so many prompts wait for a place in decode's engine."""
    seconds_until(lambda: service.counters()["decode"]["requests_waiting"] == prompts, 20, every_s=0.05)


def _at_prefill(service: PlacedService) -> int:
    return sum(each["waiting_tokens"] for each in service.phases()["prefill"])
