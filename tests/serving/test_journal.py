"""The line per request: complete, in the replica's log, and without a word of the client's."""

import json
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray.serve.llm")

from ray.serve._private.logging_utils import configure_component_logger
from ray.serve.schema import LoggingConfig

from diptych.serving import journal
from diptych.serving.record import Leg, Record, Refusal
from diptych.serving.transfers import Transfer

DOC = Path(__file__).parents[2] / "docs/metrics.md"
SERVE = logging.getLogger("ray.serve")


def answered() -> Record:
    """A request of one prompt that went to prefill and came back."""
    began = time.monotonic()
    leg = Leg(
        path="remote",
        prefill_ms=81.25,
        queue_ms=3.5,
        prefill_replica="prefill-7",
        transfer=Transfer(2_800_000, 0.0123, 0.0004, 60),
        prompt_tokens=100,
        cached_tokens=32,
        begun=True,
        attempts=1,
        handed_at=began + 0.09,
        decode_queue_ms=14.5,
        decode_compute_ms=9.25,
        first_token_at=began + 0.125,
        output_tokens=8,
        finish_reason="stop",
    )
    return Record("decode-1", [leg], route="/v1/chat/completions", began_at=began)


@pytest.fixture
def replica_log(tmp_path: Path) -> Iterator[Path]:
    """A replica's log as Ray Serve sets it up, in text."""
    yield from _log(tmp_path, "TEXT")


@pytest.fixture
def replica_log_in_json(tmp_path: Path) -> Iterator[Path]:
    """The same where Serve is told to write JSON."""
    yield from _log(tmp_path, "JSON")


def _log(folder: Path, encoding: str, level: str = "INFO") -> Iterator[Path]:
    before = (SERVE.handlers[:], SERVE.level, SERVE.propagate)
    configure_component_logger(
        component_name="Decode:model",
        component_id="abc123",
        logging_config=LoggingConfig(logs_dir=str(folder), encoding=encoding, log_level=level),
        max_bytes=2**20,
        backup_count=1,
    )
    try:
        (file,) = folder.glob("*.log")
        yield file
    finally:
        for handler in SERVE.handlers:
            handler.close()
        SERVE.handlers[:], SERVE.level, SERVE.propagate = before


def test_a_request_leaves_one_line_in_the_replicas_log(replica_log: Path) -> None:
    journal.write(answered(), 200, 0.5)
    (line,) = replica_log.read_text().splitlines()
    before, _, told = line.partition(" -- ")
    assert re.fullmatch(r"INFO \S+ \S+ Decode:model abc123", before)
    said = json.loads(told)
    assert said.pop("request") != ""
    assert said == {
        "route": "/v1/chat/completions",
        "status": 200,
        "path": "remote",
        "why": None,
        "decode_replica": "decode-1",
        "prefill_replica": "prefill-7",
        "attempts": 1,
        "prompts": 1,
        "prompt_tokens": 100,
        "cached_tokens": 32,
        "uncached_tokens": 68,
        "output_tokens": 8,
        "finish_reasons": ["stop"],
        "prefill_ms": 81.25,
        "queue_ms": 3.5,
        "kv_transfer_ms": 12.3,
        "kv_transfer_post_ms": 0.4,
        "kv_transfer_bytes": 2_800_000,
        "kv_transfer_failed": False,
        "decode_queue_ms": 14.5,
        "decode_compute_ms": 9.25,
        "first_token_from": "decode",
        "ttft_ms": 125.0,
        "total_ms": 500.0,
        "priority": 0,
        "refusal": None,
    }


def test_where_serve_writes_json_the_line_is_its_message(replica_log_in_json: Path) -> None:
    journal.write(answered(), 200, 0.5)
    (line,) = replica_log_in_json.read_text().splitlines()
    assert json.loads(json.loads(line)["message"])["path"] == "remote"


def test_the_log_level_of_serve_holds_for_the_lines(tmp_path: Path) -> None:
    for file in _log(tmp_path, "TEXT", "WARNING"):
        journal.write(answered(), 200, 0.5)
        assert file.read_text() == ""


def test_the_clients_own_request_id_stays_out(replica_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.serve import context

    told = context._RequestContext(route="/v1/chat/completions", request_id="chosen-by-a-client")
    monkeypatch.setattr(context, "_get_serve_request_context", lambda: told)
    SERVE.info("a line of Serve's own")
    assert "chosen-by-a-client" in replica_log.read_text()  # what would be there but for us
    journal.write(answered(), 200, 0.5)
    assert "chosen-by-a-client" not in replica_log.read_text().splitlines()[-1]


def test_a_refused_request_says_so_and_nothing_of_its_message(replica_log: Path) -> None:
    record = Record("decode-1", route="/v1/completions", priority=5)
    record.refusal = Refusal(429, "The queue is full: tell it nobody", "overloaded_error", 3)
    journal.write(record, 429, 0.001)
    text = replica_log.read_text()
    assert "tell it nobody" not in text
    said = json.loads(text.partition(" -- ")[2])
    assert (said["status"], said["refusal"], said["priority"]) == (429, "overloaded_error", 5)
    assert (said["path"], said["prompt_tokens"], said["ttft_ms"], said["finish_reasons"]) == (
        None,
        None,
        None,
        [],
    )


def test_a_path_that_a_client_made_up_is_not_in_the_line() -> None:
    record = Record(route="/v1/responses/my-secret")
    assert journal.entry(record, 404, 0.0)["route"] == "/v1/responses/{response_id}"
    assert journal.entry(Record(route="/v1/chat/my-secret"), 404, 0.0)["route"] == "other"


def test_several_prompts_are_summed_up() -> None:
    record = answered()
    record.legs.append(
        Leg(path="recovered", why="prefill failed", prompt_tokens=10, cached_tokens=0, attempts=2)
    )
    said = journal.entry(record, 200, 1.0)
    assert (said["path"], said["why"], said["prompts"], said["attempts"]) == (
        "recovered",
        "prefill failed",
        2,
        3,
    )
    assert (said["prompt_tokens"], said["cached_tokens"], said["uncached_tokens"]) == (110, 32, 78)


def test_every_field_is_told_of_in_the_documentation() -> None:
    section = DOC.read_text().partition("## The log line")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert told == list(journal.entry(answered(), 200, 0.5))
