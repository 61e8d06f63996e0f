"""A dead or stopped engine is noticed, said, survived and replaced; and how long each took."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from engines.service import Service, kill, repeatedly, seconds_until

pytestmark = [pytest.mark.engines, pytest.mark.long]

NOTICED_WITHIN_S = 10.0
REPLACED_WITHIN_S = 90.0
ANSWERED_WITHIN_S = 15.0


@dataclass
class Asked:
    """Answers to requests sent one after another: seconds each took, its status, its path, its text."""

    rows: list[tuple[float, int, str | None, str]] = field(default_factory=list)

    def statuses(self) -> set[int]:
        return {status for _, status, _, _ in self.rows}

    def paths(self) -> set[str | None]:
        return {path for _, status, path, _ in self.rows if status == 200}


@contextmanager
def asking(service: Service) -> Iterator[Asked]:
    """Send short requests all the while; each must be answered in time, in words, and never with a traceback."""
    asked = Asked()

    def ask() -> None:
        began = time.monotonic()
        try:
            response = service.post(
                "/v1/completions", timeout_s=ANSWERED_WITHIN_S, prompt=f"At {began} the", max_tokens=4
            )
            asked.rows.append(
                (
                    time.monotonic() - began,
                    response.status_code,
                    response.headers.get("x-diptych-path"),
                    response.text,
                )
            )
            if response.status_code == 503:
                assert "retry-after" in response.headers
        except (httpx.HTTPError, AssertionError) as error:
            asked.rows.append((time.monotonic() - began, -1, None, repr(error)))

    with repeatedly(ask, every_s=0.5):
        yield asked


def status_names(service: Service, phase: str) -> float:
    """Seconds until `status` says not ready and names the phase."""

    def noticed() -> bool:
        status = service.status()
        return not status["ready"] and status["blocker"].startswith(f"{phase}: ")

    return seconds_until(noticed, NOTICED_WITHIN_S)


def ready_again(service: Service) -> float:
    return seconds_until(lambda: bool(service.status()["ready"]), REPLACED_WITHIN_S, every_s=1.0)


def report(what: str, noticed: float, ready: float, asked: Asked) -> None:
    slowest = max((row[0] for row in asked.rows), default=0.0)
    took = f"noticed after {noticed:.1f} s, ready again after {noticed + ready:.1f} s"
    answers = (
        f"{len(asked.rows)} requests meanwhile: {sorted(asked.statuses())}, {sorted(map(str, asked.paths()))}"
    )
    print(f"\n{what}: {took}; {answers}, slowest {slowest:.1f} s")


def check_answers(asked: Asked, allowed: set[int]) -> None:
    assert asked.rows
    assert [row for row in asked.rows if row[1] not in allowed] == []
    assert not any("Traceback" in row[3] for row in asked.rows)


def check_transfers_again(service: Service) -> None:
    assert [service.complete(f"{n} and then")["diptych"]["path"] for n in range(3)] == ["remote"] * 3


def test_a_killed_prefill_engine_is_replaced_while_decode_answers_everything(service: Service) -> None:
    engine = service.engine("prefill")
    kill(engine)
    with asking(service) as asked:
        noticed = status_names(service, "prefill")
        ready = ready_again(service)
    report("prefill killed", noticed, ready, asked)
    check_answers(asked, {200})
    assert asked.paths() & {"local-no-prefill", "recovered"}
    assert asked.paths() <= {"local-no-prefill", "recovered", "remote"}
    check_transfers_again(service)
    assert service.engine("prefill").pid != engine.pid


def decode_killed_and_replaced(service: Service) -> Asked:
    """Kill decode's engine and wait until the service is ready again: what requests became meanwhile."""
    kill(service.engine("decode"))
    with asking(service) as asked:
        noticed = status_names(service, "decode")
        ready = ready_again(service)
    report("decode killed", noticed, ready, asked)
    check_answers(asked, {200, 503})
    return asked


def test_a_killed_decode_engine_is_replaced_and_requests_are_told_when_to_come_back(service: Service) -> None:
    decode_killed_and_replaced(service)
    check_transfers_again(service)


def test_a_stopped_decode_engine_with_work_waiting_is_dead_too(service: Service) -> None:
    engine = service.engine("decode")
    waiting: list[httpx.Response | Exception] = []

    def wait_for_an_answer() -> None:
        try:
            waiting.append(service.post("/v1/completions", prompt="Count:", max_tokens=400, ignore_eos=True))
        except httpx.HTTPError as error:
            waiting.append(error)

    thread = threading.Thread(target=wait_for_an_answer)
    thread.start()
    time.sleep(3.0)
    kill(engine, signal.SIGSTOP)
    stopped_at = time.monotonic()
    with asking(service) as asked:
        noticed = status_names(service, "decode")
        thread.join(ANSWERED_WITHIN_S)
        told = time.monotonic() - stopped_at
        ready = ready_again(service)
    report("decode stopped", noticed, ready + told, asked)
    print(f"the waiting request was told after {told:.1f} s")
    assert not thread.is_alive()
    assert isinstance(waiting[0], httpx.Response)
    assert waiting[0].status_code == 503
    check_answers(asked, {200, 503})
    check_transfers_again(service)
    assert not engine.is_running()
