"""What the client is given to send: a trace, whose prompts are tokens at random, or prompts of the user's own."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from diptych.bench.load import BLOCK, Load, Request, trace
from diptych.bench.traces import read_trace
from diptych.errors import DocumentError

WARM_UP_REQUESTS = 8
_WARM_UP_AT_ONCE = 4
_WARM_UP_OUTPUT = 16
_IDS_PER_RUN = 1 << 48
"""More block ids than any trace has."""
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class Trace:
    """Requests at times of their own.

    Args:
        load: what they come to.
        requests: in the order of their times.
    """

    load: Load
    requests: tuple[Request, ...]

    @classmethod
    def of(cls, load: Load) -> "Trace":
        """The requests of a load."""
        return cls(load, tuple(trace(load)))

    @classmethod
    def read(
        cls, file: Path, *, limit: int | None = None, speed: float = 1.0, concurrency: int | None = None
    ) -> "Trace":
        """Those of a file; see `read_trace`.

        Raises:
            DocumentError: it can't be read, or is of no known format.
        """
        requests = tuple(read_trace(file, limit=limit, speed=speed))
        number, last_s = len(requests), requests[-1].at_s
        load = Load(
            input_tokens=round(mean(each.input_tokens for each in requests)),
            output_tokens=round(mean(each.output_tokens for each in requests)),
            rate=float(f"{number / last_s:.3g}") if last_s else None,
            concurrency=concurrency or (None if last_s else number),
            requests=number,
            source=file.name,
        )
        return cls(load, requests)

    @property
    def last_s(self) -> float:
        return self.requests[-1].at_s

    @property
    def output_tokens(self) -> list[int | None]:
        """Tokens that each answer must have."""
        return [each.output_tokens for each in self.requests]

    def fresh(self, run: int) -> "Trace":
        """The same with other tokens, which no engine has seen in another run; what is shared within it stays so."""
        shift = run * _IDS_PER_RUN
        moved = (replace(each, blocks=tuple(shift + one for one in each.blocks)) for each in self.requests)
        return replace(self, requests=tuple(moved))

    def warm_up(self) -> "Trace":
        """A few requests of these lengths, all at once, with short answers."""
        few = tuple(
            replace(each, at_s=0.0, output_tokens=min(each.output_tokens, _WARM_UP_OUTPUT))
            for each in self.requests[:WARM_UP_REQUESTS]
        )
        load = replace(self.load, rate=None, concurrency=_WARM_UP_AT_ONCE, requests=len(few))
        return Trace(load, few)

    def arguments(self, folder: Path) -> list[str]:
        """The client's arguments for it; it is written to the folder, in Mooncake's format."""
        file = folder / "trace.jsonl"
        file.write_text("".join(json.dumps(each.to_json()) + "\n" for each in self.requests))
        return [
            *("--dataset-name", "timed_trace", "--dataset-path", str(file)),
            *("--timed-trace-chunk-hash-size", str(BLOCK), "--num-prompts", str(len(self.requests))),
        ]


@dataclass(frozen=True)
class OwnPrompts:
    """A file of JSON lines, each `{"prompt": "…", "output_tokens": 100}`, all of which are sent.

    Args:
        load: its rate, arrivals and concurrency hold; its lengths sum up what the file has, tokens of prompts by a
            guess.
    """

    load: Load
    lines: tuple[str, ...]

    @classmethod
    def read(cls, file: Path, load: Load) -> "OwnPrompts":
        """Look the file over.

        Raises:
            DocumentError: it can't be read, or a line is no such object; the message names it.
        """
        try:
            lines = file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise DocumentError(f"The requests {file} can't be read: {why}.") from None
        found = [_lengths(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if not found:
            raise DocumentError(f"{file} holds no requests.")
        summed = replace(
            load,
            input_tokens=max(1, round(mean(characters for characters, _ in found) / _CHARACTERS_PER_TOKEN)),
            output_tokens=round(mean(output for _, output in found)),
            requests=len(found),
            shared_tokens=0,
            turns=1,
            source=file.name,
        )
        return cls(summed, tuple(line for line in lines if line.strip()))

    @property
    def last_s(self) -> float:
        return len(self.lines) / self.load.rate if self.load.rate else 0.0

    @property
    def output_tokens(self) -> list[int | None]:
        """The model may end each answer before its length."""
        return [None] * len(self.lines)

    def fresh(self, run: int) -> "OwnPrompts":
        """The same: a user's prompts are what they are, and an engine that has seen them may know them."""
        return self

    def warm_up(self) -> Trace:
        """A few requests of tokens at random, about as long."""
        return Trace.of(replace(self.load, requests=WARM_UP_REQUESTS, source="")).warm_up()

    def arguments(self, folder: Path) -> list[str]:
        """The client's arguments for them; it wants the name to end in `.jsonl`."""
        file = folder / "requests.jsonl"
        file.write_text("\n".join(self.lines) + "\n", "utf-8")
        return [
            *("--dataset-name", "custom", "--dataset-path", str(file), "--num-prompts", str(len(self.lines))),
            *("--custom-output-len", "-1", "--skip-chat-template", "--disable-shuffle"),
            *("--request-rate", str(self.load.rate) if self.load.rate else "inf"),
            *("--burstiness", "1" if self.load.arrivals == "poisson" else "inf"),
        ]


Workload = Trace | OwnPrompts


def _lengths(file: Path, number: int, line: str) -> tuple[int, int]:
    """A line's characters of prompt and tokens of answer."""
    try:
        entry = json.loads(line)
        prompt, output = entry["prompt"], int(entry["output_tokens"])
    except (ValueError, KeyError, TypeError):
        prompt, output = None, 0
    if not isinstance(prompt, str) or not prompt or output < 1:
        raise DocumentError(
            f"{file}, line {number}: no request that can be sent.",
            'Each line is an object like {"prompt": "…", "output_tokens": 100}.',
        )
    return len(prompt), output
