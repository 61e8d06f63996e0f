"""vLLM's own client for real, against an endpoint that answers as scripted; and what is said when the client fails."""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from diptych.bench import client
from diptych.bench.client import Sent, send
from diptych.bench.load import Load
from diptych.bench.tokens import FIRST, LAST, stand_in
from diptych.bench.workload import OwnPrompts, Trace
from diptych.endpoint import Endpoint
from diptych.errors import DiptychError, EndpointError, SetupError
from fakes.measured_endpoint import Answering, MeasuredEndpoint
from fakes.provable_endpoint import MODEL

LOAD = Load(input_tokens=100, output_tokens=6, rate=10.0, requests=16, shared_tokens=32)
SPOILT = {3: "refused", 6: "cut", 9: "ended", 12: "failed"}


class Run(NamedTuple):
    sent: Sent
    fake: MeasuredEndpoint
    trace: Trace


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One load, of which some answers go wrong."""
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("client")
    with MeasuredEndpoint() as fake:
        fake.answering = Answering(spoilt=SPOILT)
        trace = Trace.of(LOAD)
        sent = send(Endpoint(fake.url, fake.key_file(folder), MODEL), trace, stand_in(folder), folder)
        yield Run(sent, fake, trace)


def test_each_request_is_a_sample_with_its_times(run: Run) -> None:
    good = [sample for sample in run.sent.samples if not sample.error]
    assert len(run.sent.samples) == 16
    assert len(good) == 12
    assert all(sample.input_tokens == 100 and sample.output_tokens == 6 for sample in good)
    assert all(20 <= (sample.ttft_ms or 0) < 1000 for sample in good)
    assert all(len(sample.itl_ms) == 5 and 0 < (sample.tpot_ms or 0) < 500 for sample in good)


def test_refused_cut_ended_and_failed_answers_are_failures(run: Run) -> None:
    wrong = [sample.error for sample in run.sent.samples if sample.error]
    assert len(wrong) == 4
    assert sum("Service Unavailable" in error for error in wrong) == 1
    assert sum("the answer ended before its 6 tokens" in error for error in wrong) == 2
    assert any("payload" in error.lower() or "closed" in error.lower() for error in wrong)


def test_the_load_goes_on_as_long_as_it_says(run: Run) -> None:
    assert run.trace.last_s <= run.sent.lasted_s < run.trace.last_s + 3
    assert [sample.sent_s for sample in run.sent.samples] == pytest.approx(
        [request.at_s for request in run.trace.requests], abs=0.5
    )


def test_prompts_are_token_ids_of_the_lengths_asked_for_with_their_shared_beginnings(run: Run) -> None:
    prompts = [body["prompt"] for _, body in run.fake.completions]
    assert {len(prompt) for prompt in prompts} == {100}
    assert all(FIRST <= token < LAST for prompt in prompts for token in prompt)
    assert len({tuple(prompt[:32]) for prompt in prompts}) == 1
    assert len({tuple(prompt[32:48]) for prompt in prompts}) == 16


def test_answers_have_their_length_whatever_the_model_says(run: Run) -> None:
    for _, body in run.fake.completions:
        assert body["ignore_eos"] is True
        assert (body["max_tokens"], body["temperature"], body["stream"]) == (6, 0.0, True)


def test_own_prompts_are_sent_as_text(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    file = tmp_path / "own.jsonl"
    file.write_text(
        '{"prompt": "hello there", "output_tokens": 5}\n{"prompt": "what?", "output_tokens": 3}\n'
    )
    with MeasuredEndpoint() as fake:
        own = OwnPrompts.read(file, Load(rate=20.0, arrivals="fixed"))
        sent = send(Endpoint(fake.url, fake.key_file(tmp_path), MODEL), own, stand_in(tmp_path), tmp_path)
        bodies = [body for _, body in fake.completions]
    assert [sample.output_tokens for sample in sent.samples] == [5, 3]
    assert [body["prompt"] for body in bodies] == ["hello there", "what?"]
    assert "ignore_eos" not in bodies[0]


class Pretended:
    """A program in the client's place."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = monkeypatch
        self.pid = folder / "pid"

    def does(self, code: str) -> None:
        """Python code that has `results`, the file to write."""
        program = self.folder / "program"
        program.write_text(
            f"#!{sys.executable}\nimport json, os, sys, time, pathlib\n"
            "given = dict(zip(sys.argv, sys.argv[1:]))\n"
            "results = pathlib.Path(given['--result-dir'], given['--result-filename'])\n"
            f"pathlib.Path({str(self.pid)!r}).write_text(str(os.getpid()))\n{code}\n"
        )
        program.chmod(0o700)
        self._patch.setattr(client.sys, "executable", str(program))

    def send(self) -> Sent:
        key = self.folder / "key"
        key.write_text("dk-secret\n")
        trace = Trace.of(Load(input_tokens=16, output_tokens=2, rate=None, concurrency=2, requests=2))
        return send(Endpoint("http://127.0.0.1:9", key, MODEL), trace, self.folder, self.folder)


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    monkeypatch.setattr(client, "_LOOK_S", 0.02)
    return Pretended(tmp_path, monkeypatch)


