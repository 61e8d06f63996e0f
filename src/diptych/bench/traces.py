"""Traces of real traffic: Mooncake's JSON lines, and Azure's CSV of LLM requests."""

import csv
import itertools
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from diptych.bench.load import BLOCK, Request
from diptych.errors import DocumentError

MOONCAKE_BLOCK = 512
"""Tokens that one of Mooncake's hash ids stands for."""

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_trace(file: Path, *, limit: int | None = None, speed: float = 1.0) -> list[Request]:
    """The requests of a trace file, times counted from its first.

    Args:
        limit: the first so many requests only.
        speed: 2 replays it twice as fast.

    Raises:
        DocumentError: it can't be read, or is of no known format; the message names the line.
    """
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise DocumentError(f"The trace {file} can't be read: {why}.") from None
    first = next((line for line in lines if line.strip()), "")
    read = _azure if first.replace(" ", "").startswith(_AZURE[0]) else _mooncake
    requests = sorted(itertools.islice(read(file, lines), limit), key=lambda request: request.at_s)
    if not requests:
        raise DocumentError(f"The trace {file} holds no requests.")
    start = requests[0].at_s
    return [
        Request((each.at_s - start) / speed, each.input_tokens, each.output_tokens, each.blocks)
        for each in requests
    ]


def _mooncake(file: Path, lines: list[str]) -> Iterator[Request]:
    """`{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}` per line.

    Each of Mooncake's blocks becomes as many of ours; a request without `hash_ids` shares nothing.
    """
    each = MOONCAKE_BLOCK // BLOCK
    fresh = itertools.count(1 << 40)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry: dict[str, Any] = json.loads(line)
            tokens, answer = int(entry["input_length"]), int(entry["output_length"])
            at_s = float(entry["timestamp"]) / 1000
            ids = [int(one) for one in entry.get("hash_ids") or ()]
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(file, number, error) from None
        blocks = itertools.chain((one * each + part for one in ids for part in range(each)), fresh)
        yield _request(file, number, at_s, tokens, answer, blocks)


def _azure(file: Path, lines: list[str]) -> Iterator[Request]:
    """`TIMESTAMP,ContextTokens,GeneratedTokens`: prompts of which nothing is known share nothing."""
    fresh = itertools.count()
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            moment, tokens, answer = (row[column] for column in _AZURE)
            # Microseconds are what `datetime` keeps; Azure writes seven digits.
            at_s = datetime.fromisoformat(moment.strip()[:26]).timestamp()
            counts = int(tokens), int(answer)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _unreadable(file, number, error) from None
        yield _request(file, number, at_s, *counts, fresh)


def _request(file: Path, line: int, at_s: float, tokens: int, answer: int, blocks: Iterator[int]) -> Request:
    if tokens < 1 or answer < 1:
        raise DocumentError(f"{file}, line {line}: a request of {tokens} tokens with {answer} in the answer.")
    return Request(at_s, tokens, answer, tuple(itertools.islice(blocks, -(-tokens // BLOCK))))


def _unreadable(file: Path, line: int, error: Exception) -> DocumentError:
    return DocumentError(
        f"{file}, line {line}: no request that can be read ({type(error).__name__}: {error}).",
        "Mooncake's JSON lines (timestamp in ms, input_length, output_length, hash_ids) or Azure's CSV "
        f"({', '.join(_AZURE)}) are.",
    )
