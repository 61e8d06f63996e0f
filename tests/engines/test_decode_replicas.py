"""Two decode replicas on real engines: one that refuses prompts gets none while the other takes them, by either way."""

import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from engines.contradicting import FILE_ENV
from engines.placed import PORT, PlacedService, is_alive
from engines.service import NAME, START_TIMEOUT_S, kill, leftovers, repeatedly, seconds_until

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.load]

SETTINGS = {
    "engine_kwargs.max_model_len": 1024,
    "decode.num_replicas": 2,
    "decode.engine_kwargs.worker_extension_cls": "engines.contradicting.Extension",
    "orchestrator.canary_period_s": 2,
}
PROVEN_AGAIN_WITHIN_S = 30.0
LEFT_OUT_WITHIN_S = 6.0
"""Its engine is seen dead within a second, and the way hears of it in two or three; Serve takes it away after eight."""
REPLACED_WITHIN_S = 150.0
REQUESTS = 12


class TwoDecode(PlacedService):
    """A service with two decode replicas, whose engines contradict the proof as a test says."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._contradicting = root / "contradicting"
        self._contradicting.touch()
        path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment |= {FILE_ENV: str(self._contradicting), "PYTHONPATH": os.pathsep.join(path)}

    def decode(self) -> dict[str, dict[str, Any]]:
        """The decode replicas by name, as they tell of themselves."""
        return {each["replica"]: each for each in self.phases()["decode"]}

    @contextlib.contextmanager
    def contradicting(self, engines: Sequence[int]) -> Iterator[None]:
        """Have these engines contradict the proof for as long as this lasts."""
        self._contradicting.write_text("\n".join(map(str, engines)))
        try:
            yield
        finally:
            self._contradicting.write_text("")
            seconds_until(lambda: self.readiness()["state"] == "ready", PROVEN_AGAIN_WITHIN_S)

    def ask(self) -> tuple[int, str]:
        """Of one short request: its status, and which decode replica answered, or what was said instead."""
        answer = self.post("/v1/completions", prompt=f"At {time.monotonic()} the", max_tokens=2)
        if answer.status_code == 200:
            return 200, str(answer.json()["diptych"]["decode_replica"])
        assert int(answer.headers["retry-after"]) > 0
        return answer.status_code, str(answer.json()["error"]["message"])

    def answering(self) -> "Counter[tuple[int, str]]":
        """What becomes of requests, one after another."""
        return Counter(self.ask() for _ in range(REQUESTS))

    def told_ready(self) -> tuple[int, str]:
        """What `/ready` says to anybody."""
        answer = httpx.get(f"{self.url}/ready", trust_env=False)
        return answer.status_code, answer.json()["state"]


@pytest.fixture(scope="module", params=["haproxy", "proxy"])
def two(request: pytest.FixtureRequest) -> Iterator[TwoDecode]:
    settings = SETTINGS | {"access.ingress": request.param}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with tempfile.TemporaryDirectory(prefix="dt-") as directory:
        service = TwoDecode(Path(directory))
        up = service.run("up", "--name", NAME, "--port", str(PORT), *words, timeout_s=START_TIMEOUT_S)
        assert up.returncode == 0, up.stderr
        try:
            seconds_until(lambda: len(service.decode()) == 2, 60.0)
            yield service
        finally:
            service.down()
            assert leftovers(service) == []


def test_one_that_contradicts_its_proof_gets_no_prompts_and_stays(two: TwoDecode) -> None:
    before = two.decode()
    victim, other = before
    assert set(two.answering()) == {(200, victim), (200, other)}
    with two.contradicting([before[victim]["engine_pid"]]):
        seconds_until(lambda: two.told_ready() == (200, "degraded"), PROVEN_AGAIN_WITHIN_S)
        time.sleep(LEFT_OUT_WITHIN_S)
        assert two.answering() == {(200, other): REQUESTS}
        readiness = two.readiness()
        assert readiness["state"] == "degraded"
        assert readiness["why"].startswith(f"replica {victim}: UCX was asked for, and LIBFABRIC")
        assert readiness["transport"]["state"] == "contradicted"
        assert {pair["decode_replica"] for pair in readiness["pairs"]} == {victim, other}
        assert {two.told_ready() for _ in range(REQUESTS)} == {(200, "degraded")}
    seconds_until(lambda: set(two.answering()) == {(200, victim), (200, other)}, 20.0)
    assert {name: each["pid"] for name, each in two.decode().items()} == {
        name: each["pid"] for name, each in before.items()
    }


def test_where_both_contradict_clients_hear_why_and_an_admin_is_answered(two: TwoDecode) -> None:
    engines = [each["engine_pid"] for each in two.decode().values()]
    with two.contradicting(engines):
        seconds_until(lambda: two.told_ready() == (503, "contradicted"), PROVEN_AGAIN_WITHIN_S)
        time.sleep(LEFT_OUT_WITHIN_S)
        told = two.answering()
        assert {status for status, _ in told} == {503}
        assert all(said.startswith("The service is not ready: UCX was asked for") for _, said in told)
        with two.client(key=two.admin_key) as admin:
            body = {"model": two.model, "prompt": "Count: one,", "max_tokens": 200, "ignore_eos": True}
            assert admin.post("/v1/completions", json=body).status_code == 200
            assert len(admin.post("/diptych/v1/probe", json={"tokens": [40]}).json()["pairs"]) == 2


def test_one_whose_engine_is_killed_gets_no_prompts_until_it_is_replaced(two: TwoDecode) -> None:
    before = two.decode()
    victim, other = before
    seen: list[tuple[float, int, str]] = []
    began = time.monotonic()

    def ask() -> None:
        at = time.monotonic() - began
        seen.append((at, *two.ask()))

    with repeatedly(ask, every_s=0.2):
        kill(psutil.Process(before[victim]["engine_pid"]))
        seconds_until(lambda: not is_alive(before[victim]["pid"]), REPLACED_WITHIN_S)
        gone_s = time.monotonic() - began
    back_s = gone_s + seconds_until(lambda: len(two.decode()) == 2, REPLACED_WITHIN_S, every_s=1)
    refused = [at for at, status, _ in seen if status != 200]
    print(f"\n{len(seen)} requests, {len(refused)} refused, the last after {max(refused, default=0):.1f} s;")
    print(f"the replica gone after {gone_s:.1f} s, two again after {back_s:.1f} s")
    assert {status for _, status, _ in seen} <= {200, 503}
    assert max(refused, default=0.0) < LEFT_OUT_WITHIN_S
    assert other in {name for at, _, name in seen if at > LEFT_OUT_WITHIN_S}
