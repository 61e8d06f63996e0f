"""What the client is given: a trace or prompts of the user's own, and what they come to."""

import json
from pathlib import Path

import pytest

from diptych.bench.load import Load, Request
from diptych.bench.workload import WARM_UP_REQUESTS, OwnPrompts, Trace
from diptych.errors import DocumentError

MOONCAKE = """{"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}
{"timestamp": 3500, "input_length": 512, "output_length": 6, "hash_ids": [7]}
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "given.jsonl"
    file.write_text(text)
    return file


def test_a_trace_is_written_in_mooncakes_format(tmp_path: Path) -> None:
    arguments = Trace.of(Load(input_tokens=20, output_tokens=3, requests=1)).arguments(tmp_path)
    written = Path(arguments[arguments.index("--dataset-path") + 1])
    assert json.loads(written.read_text()) == {
        "timestamp": 0.0,
        "input_length": 20,
        "output_length": 3,
        "hash_ids": [0, 1],
    }


def test_a_trace_of_a_file_says_what_it_comes_to(tmp_path: Path) -> None:
    load = Trace.read(write(tmp_path, MOONCAKE)).load
    assert str(load) == "0.8 requests/s from given.jsonl"
    assert (load.input_tokens, load.output_tokens, load.requests) == (556, 6, 2)


def test_a_trace_whose_requests_come_all_at_once_is_one(tmp_path: Path) -> None:
    trace = Trace.read(write(tmp_path, MOONCAKE), limit=1)
    assert str(trace.load) == "1 at once from given.jsonl"


def test_another_run_has_other_tokens_with_the_same_shared_beginnings() -> None:
    trace = Trace.of(Load(input_tokens=64, shared_tokens=32, requests=4))
    one, other = trace.fresh(1), trace.fresh(2)
    assert not blocks(one) & blocks(other)
    assert {each.blocks[:2] for each in other.requests} == {other.requests[0].blocks[:2]}
    assert [each.at_s for each in other.requests] == [each.at_s for each in trace.requests]


def blocks(trace: Trace) -> set[int]:
    return {block for request in trace.requests for block in request.blocks}


def test_a_warm_up_is_a_few_requests_of_these_lengths_with_short_answers() -> None:
    trace = Trace(Load(), tuple(Request(float(n), 100 + n, 500, (n,)) for n in range(20)))
    warm_up = trace.warm_up()
    assert [each.input_tokens for each in warm_up.requests] == [100 + n for n in range(WARM_UP_REQUESTS)]
    assert {each.at_s for each in warm_up.requests} == {0.0}
    assert max(each.output_tokens for each in warm_up.requests) == 16
    assert warm_up.load.rate is None


def test_own_prompts_are_all_sent_at_the_rate_asked_for(tmp_path: Path) -> None:
    file = write(
        tmp_path, '{"prompt": "what is it?", "output_tokens": 5}\n\n{"prompt": "a", "output_tokens": 7}\n'
    )
    own = OwnPrompts.read(file, Load(rate=4.0, arrivals="fixed"))
    assert str(own.load) == "4 requests/s from given.jsonl"
    assert (own.load.requests, own.load.output_tokens, own.last_s) == (2, 6, 0.5)
    arguments = own.arguments(tmp_path)
    assert arguments[arguments.index("--request-rate") + 1] == "4.0"
    assert arguments[arguments.index("--burstiness") + 1] == "inf"
    assert own.fresh(3) == own
    assert own.warm_up().load.source == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a", "output_tokens": 5}\n{"prompt": "b"}\n', "line 2"),
        ('{"prompt": ["a"], "output_tokens": 5}\n', "line 1"),
        ('{"prompt": "a", "output_tokens": 0}\n', "line 1"),
        ("[]\n", "line 1"),
        ("nothing\n", "line 1"),
        ("\n", "holds no requests"),
    ],
)
def test_own_prompts_that_can_not_be_sent_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        OwnPrompts.read(write(tmp_path, text), Load())


def test_own_prompts_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="can't be read"):
        OwnPrompts.read(tmp_path / "none", Load())
