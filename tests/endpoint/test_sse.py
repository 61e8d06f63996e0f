"""Server-sent events: the same out, however the bytes are cut and the lines are ended."""

from collections.abc import Iterator

import pytest

from diptych.endpoint.sse import events


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 1000])
def test_events_come_out_whole_wherever_the_bytes_are_cut(line_end: str, piece_bytes: int) -> None:
    lines = [
        ": hello",
        "data: größer 🙂",
        "",
        "event: x",
        "data:no space",
        "id: 7",
        "",
        "",
        "data: a",
        "data: b",
        "",
        "",
    ]
    body = line_end.join(lines).encode()
    pieces = [body[start : start + piece_bytes] for start in range(0, len(body), piece_bytes)]
    assert list(events(pieces)) == ["größer 🙂", "no space", "a\nb"]


def test_unicode_line_separators_inside_json_do_not_end_a_line() -> None:
    assert list(events(["data: a\u2028b\u0085c\x0bd\n\n".encode()])) == ["a\u2028b\u0085c\x0bd"]


def test_an_event_that_nothing_closes_is_dropped() -> None:
    assert list(events([b"data: whole\n\ndata: ha"])) == ["whole"]
    assert list(events([b"data: whole\n\ndata: half\n"])) == ["whole"]


def test_bytes_that_are_not_utf8_do_not_stop_the_stream() -> None:
    assert list(events([b"data: a\xffb\n\n", b"data: next\n\n"])) == ["a\N{REPLACEMENT CHARACTER}b", "next"]


def test_an_event_is_out_as_soon_as_its_blank_line_is_in() -> None:
    arrived = []

    def pieces() -> Iterator[bytes]:
        for piece in (b"data: 1\r\n\r\n", b"data: 2\r\n\r\n"):
            arrived.append(piece)
            yield piece

    stream = events(pieces())
    assert next(stream) == "1"
    assert len(arrived) == 1
