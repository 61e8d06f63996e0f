"""The text of a file that a user gives: UTF-8, and no longer than what a person writes."""

from pathlib import Path
from typing import BinaryIO

from diptych.spec.problems import InvalidDocumentError, Problem
from diptych.spec.sizes import format_size

MAX_BYTES = 256 * 1024


def read_text(path: Path) -> str:
    """The text of `path`.

    Raises:
        InvalidDocumentError: it can't be read, is too large, or is no text.
    """
    try:
        with path.open("rb") as file:
            return read_stream(file, str(path))
    except FileNotFoundError:
        if str(path) == "-":
            do = "write what you would pipe into a file, and name that"
            raise _unreadable("-", "a document is read from a file, not from standard input", do) from None
        raise _unreadable(str(path), "there is no such file", "check the name") from None
    except IsADirectoryError:
        raise _unreadable(str(path), "it is a folder", "give a file in it") from None
    except OSError as error:
        what = f"it can't be read: {error.strerror}"
        raise _unreadable(str(path), what, "check the file and its permissions") from error


def read_stream(stream: BinaryIO, name: str) -> str:
    """The text of an open file; errors call it `name`.

    Raises:
        InvalidDocumentError: it is too large, or is no text.
        OSError: it can't be read.
    """
    content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        what = f"it is larger than {format_size(MAX_BYTES)}"
        raise _unreadable(name, what, "check that this is the right file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{content[error.start]:02x} on line {line} is not UTF-8"
        raise _unreadable(name, what, "save the file as UTF-8") from None


def _unreadable(name: str, what: str, do: str) -> InvalidDocumentError:
    return InvalidDocumentError([Problem(name, "", what, do, code="S101")])
