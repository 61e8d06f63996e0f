"""The endpoint's API keys: files with one key per line, and what each key may."""

import hashlib
import hmac
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

_PRIORITY = re.compile(r"priority=(-?[0-9]{1,9})")


@dataclass(frozen=True)
class Key:
    """What a key may.

    Args:
        admin: it opens admin routes too.
        priority: what its requests have in the queues, as vLLM counts it: a lower number is served earlier.
    """

    admin: bool = False
    priority: int = 0


class ApiKeys:
    """The keys in one file or several; read again whenever one changes, so that keys rotate without a restart.

    A line is a key and, behind it, `admin` or `priority=N` or both, separated by blanks. Empty lines and those that
    begin with `#` are left out. A line with any other word lets nobody in, and the log tells its number. While a file
    can't be read its keys let nobody in, and the log says so once.
    """

    def __init__(self, paths: str | Sequence[str]) -> None:
        self._files = [_KeyFile(Path(path)) for path in ([paths] if isinstance(paths, str) else paths)]
        for file in self._files:
            file.current()

    def find(self, presented: str) -> Key | None:
        """What the key may; None when it is none of ours. Takes the same time wherever a wrong key differs."""
        digest = hashlib.sha256(presented.encode()).digest()
        found = None
        for file in self._files:
            for known, key in file.current():
                if hmac.compare_digest(digest, known) and found is None:
                    found = key
        return found


class _KeyFile:
    """One file; of its keys only digests are kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at: tuple[int, ...] | None = None
        self._entries: list[tuple[bytes, Key]] = []
        self._is_readable = True

    def current(self) -> list[tuple[bytes, Key]]:
        """The keys that the file has now, as SHA-256 digests."""
        try:
            found = self._path.stat()
            version = (found.st_mtime_ns, found.st_size, found.st_ino)
            if version != self._read_at:
                self._entries = list(self._parse(self._path.read_text(encoding="utf-8")))
                self._read_at = version
            self._is_readable = True
        except (OSError, UnicodeDecodeError) as error:
            self._entries, self._read_at = [], None
            self._complain(error.strerror if isinstance(error, OSError) else "it is not UTF-8")
        return self._entries

    def _parse(self, text: str) -> Iterator[tuple[bytes, Key]]:
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            key = _key_of(words)
            if key is None:
                told = "Line %d of %s lets nobody in: it must be a key, then `admin` or `priority=N` or both."
                logger.error(told, number, self._path)
            else:
                yield hashlib.sha256(words[0].encode()).digest(), key

    def _complain(self, why: str | None) -> None:
        if self._is_readable:
            told = "The endpoint's keys can't be read from %s (%s): requests with them get 401 until they can be."
            logger.error(told, self._path, why)
        self._is_readable = False


def _key_of(words: Sequence[str]) -> Key | None:
    """What a line's words say; None for words that say nothing, and for a line whose key was forgotten."""
    admin, priority = False, 0
    if words[0] == "admin" or words[0].startswith("priority="):
        return None
    for word in words[1:]:
        number = _PRIORITY.fullmatch(word)
        if word == "admin":
            admin = True
        elif number:
            priority = int(number[1])
        else:
            return None
    return Key(admin, priority)
