"""The record in the body of an answer, for clients that ask for it: in a stream of events, or in an object."""

import json
import re
from typing import Any

from diptych.serving.record import Record

_DONE = b"data: [DONE]"
_DONE_LINE = re.compile(b"^" + re.escape(_DONE), re.MULTILINE)


class RecordInStream:
    """Puts the record into a stream of events: before `data: [DONE]`, or last where a stream ends without.

    A stream may come in pieces of any size, and a model may write `data: [DONE]`, too; only a line that begins so is
    the end.

    Args:
        record: to be told, as a chunk without choices, or as an event of its own in streams that have named ones.
        told: whether that is done already, or not wanted.
    """

    def __init__(self, record: Record, *, told: bool) -> None:
        self._record = record
        self._told = told
        self._held = b""  # begins a line that may become the last one
        self._at_line_start = True

    def pass_on(self, body: bytes, more: bool) -> bytes:
        """What may go out now of all that has come, `body` being its newest piece."""
        text, self._held = self._held + body, b""
        if self._told:
            return text
        begins = 0 if self._at_line_start else text.find(b"\n") + 1 or len(text)
        found = _DONE_LINE.search(text, begins)
        if found:
            return text[: found.start()] + self._chunk() + text[found.start() :]
        if not more:
            return text + self._event()
        last_line = max(text.rfind(b"\n") + 1, begins)
        if _DONE.startswith(text[last_line:]):
            text, self._held = text[:last_line], text[last_line:]
        if text:
            self._at_line_start = text.endswith(b"\n")
        return text

    def _chunk(self) -> bytes:
        first = next((leg.id for leg in self._record.legs), "")
        return self._tell("", id=first, object="chat.completion.chunk", choices=[])

    def _event(self) -> bytes:
        return self._tell("event: diptych\n", type="diptych")

    def _tell(self, kind: str, **fields: Any) -> bytes:
        self._told = True
        if not self._record.legs:  # a stream that no engine had a part in
            return b""
        return f"{kind}data: {json.dumps({**fields, 'diptych': self._record.to_json()})}\n\n".encode()


def json_with_record(body: bytes, record: Record) -> bytes:
    """The body of an answer that is not streamed, with the record in it; as it is, where it tells of none."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(content, dict) or content.get("error") or not record.legs:
        return body
    return json.dumps({**content, "diptych": record.to_json()}, ensure_ascii=False).encode()
