"""`diptych bench` as it is typed: numbers by phase, JSON, the report, an interrupt, and odd cases in words."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from cli.commands import process_of
from diptych.bench.load import Load
from diptych.bench.results import Parts, Result, Sample
from diptych.bench.slo import Slo
from diptych.cli.bench_tables import print_result
from diptych.remembering import STATE_DIR_ENV, write_private
from fakes import probed
from fakes.measured_endpoint import KV_BYTES_PER_TOKEN, MeasuredEndpoint
from fakes.provable_endpoint import ADMIN_KEY, MODEL, probing
from fakes.state import remember

LOAD = ("--rate", "20", "--requests", "12", "--input", "64", "--output", "5")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[MeasuredEndpoint]:
    """An endpoint, and the state of a service called `one` that is there."""
    with MeasuredEndpoint() as server:
        there(server)
        yield server


def there(server: MeasuredEndpoint) -> None:
    paths = remember("one", url=server.url, model=MODEL)
    write_private(paths.admin_key, f"{ADMIN_KEY} admin\n")


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(**process_of("bench", *arguments), capture_output=True, timeout=240)


class Measured(NamedTuple):
    done: "subprocess.CompletedProcess[str]"
    told: dict[str, Any]
    page: Path
    fake: MeasuredEndpoint


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """One run with JSON and a report, of which the first request of the load is refused."""
    pytest.importorskip("vllm")
    pytest.importorskip("plotly")
    folder = tmp_path_factory.mktemp("bench")
    page = folder / "report.html"
    with pytest.MonkeyPatch.context() as patch, MeasuredEndpoint() as server:
        patch.setenv(STATE_DIR_ENV, str(folder / "state"))
        there(server)
        server.answering.spoilt = {8: "refused"}  # after the warm-up's eight
        done = run(*LOAD, "--slo", "ttft=5s", "--json", "--html", str(page))
        assert done.stdout, done.stderr
        yield Measured(done, json.loads(done.stdout)[0], page, server)


def test_standard_output_is_json_alone_and_progress_is_elsewhere(measured: Measured) -> None:
    assert measured.done.stdout.startswith("[")
    assert [line.split("] ")[1] for line in measured.done.stderr.splitlines() if "started" in line] == [
        "proof of the split started",
        "warm-up started",
        "load started: 20 requests/s of 64/5",
        "records started",
    ]


def test_what_the_client_saw_is_in_it_failures_too(measured: Measured) -> None:
    told = measured.told
    assert told["requests"] == {"sent": 12, "answered": 11, "errors": {"Service Unavailable": 1}}
    assert told["topology"] == "split"
    assert told["goodput"] == pytest.approx(11 / 12, abs=1e-3)
    assert told["ttft_ms"]["p50"] >= 20
    assert told["tpot_ms"]["p50"] > 0
    assert "1 of 12 requests failed" in told["doubts"]
    assert measured.done.returncode == 1


def test_the_parts_are_those_of_the_load_and_not_of_the_warm_up(measured: Measured) -> None:
    phases = measured.told["phases"]
    assert phases["paths"] == {"remote": 12}
    assert phases["kv_transfers"] == 11
    assert phases["kv_transfer_bytes"] == 11 * 64 * KV_BYTES_PER_TOKEN
    assert phases["prefill_ms"]["count"] == 11
    assert sum(phases["ttft_parts_mean_ms"].values()) == pytest.approx(
        phases["service_ttft_ms"]["mean"], rel=0.2
    )


def test_the_load_came_after_a_warm_up_of_other_tokens(measured: Measured) -> None:
    bodies = [body for _, body in measured.fake.completions]
    assert len(bodies) == 8 + 12
    assert len({tuple(body["prompt"]) for body in bodies}) == 20


def test_the_report_is_written_and_said(measured: Measured) -> None:
    assert f"The report is in {measured.page}" in measured.done.stderr
    assert "plotly" in measured.page.read_text()


def test_without_json_a_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    record = {
        "path": "remote",
        "prefill_ms": 60.0,
        "queue_ms": 10.0,
        "kv_transfer_ms": 2.0,
        "kv_transfer_bytes": 2_000_000,
        "ttft_ms": 75.0,
    }
    good, failed = Sample(0.0, 8, 3, 100.0, (10.0, 20.0)), Sample(0.1, 8, 0, None, (), "Too Many Requests")
    print_result(
        Result(
            load=Load(rate=2.0),
            topology="split",
            model="m",
            began_at=0.0,
            lasted_s=10.0,
            samples=(good, failed),
            parts=Parts((record,), {"decode": 0.25}),
            slo=Slo.parse("ttft=5s"),
            devices="2 × g6.8xlarge",
            usd_per_hour=1.08,
            doubts=("it lasted 10 s",),
        )
    )
    told = capsys.readouterr().out
    rows = {line[:32].strip(): line[32:].split() for line in told.splitlines()[1:9]}
    assert rows["TTFT, ms"] == ["100"] * 4
    assert rows["prefill queue"] == ["10"] * 4
    assert rows["prefill"] == ["50"] * 4
    assert rows["KV transfer"] == ["2"] * 4
    assert rows["TPOT, ms"] == ["15"] * 4
    assert rows["KV transfer, GB/s"] == ["1"] * 4
    assert told.splitlines()[9:] == [
        "1 of 2 answered in 10 s: 0.10 requests/s, 1 tokens/s in, 0 out.",
        "1 failed: Too Many Requests",
        "Paths: 1 remote.",
        "KV transfers: 1, 1.9 MiB.",
        "KV cache in use at most: decode 25%.",
        "50% of requests within TTFT ≤ 5000 ms.",
        "A million output tokens cost 1000.00 USD at this load, by the list price of 2 × g6.8xlarge.",
        "doubtful: it lasted 10 s",
    ]


def test_an_interrupt_leaves_no_process(fake: MeasuredEndpoint) -> None:
    pytest.importorskip("vllm")
    process = subprocess.Popen(
        **process_of("bench", *LOAD),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 60
    while not (children := psutil.Process(process.pid).children(recursive=True)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert not any(map(psutil.pid_exists, (child.pid for child in children)))


def test_a_split_that_is_not_real_is_not_measured(fake: MeasuredEndpoint) -> None:
    pytest.importorskip("vllm")
    fake.behaviour.probe = probing(probed.recomputed)
    done = run(*LOAD)
    assert done.returncode != 0
    assert "These numbers would not be those of a split" in done.stderr
    assert fake.completions == []


def test_an_endpoint_without_records_is_told_before_the_load(fake: MeasuredEndpoint) -> None:
    pytest.importorskip("vllm")
    fake.answering.has_records = False
    done = run(*LOAD)
    assert "keeps no records" in done.stderr
    assert fake.completions == []


def test_an_endpoint_that_refuses_everything_is_said_to(fake: MeasuredEndpoint) -> None:
    pytest.importorskip("vllm")
    fake.behaviour.down = True
    done = run(*LOAD)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-2].startswith("Error: ")
    assert "restarting an engine" in done.stderr


def test_without_a_service_there_is_nothing_to_measure() -> None:
    pytest.importorskip("vllm")
    done = run()
    assert done.returncode != 0
    assert "No service called" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--preset", "rags"), "There is no preset 'rags'"),
        (("--rate", "fast"), "'fast' are no rates"),
        (("--rate", "0"), "sends nothing"),
        (("--arrivals", "sometimes"), "There are no arrivals 'sometimes'"),
        (("--slo", "ttft"), "no bound of an SLO"),
        (("--speed", "2"), "--speed is for a trace"),
        (("--trace", "none.jsonl"), "can't be read"),
        (("--trace", "none.jsonl", "--rate", "1"), "--rate would do nothing"),
        (("--prompts", "none.jsonl", "--input", "5"), "--input would do nothing"),
        (("--html", "no/such/folder.html"), "no such folder"),
        (("--name", "one", "compare"), "A comparison goes by a document"),
        (("compare", "--ratio", "1:0"), "'1:0' is no ratio"),
        (("compare", "--set", "decode.num_replicas=0"), "decode.num_replicas"),
    ],
)
def test_what_can_not_be_meant_is_refused_at_once(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stdout == ""
