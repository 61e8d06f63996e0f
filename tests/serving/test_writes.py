"""Streams on their way out, message by message as a server gets them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving.writes import LEAST_GAP_S, SteadyWrites

STREAM, JSON = b"text/event-stream; charset=utf-8", b"application/json"
SLOW_S = 3 * LEAST_GAP_S


class Out:
    """A server's side of one response: what it was sent, and when.

    Each write takes one of `takes_s`, in turn; the one numbered `fails_at` fails, and alone does.
    """

    def __init__(self, takes_s: Sequence[float] = (0.0,), fails_at: int | None = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.at: list[float] = []
        self._takes_s = takes_s
        self._fails_at = fails_at
        self._asked = -1  # the head is none of them

    async def send(self, message: Any) -> None:
        self._asked += 1
        if self._asked == self._fails_at:
            raise OSError("the client is gone")
        takes_s = self._takes_s[self._asked % len(self._takes_s)]
        if takes_s:
            await asyncio.sleep(takes_s)
        self.sent.append(message)
        self.at.append(asyncio.get_running_loop().time())

    @property
    def bodies(self) -> list[bytes]:
        return [each["body"] for each in self.sent if each["type"] == "http.response.body"]


class Answer:
    """An application that writes `parts` with `gap_s` between them; and when it handed each over."""

    def __init__(
        self, parts: Sequence[bytes], gap_s: float = 0.0, kind: bytes = STREAM, end: Any = None
    ) -> None:
        self._parts = parts
        self._gap_s = gap_s
        self._kind = kind
        self._end = end
        self.at: list[float] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"Content-Type", self._kind)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in self._parts:
            self.at.append(asyncio.get_running_loop().time())
            await send({"type": "http.response.body", "body": part, "more_body": True})
            if self._gap_s:
                await asyncio.sleep(self._gap_s)
        if self._end is None:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif isinstance(self._end, BaseException):
            raise self._end


def played(answer: Any, out: Out | None = None) -> Out:
    """What a server was sent, also by what the middleware left behind."""
    out = out or Out()

    async def play() -> None:
        await SteadyWrites(answer)({"type": "http"}, None, out.send)
        await asyncio.sleep(3 * LEAST_GAP_S)

    asyncio.run(play())
    return out


def numbered(count: int) -> list[bytes]:
    return [b"%d," % number for number in range(count)]


def test_a_fast_stream_goes_out_whole_and_in_order_in_few_writes() -> None:
    out = played(Answer(numbered(500), gap_s=LEAST_GAP_S / 20))
    assert b"".join(out.bodies) == b"".join(numbered(500))
    assert len(out.bodies) < 250
    assert [each["more_body"] for each in out.sent[1:]] == [True] * (len(out.bodies) - 1) + [False]


def test_the_first_writes_of_a_stream_wait_for_nothing() -> None:
    out = played(Answer(numbered(50)))
    assert out.bodies[:6] == numbered(6)


def test_a_stream_slower_than_the_gap_goes_out_as_it_came_and_at_once() -> None:
    answer = Answer(numbered(12), gap_s=SLOW_S)
    out = played(answer)
    assert out.bodies[:-1] == numbered(12)
    late = [sent - handed for sent, handed in zip(out.at[1:], answer.at, strict=False)]
    assert max(late) < LEAST_GAP_S / 2


def test_what_was_held_goes_out_when_its_time_has_come_though_nothing_follows() -> None:
    class Pauses(Answer):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, receive, send)
            await asyncio.sleep(0.2)
            self.at.append(asyncio.get_running_loop().time())

    answer = Pauses(numbered(8), end="none")
    out = played(answer)
    assert b"".join(out.bodies) == b"".join(numbered(8))
    assert out.at[-1] - answer.at[7] < 0.1


def test_a_write_that_takes_long_is_overtaken_by_none() -> None:
    out = played(Answer(numbered(300), gap_s=LEAST_GAP_S / 10), Out(takes_s=[4 * LEAST_GAP_S, 0.0, 0.0]))
    assert b"".join(out.bodies) == b"".join(numbered(300))
    assert out.sent[-1]["more_body"] is False


def test_the_end_goes_out_at_once_with_what_was_held() -> None:
    out = played(Answer(numbered(9)))
    assert out.bodies == [*numbered(6), b"".join(numbered(9)[6:])]
    assert out.sent[-1]["more_body"] is False


@pytest.mark.parametrize("gap_s", [0.0, SLOW_S])
def test_a_failure_midway_is_passed_on_after_what_was_said(gap_s: float) -> None:
    out = Out()
    with pytest.raises(ValueError, match="midway"):
        played(Answer(numbered(9), gap_s, end=ValueError("midway")), out)
    assert b"".join(out.bodies) == b"".join(numbered(9))
    assert all(each["more_body"] for each in out.sent[1:])


def test_an_application_that_stops_without_an_end_has_said_all_it_said() -> None:
    assert b"".join(played(Answer(numbered(9), end="none")).bodies) == b"".join(numbered(9))


@pytest.mark.parametrize("gap_s", [LEAST_GAP_S / 10, SLOW_S])
def test_the_application_is_told_when_its_client_is_gone(gap_s: float) -> None:
    answer = Answer(numbered(200), gap_s)
    with pytest.raises(OSError, match="gone"):
        played(answer, Out(fails_at=8))
    assert len(answer.at) < 200


def test_an_application_that_is_cancelled_ends_and_leaves_no_writer_behind() -> None:
    async def play() -> tuple[bool, set[Any]]:
        out = Out()
        task = asyncio.create_task(
            SteadyWrites(Answer(numbered(10**6), 0.0001))({"type": "http"}, None, out.send)
        )
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        written = len(out.sent)
        await asyncio.sleep(3 * LEAST_GAP_S)
        assert len(out.sent) == written
        return task.cancelled(), asyncio.all_tasks() - {asyncio.current_task()}

    cancelled, left = asyncio.run(play())
    assert cancelled
    assert left == set()


def test_a_client_that_reads_slowly_slows_the_application_down() -> None:
    """No more is held than the limit and one piece, whatever the application has."""
    piece, most = b"x" * 4096, 0

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        nonlocal most
        handed = 0
        headers = [(b"content-type", STREAM)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(200):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            handed += len(piece)
            most = max(most, handed - sum(map(len, out.bodies)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    out = Out(takes_s=[LEAST_GAP_S / 5])
    played(endless, out)
    assert b"".join(out.bodies) == piece * 200
    assert most <= 3 * 64 * 2**10


@pytest.mark.parametrize("kind", [JSON, b""])
def test_what_is_no_stream_passes_as_it_is(kind: bytes) -> None:
    out = played(Answer(numbered(40), kind=kind))
    assert out.bodies == [*numbered(40), b""]


def test_what_is_no_http_passes_untouched() -> None:
    asked = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append((scope, receive, send))

    asyncio.run(SteadyWrites(app)({"type": "lifespan"}, "receive", "send"))  # type: ignore[arg-type]
    assert asked == [({"type": "lifespan"}, "receive", "send")]
