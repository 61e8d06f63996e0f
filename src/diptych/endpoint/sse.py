"""Server-sent events out of bytes (https://html.spec.whatwg.org/multipage/server-sent-events.html).

Lines end with LF, CRLF or CR and nothing else. That is why the bytes are split here, before decoding: text
splitters (httpx's `iter_lines` too) also break lines at U+2028 or U+0085, which JSON may carry unescaped.
"""

import re
from collections.abc import Iterable, Iterator

# A CR at the very end stays in the buffer: an LF may follow in the next piece.
_LINE_END = re.compile(rb"\r\n|\n|\r(?=.)", re.DOTALL)


def events(pieces: Iterable[bytes]) -> Iterator[str]:
    """The data of each whole event, in order.

    Comments and fields other than `data` are skipped; an event that its blank line does not close is dropped.
    Bytes that are not UTF-8 become U+FFFD.

    Args:
        pieces: the body as it arrives, cut anywhere.
    """
    data: list[str] = []
    for line in _lines(pieces):
        if not line and data:
            yield "\n".join(data)
            data = []
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" ").decode("utf-8", "replace"))


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *lines, rest = _LINE_END.split(rest + piece)
        yield from lines
    if rest.endswith(b"\r"):
        yield rest[:-1]
