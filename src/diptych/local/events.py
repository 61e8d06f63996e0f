"""What the keeper tells those who wait: one JSON object per line, appended to a file that outlives them."""

import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from diptych.progress import Event, Kind

STAGES = ("Ray", "prefill engine", "decode engine", "handshake", "first KV transfer")
STAGES_AGGREGATED = ("Ray", "engine", "first answer")


class EventLog:
    """The file of events of one run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, kind: Kind, stage: str = "", text: str = "", hint: str = "") -> None:
        """Add an event; a full disk must not stop the keeper from cleaning up, so failing to write is no error."""
        event = Event(kind, stage, text, hint, time.time())
        with contextlib.suppress(OSError), self._path.open("a") as file:
            file.write(json.dumps(asdict(event)) + "\n")

    def follow(self, poll_s: float = 0.1) -> Iterator[Event | None]:
        """Every event from the first on, and None whenever there is no new one for `poll_s` seconds. Never ends."""
        position, pending = 0, ""
        while True:
            if self._path.exists():
                with self._path.open() as file:
                    file.seek(position)
                    pending += file.read()
                    position = file.tell()
            *lines, pending = pending.split("\n")
            yield from _parsed(lines)
            if not lines:
                yield None
                time.sleep(poll_s)

    def so_far(self) -> list[Event]:
        """The events until now; none when the file is gone."""
        try:
            return list(_parsed(self._path.read_text().splitlines()))
        except OSError:
            return []


def _parsed(lines: Iterable[str]) -> Iterator[Event]:
    """The events of whole lines; a line that a full disk cut short is skipped."""
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):
            yield Event(**json.loads(line))