def rows(**instead: object) -> str:
    told = {
        "start_times": [5.0, 6.0],
        "ttfts": [0.1, 0.2],
        "itls": [[0.01], [0.02]],
        "input_lens": [16, 16],
        "output_lens": [2, 2],
        "errors": ["", ""],
        "duration": 1.5,
    }
    return f"results.write_text(json.dumps({told | instead!r}))"


def test_results_are_read_and_the_texts_in_them_are_gone(pretended: Pretended) -> None:
    pretended.does(rows())
    sent = pretended.send()
    assert [sample.sent_s for sample in sent.samples] == [0.0, 1.0]
    assert sent.lasted_s == 1.5
    assert not (pretended.folder / "results.json").exists()


def test_the_key_is_in_the_environment_and_in_no_argument(pretended: Pretended) -> None:
    pretended.does(f"assert os.environ['OPENAI_API_KEY'] == 'dk-secret' not in ' '.join(sys.argv)\n{rows()}")
    pretended.send()


def test_when_nothing_was_answered_the_first_error_says_why(pretended: Pretended) -> None:
    pretended.does(rows(errors=["Too Many Requests", "Too Many Requests"]))
    with pytest.raises(EndpointError, match="No request was answered: Too Many Requests"):
        pretended.send()


def test_a_client_that_fails_has_its_last_words_told(pretended: Pretended) -> None:
    pretended.does("print('loading'); sys.exit('ValueError: no such tokenizer')")
    with pytest.raises(DiptychError, match="ended with code 1") as caught:
        pretended.send()
    assert "ValueError: no such tokenizer" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "code", ["print('done')", "results.write_text('{')", "results.write_text('{}')", rows(ttfts=[1])]
)
def test_results_that_can_not_be_read_are_told(pretended: Pretended, code: str) -> None:
    pretended.does(code)
    with pytest.raises(DiptychError, match="left no results that can be read"):
        pretended.send()


def test_a_client_that_does_not_end_is_ended(pretended: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_START_S", "_QUIET_S", "_EACH_S"):
        monkeypatch.setattr(client, name, 0.5)
    pretended.does("time.sleep(600)")
    with pytest.raises(DiptychError, match="did not end within"):
        pretended.send()
    assert not psutil.pid_exists(int(pretended.pid.read_text()))


def test_an_interrupt_ends_the_client_and_what_it_started(pretended: Pretended) -> None:
    pretended.does("os.fork(); print(os.getpid(), flush=True); time.sleep(600)")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            pretended.send()
    finally:
        signal.signal(signal.SIGALRM, before)
    pids = [int(line) for line in (pretended.folder / "client.log").read_text().split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 5
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_without_vllm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match="vLLM is not in this Python environment"):
        client.require_client()


def test_without_pandas_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        client.importlib.util, "find_spec", lambda name: None if name == "pandas" else object()
    )
    with pytest.raises(SetupError, match="pandas") as caught:
        client.require_client()
    assert "diptych[bench]" in (caught.value.hint or "")
