"""What NIXL and vLLM's connector wrote into a process's own output: its rails, and warnings of known kinds.

NIXL's C++ part writes to the process's standard error, which in a Ray worker is a file. The last thing to be believed
about a transport, and the only place where NIXL says which provider its rails use (NIXL_LOG_LEVEL=INFO).
"""

import re
import stat
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_BYTES = 8 * 2**20
"""Read at one look at most; of more only the end is read."""
_FORGET_AFTER_S = 600.0
_LINE_LENGTH = 300
_STREAMS = (1, 2)

_RAILS = re.compile(r"[Cc]reated (\d+) rails using provider[=:] ?([\w;-]+)")
_KINDS = (
    ("ucx-on-efa", re.compile(r"EFA\(s\) were detected, but the UCX backend was configured")),
    ("tcp-fallback", re.compile(r"devices \(TCP fallback\)")),
    ("no-fi-hmem", re.compile(r"provider does not support FI_HMEM|No provider found with FI_HMEM")),
    (
        "missing-plugin",
        re.compile(r"due to the missing plugin|[Ff]ailed to load plugin|No plugins available"),
    ),
    ("cuda-not-registered", re.compile(r"Failed to register CUDA buffer with the EFA device")),
    ("handshake-failed", re.compile(r"NIXL transfer failure: (?:push_)?handshake\w*failed")),
    ("transfer-failed", re.compile(r"NIXL transfer failure: (?:transfer_|notification_)\w+")),
)
"""Kinds of warnings. What is not among them is nobody's business: lines may tell of requests."""
_OF_AN_EVENT = frozenset({"handshake-failed", "transfer-failed"})
"""Kinds that tell of one event, not of how the process was set up: forgotten after a while."""


@dataclass
class NixlLog:
    """Follows the output of one process, from its beginning on.

    Args:
        descriptors: where the process's descriptors are (`/proc/self/fd`); output that is no file is not read.
    """

    descriptors: Path = Path("/proc/self/fd")
    rails: dict[str, Any] | None = None
    _read: dict[tuple[int, int], int] = field(default_factory=dict)
    _cut: dict[tuple[int, int], bytes] = field(default_factory=dict)
    _warnings: "OrderedDict[str, tuple[str, float]]" = field(default_factory=OrderedDict)

    def look(self, now: float | None = None) -> None:
        """Read what came since the last look."""
        now = time.monotonic() if now is None else now
        files: set[tuple[int, int]] = set()
        for number in _STREAMS:
            stream = self.descriptors / str(number)
            try:
                found = stream.stat()
                file = (found.st_dev, found.st_ino)
                if stat.S_ISREG(found.st_mode) and file not in files:
                    files.add(file)
                    self._take(self._new_text(stream, file, found.st_size), now)
            except OSError:  # a file that was removed, or may not be opened again
                continue

    def warnings(self, now: float | None = None) -> list[dict[str, str]]:
        """The newest line of each kind."""
        now = time.monotonic() if now is None else now
        return [
            {"kind": kind, "line": line}
            for kind, (line, at) in self._warnings.items()
            if kind not in _OF_AN_EVENT or now - at < _FORGET_AFTER_S
        ]

    def _new_text(self, stream: Path, file: tuple[int, int], size: int) -> str:
        """What came since the last look, up to its last whole line."""
        begins = self._read.get(file, 0)
        if size < begins:  # it was cut
            begins = 0
        held = self._cut.pop(file, b"")
        if size - begins > MOST_BYTES:
            begins, held = size - MOST_BYTES, b""
        with stream.open("rb") as opened:
            opened.seek(begins)
            text = opened.read(MOST_BYTES)
        self._read[file] = begins + len(text)
        whole, newline, rest = (held + text).rpartition(b"\n")
        self._cut[file] = rest[-MOST_BYTES:]
        return (whole + newline).decode(errors="replace")

    def _take(self, text: str, now: float) -> None:
        for line in text.splitlines():
            rails = _RAILS.search(line)
            if rails:
                self.rails = {"provider": rails[2], "count": int(rails[1])}
            for kind, pattern in _KINDS:
                if pattern.search(line):
                    self._warnings[kind] = (_short(line), now)


def _short(line: str) -> str:
    """A line without what tells of a request."""
    return line.partition(" | Context:")[0].strip()[:_LINE_LENGTH]


own_log = NixlLog()
"""This process's."""
