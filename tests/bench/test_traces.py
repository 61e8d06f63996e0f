"""Traces of real traffic, read."""

from pathlib import Path

import pytest

from diptych.bench.load import BLOCK
from diptych.bench.traces import MOONCAKE_BLOCK, read_trace
from diptych.errors import DocumentError

MOONCAKE = """{"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}
{"timestamp": 3500, "input_length": 512, "output_length": 6, "hash_ids": [7]}
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "trace"
    file.write_text(text)
    return file


def test_mooncakes_blocks_stay_shared(tmp_path: Path) -> None:
    first, second = read_trace(write(tmp_path, MOONCAKE))
    assert (first.at_s, second.at_s) == (0.0, 2.5)
    assert first.blocks[: MOONCAKE_BLOCK // BLOCK] == second.blocks
    assert len(first.blocks) == -(-600 // BLOCK)


def test_azures_prompts_share_nothing(tmp_path: Path) -> None:
    first, second = read_trace(write(tmp_path, AZURE))
    assert (first.input_tokens, second.output_tokens) == (4808, 8)
    assert second.at_s == pytest.approx(0.052, abs=1e-4)
    assert not set(first.blocks) & set(second.blocks)


def test_a_trace_can_be_cut_and_sped_up(tmp_path: Path) -> None:
    file = write(tmp_path, MOONCAKE)
    assert len(read_trace(file, limit=1)) == 1
    assert read_trace(file, speed=2)[1].at_s == 1.25


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"timestamp": 0, "input_length": 5}\n', "line 1"),
        (MOONCAKE + "not json\n", "line 3"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1}\n', "line 1"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "line 2"),
        ("TIMESTAMP,Tokens\n2023-11-16 18:17:03,1\n", "line 2"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_trace(write(tmp_path, text))
    assert line in caught.value.message


def test_an_empty_trace_and_one_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="holds no requests"):
        read_trace(write(tmp_path, "\n"))
    with pytest.raises(DocumentError, match="can't be read"):
        read_trace(tmp_path / "none")
