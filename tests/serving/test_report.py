"""What every answer says of itself, message by message as a server gets it from the application."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from openai import OpenAI
from starlette.requests import ClientDisconnect

from diptych.serving import report
from diptych.serving.bodies import RecordInStream
from diptych.serving.keys import Key
from diptych.serving.placement import RATHER_REMOTE
from diptych.serving.record import Leg, Record, current
from diptych.serving.report import ReportMiddleware
from diptych.serving.transfers import Transfer

App = Callable[[Any, Any, Any], Awaitable[None]]
CHAT = "/v1/chat/completions"
DONE = b"data: [DONE]\n\n"
JSON = b"application/json"
STREAM = b"text/event-stream; charset=utf-8"


class Server:
    """A replica; its engine's problem is seen at the look numbered `dies_at`, the first being the door's own."""

    replica_name = "decode-1"

    def __init__(self, dies_at: int | None = None) -> None:
        self._dies_at = dies_at
        self._looks = 0

    @property
    def engine_problem(self) -> str | None:
        self._looks += 1
        dead = self._dies_at is not None and self._looks >= self._dies_at
        return "engine process 7 is gone" if dead else None


class Answered:
    """What a server was sent."""

    def __init__(self, sent: list[dict[str, Any]]) -> None:
        self.sent = sent

    @property
    def status(self) -> int:
        (head,) = [each for each in self.sent if each["type"] == "http.response.start"]
        assert head is self.sent[0]
        return int(head["status"])

    @property
    def headers(self) -> dict[str, str]:
        pairs = [(name.decode(), value.decode()) for name, value in self.sent[0]["headers"]]
        assert len(dict(pairs)) == len(pairs), pairs
        return dict(pairs)

    @property
    def pieces(self) -> list[bytes]:
        bodies = self.sent[1:]
        assert [each.get("more_body", False) for each in bodies] == [True] * (len(bodies) - 1) + [False]
        return [each["body"] for each in bodies]

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


def answered(
    app: App,
    server: Server | None = None,
    *,
    path: str = CHAT,
    method: str = "POST",
    asks_for_record: bool = False,
    kind: str = "http",
    wish: bytes | None = None,
    key: Key | None = None,
) -> Answered:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    timing = [(b"X-Diptych-Timing", b"include")] if asks_for_record else []
    wishes = [] if wish is None else [(b"x-diptych-prefill", wish)]
    headers = [(b"accept", b"*/*"), *timing, *wishes]
    scope = {"type": kind, "path": path, "method": method, "headers": headers, "diptych.key": key}
    asyncio.run(ReportMiddleware(app, server=server or Server())(scope, receive, send))
    return Answered(sent)


def the_engine_writes(**fields: Any) -> None:
    """As the orchestrator does at the engine's first output."""
    record = current.get()
    assert record is not None
    record.legs.append(Leg(path="remote", transfer=Transfer(100, 0.001, 0.001, 1), begun=True, **fields))


def says(
    *pieces: bytes | Exception | None,
    kind: bytes = JSON,
    status: int = 200,
    writes_before: int | None = 0,
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> App:
    """An application whose body comes in pieces; an exception among them is raised, None ends without an end.

    `writes_before` is the piece before which the engine's first output is there; None: it never is.
    """

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if kind != STREAM and writes_before is not None:
            the_engine_writes()
        own = [(b"Content-Type", kind), *headers]
        await send({"type": "http.response.start", "status": status, "headers": own})
        for number, piece in enumerate(pieces):
            if kind == STREAM and number == writes_before:
                the_engine_writes()
            if isinstance(piece, Exception):
                raise piece
            if piece is None:
                return
            more = kind == STREAM or number < len(pieces) - 1
            await send({"type": "http.response.body", "body": piece, "more_body": more})
        if kind == STREAM:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


def record_in(event: bytes) -> Any:
    return json.loads(event.split(b"data: ", 1)[1])["diptych"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for an engine to be found dead."""

    async def at_once(server: Any) -> bool:
        return server.engine_problem is not None

    monkeypatch.setattr(report, "engine_died", at_once)


# Whole answers


def test_an_answer_tells_its_way_in_the_headers_and_its_body_is_the_engines() -> None:
    answer = answered(says(b'{"id": 1}', headers=[(b"content-length", b"9")]))
    assert answer.body == b'{"id": 1}'
    assert answer.headers["x-diptych-path"] == "remote"
    assert answer.headers["x-diptych-kv-transfer-bytes"] == "100"
    assert answer.headers["content-length"] == "9"
    assert answer.headers["Content-Type"] == "application/json"


def test_an_answer_whose_client_asked_holds_the_record_and_its_length_is_right() -> None:
    app = says(b'{"id": 1, ', b'"text": "\xc3\xbc"}', headers=[(b"Content-Length", b"24")])
    answer = answered(app, asks_for_record=True)
    told = json.loads(answer.body)
    assert (told["id"], told["text"], told["diptych"]["path"]) == (1, "ü", "remote")
    assert told["diptych"]["decode_replica"] == "decode-1"
    assert int(answer.headers["content-length"]) == len(answer.body)


def test_a_body_in_pieces_goes_out_as_it_comes_when_nobody_asked_for_the_record() -> None:
    assert answered(says(b"one", b"two", b"three")).pieces == [b"one", b"two", b"three"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "max_tokens is too large"}}',
        b"[1, 2]",
        b"null",
        b"not JSON",
        b"\xff\x00binary",
        b"[" * 200_000 + b"]" * 200_000,
        b"",
    ],
    ids=["an error", "a list", "null", "text", "bytes", "deep", "nothing"],
)
def test_what_is_no_answer_of_an_engine_stays_what_it_is(body: bytes) -> None:
    answer = answered(says(body, headers=[(b"content-length", b"1")]), asks_for_record=True)
    assert answer.body == body
    assert answer.headers["content-length"] == str(len(body))


def test_an_answer_that_says_there_was_no_error_is_an_answer() -> None:
    answer = answered(says(b'{"error": null, "output": []}'), asks_for_record=True)
    assert json.loads(answer.body)["diptych"]["path"] == "remote"


def test_an_answer_that_needed_no_engine_has_neither_headers_nor_record() -> None:
    app = says(b'{"input_tokens": 9}', writes_before=None)
    answer = answered(app, path="/v1/messages/count_tokens", asks_for_record=True)
    assert answer.body == b'{"input_tokens": 9}'
    assert not [name for name in answer.headers if name.startswith("x-diptych")]


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "GET", "DELETE"])
@pytest.mark.parametrize("asks", [True, False])
def test_other_methods_are_answered_by_the_application_alone(method: str, asks: bool) -> None:
    app = says(b"", status=405, writes_before=None, headers=[(b"allow", b"POST")])
    answer = answered(app, method=method, asks_for_record=asks)
    assert (answer.status, answer.body, answer.headers["allow"]) == (405, b"", "POST")


@pytest.mark.parametrize("path", ["/v1/models", "/tokenize", "/health", "/v1/chats", "/metrics"])
def test_routes_that_need_no_engine_are_left_alone_even_when_it_is_dead(path: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert current.get() is None
        await send("as it is")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "method": "GET", "headers": []}
    asyncio.run(ReportMiddleware(app, server=Server(dies_at=1))(scope, None, send))
    assert sent == ["as it is"]


def test_what_is_no_http_passes_untouched() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "lifespan.startup.complete"})

    assert answered(app, kind="lifespan").sent == [{"type": "lifespan.startup.complete"}]


def test_messages_of_other_kinds_keep_their_place() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.pathsend", "path": "/x"})

    kinds = [each["type"] for each in answered(app).sent]
    assert kinds == ["http.response.start", "http.response.pathsend"]


def test_each_request_has_a_record_of_its_own_and_leaves_none_behind() -> None:
    seen: list[Record | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(current.get())

    async def two() -> None:
        middleware = ReportMiddleware(app, server=Server())
        scope = {"type": "http", "path": CHAT, "method": "POST", "headers": []}
        for _ in range(2):
            await middleware(scope, None, None)
            assert current.get() is None

    asyncio.run(two())
    assert isinstance(seen[0], Record)
    assert isinstance(seen[1], Record)
    assert seen[0] is not seen[1]


# Streams


def test_a_stream_goes_out_as_it_came_and_tells_its_way_in_the_headers() -> None:
    pieces = [b"data: one\n\n", b"data: two\n\n", DONE]
    answer = answered(says(*pieces, kind=STREAM))
    assert answer.pieces == [*pieces, b""]
    assert answer.headers["x-diptych-path"] == "remote"


def test_a_stream_whose_client_asked_has_the_record_just_before_its_end() -> None:
    answer = answered(says(b"data: one\n\n", DONE, kind=STREAM), asks_for_record=True)
    events = answer.body.split(b"\n\n")
    chunk = json.loads(events[1].removeprefix(b"data: "))
    assert events[0] == b"data: one"
    assert (chunk["choices"], chunk["object"]) == ([], "chat.completion.chunk")
    assert (chunk["diptych"]["path"], chunk["diptych"]["decode_replica"]) == ("remote", "decode-1")
    assert events[2:] == [b"data: [DONE]", b""]


def test_the_head_waits_for_the_first_piece_and_no_longer() -> None:
    sent: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", STREAM)]})
        assert sent == []
        the_engine_writes()
        await send({"type": "http.response.body", "body": b"data: one\n\n", "more_body": True})
        assert sent == ["http.response.start", "http.response.body"]

    async def send(message: Any) -> None:
        sent.append(message["type"])

    scope = {"type": "http", "path": CHAT, "method": "POST", "headers": []}
    asyncio.run(ReportMiddleware(app, server=Server())(scope, None, send))
    assert len(sent) == 2


def test_what_a_stream_says_before_the_engine_does_waits_for_it_so_that_the_head_knows() -> None:
    pieces = [
        b"event: response.created\ndata: {}\n\n",
        b"event: response.in_progress\ndata: {}\n\n",
        b"data: 1\n\n",
    ]
    answer = answered(says(*pieces, kind=STREAM, writes_before=2), path="/v1/responses")
    assert answer.headers["x-diptych-path"] == "remote"
    assert answer.pieces == [b"".join(pieces), b""]


def test_a_sign_of_life_waits_for_nothing() -> None:
    answer = answered(says(b": keep-alive\n\n", b"data: 1\n\n", kind=STREAM, writes_before=1))
    assert answer.pieces == [b": keep-alive\n\n", b"data: 1\n\n", b""]


def test_a_stream_that_is_fetched_again_waits_for_nothing() -> None:
    app = says(b"data: 1\n\n", b"data: 2\n\n", kind=STREAM, writes_before=None)
    answer = answered(app, path="/v1/responses/resp_1", method="GET", asks_for_record=True)
    assert answer.pieces == [b"data: 1\n\n", b"data: 2\n\n", b""]


def test_a_stream_in_which_no_engine_had_a_part_comes_out_whole_and_without_a_record() -> None:
    app = says(b'data: {"error": {"message": "bad"}}\n\n', DONE, kind=STREAM, writes_before=None)
    answer = answered(app, asks_for_record=True)
    assert answer.status == 200
    assert answer.body == b'data: {"error": {"message": "bad"}}\n\n' + DONE


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_a_stream_without_a_done_has_the_record_as_its_last_event(path: str) -> None:
    last = b'event: message_stop\ndata: {"type": "message_stop"}\n\n'
    answer = answered(says(last, kind=STREAM), path=path, asks_for_record=True)
    assert answer.body.startswith(last + b"event: diptych\ndata: ")
    assert answer.body.endswith(b"\n\n")
    assert record_in(answer.body.removeprefix(last))["path"] == "remote"
    assert answered(says(last, kind=STREAM), path=path).body == last


@contextlib.contextmanager
def served(body: bytes) -> Iterator[str]:
    """The address of somebody who answers everything with this stream."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def read_by_openai(body: bytes) -> list[Any]:
    with served(body) as url, OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0) as client:
        return list(client.responses.create(model="m", input="Hello", stream=True))


def read_by_anthropic(body: bytes) -> list[Any]:
    anthropic = pytest.importorskip("anthropic")
    hello = [{"role": "user", "content": "Hello"}]
    with served(body) as url, anthropic.Anthropic(api_key="none", base_url=url, max_retries=0) as client:
        return list(client.messages.create(model="m", max_tokens=1, messages=hello, stream=True))


CREATED = b'event: response.created\ndata: {"type": "response.created", "sequence_number": 0}\n\n'
STOPPED = b'event: message_stop\ndata: {"type": "message_stop"}\n\n'


def test_the_usual_clients_read_a_stream_with_the_records_event() -> None:
    responses = answered(says(CREATED, kind=STREAM), path="/v1/responses", asks_for_record=True)
    assert [event.type for event in read_by_openai(responses.body)] == ["response.created", "diptych"]
    messages = answered(says(STOPPED, kind=STREAM), path="/v1/messages", asks_for_record=True)
    assert next(event.type for event in read_by_anthropic(messages.body)) == "message_stop"


@pytest.mark.parametrize(
    ("path", "first", "read_by"),
    [("/v1/responses", CREATED, read_by_openai), ("/v1/messages", STOPPED, read_by_anthropic)],
)
def test_the_usual_clients_raise_what_a_stream_that_breaks_off_says(
    path: str, first: bytes, read_by: Any, impatient: None
) -> None:
    answer = answered(says(first, RuntimeError("bug"), kind=STREAM), path=path)
    with pytest.raises(Exception, match="The engine failed on this request"):
        read_by(answer.body)


WHOLE = b'data: {"text": "data: [DONE]"}\n\ndata: {"text": "\\ndata: [DONE]\\n"}\n\n: note\n\n' + DONE


def passed_on(pieces: Iterable[bytes], *, told: bool = False) -> list[bytes]:
    stream = RecordInStream(Record(legs=[Leg(id="ours")]), told=told)
    return [*(stream.pass_on(piece, more=True) for piece in pieces), stream.pass_on(b"", more=False)]


def test_the_record_is_put_before_the_end_only_and_not_before_what_a_model_wrote() -> None:
    body = b"".join(passed_on([WHOLE]))
    before, told, after = body.partition(b'data: {"id": "ours"')
    assert told
    assert before == WHOLE.removesuffix(DONE)
    assert after.endswith(b"}\n\n" + DONE)
    assert body.count(b'"diptych"') == 1


@pytest.mark.parametrize("size", range(1, 20))
def test_a_stream_cut_anywhere_is_the_same_stream(size: int) -> None:
    pieces = [WHOLE[start : start + size] for start in range(0, len(WHOLE), size)]
    assert b"".join(passed_on(pieces)) == b"".join(passed_on([WHOLE]))
    assert passed_on(pieces, told=True) == [*pieces, b""]


@pytest.mark.parametrize("cut", range(len(WHOLE)))
def test_a_stream_cut_in_two_is_the_same_stream_and_nothing_is_held_but_what_may_be_the_end(cut: int) -> None:
    first, *_ = out = passed_on([WHOLE[:cut], WHOLE[cut:]])
    assert b"".join(out) == b"".join(passed_on([WHOLE]))
    assert DONE.startswith(WHOLE[:cut].removeprefix(first)) or b"diptych" in first


def test_a_stream_that_ends_amid_what_might_have_been_its_end_loses_nothing() -> None:
    assert b"".join(passed_on([b"data: one\n\ndata: [DO"])).startswith(b"data: one\n\ndata: [DO")


def test_two_ends_are_told_of_once() -> None:
    assert b"".join(passed_on([DONE, DONE])).count(b"diptych") == 1


# Engines that die, and applications that raise


def test_before_a_dead_engine_nothing_is_asked_and_the_answer_says_when_to_come_back() -> None:
    answer = answered(says(b"{}"), Server(dies_at=1))
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) > 0
    assert "engine process 7 is gone" in json.loads(answer.body)["error"]["message"]


def is_503(answer: Answered) -> bool:
    error = json.loads(answer.body)["error"]
    assert int(answer.headers["retry-after"]) > 0
    assert int(answer.headers["content-length"]) == len(answer.body)
    return answer.status == 503 and error["type"] == "service_unavailable"


@pytest.mark.parametrize("pieces", [(b'{"error": {}}',), (b'{"error"', b": {", b"}}")], ids=["one", "three"])
@pytest.mark.parametrize("asks", [True, False])
def test_an_engine_that_dies_before_its_first_token_is_503_and_not_500(
    asks: bool, pieces: tuple[bytes, ...]
) -> None:
    app = says(*pieces, status=500, writes_before=None)
    assert is_503(answered(app, Server(dies_at=4), asks_for_record=asks))


@pytest.mark.parametrize("dies_after", [0, 1, 2])
def test_an_exception_while_the_engine_dies_is_503_wherever_nothing_was_sent(dies_after: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if dies_after > 0:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", STREAM)]})
        if dies_after > 1:
            await send(
                {"type": "http.response.body", "body": b"event: response.created\n\n", "more_body": True}
            )
        raise RuntimeError("EngineDeadError")

    assert is_503(answered(app, Server(dies_at=4)))


def test_a_stream_that_only_tells_of_the_engines_death_is_503() -> None:
    app = says(b'data: {"error": {"code": 500}}\n\n', DONE, kind=STREAM, writes_before=None)
    assert is_503(answered(app, Server(dies_at=2), asks_for_record=True))


def test_a_stream_that_has_begun_ends_as_the_engine_ends_it() -> None:
    app = says(b"data: one\n\n", b'data: {"error": {"code": 500}}\n\n', DONE, kind=STREAM)
    answer = answered(app, Server(dies_at=2))
    assert answer.status == 200
    assert answer.body == b'data: one\n\ndata: {"error": {"code": 500}}\n\n' + DONE


@pytest.mark.parametrize(("dies_at", "code"), [(2, 503), (None, 500)])
@pytest.mark.parametrize("asks", [True, False])
def test_a_stream_that_breaks_off_ends_with_an_error_in_words(
    dies_at: int | None, code: int, asks: bool, impatient: None
) -> None:
    app = says(b"data: one\n\n", RuntimeError("EngineDeadError: secret prompt"), kind=STREAM)
    answer = answered(app, Server(dies_at=dies_at), path="/v1/responses", asks_for_record=asks)
    assert answer.pieces[0] == b"data: one\n\n"
    kind, data = answer.pieces[1].removesuffix(b"\n\n").split(b"\n")
    told = json.loads(data.removeprefix(b"data: "))
    assert kind == b"event: error"
    assert (told["type"], told["error"]["type"], told["error"]["code"]) == ("error", "server_error", code)
    assert b"secret" not in answer.body


def test_a_fault_while_the_engine_lives_is_the_servers_to_answer(impatient: None) -> None:
    with pytest.raises(ValueError, match="bug"):
        answered(says(ValueError("bug"), kind=STREAM))


def test_a_fault_after_a_whole_answer_has_begun_is_the_servers_to_answer(impatient: None) -> None:
    with pytest.raises(ValueError, match="bug"):
        answered(says(b"one", ValueError("bug")), Server(dies_at=2))


def test_a_fault_after_the_end_changes_nothing_more(impatient: None) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await says(b"{}")(scope, receive, send)
        raise ValueError("a background task's bug")

    with pytest.raises(ValueError, match="background"):
        answered(app, Server(dies_at=2))


def test_a_fault_of_a_living_engine_stays_a_fault(impatient: None) -> None:
    answer = answered(says(b'{"error": {"message": "bug"}}', status=500))
    assert (answer.status, answer.body) == (500, b'{"error": {"message": "bug"}}')


def test_a_full_queue_is_said_at_once_and_in_the_engines_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(server: Any) -> bool:
        raise AssertionError("nobody has to wait for this")

    monkeypatch.setattr(report, "engine_died", never)
    app = says(
        b'{"error": {"message": "full"}}', status=503, writes_before=None, headers=[(b"retry-after", b"1")]
    )
    answer = answered(app)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


def test_an_engine_is_given_a_moment_to_be_found_dead() -> None:
    assert asyncio.run(report.engine_died(Server(dies_at=3)))


# Clients that leave


@pytest.mark.parametrize("asks", [True, False])
def test_when_a_client_leaves_before_the_first_piece_nothing_is_sent(asks: bool) -> None:
    assert answered(says(None, kind=STREAM), asks_for_record=asks).sent == []
    before_the_engine = says(b"event: response.created\n\n", None, kind=STREAM, writes_before=None)
    assert answered(before_the_engine, asks_for_record=asks).sent == []


def test_when_a_client_leaves_in_the_middle_nothing_more_is_sent() -> None:
    assert len(answered(says(b"data: one\n\n", None, kind=STREAM)).sent) == 2


def test_a_client_who_leaves_ends_the_work_for_him() -> None:
    ended = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(current.get() is not None)

    async def leave() -> None:
        scope = {"type": "http", "path": CHAT, "method": "POST", "headers": []}
        request = asyncio.create_task(ReportMiddleware(app, server=Server())(scope, None, None))
        await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    asyncio.run(leave())
    assert ended == [True]


def test_a_server_that_cannot_send_any_more_hears_of_it(impatient: None) -> None:
    async def gone(message: Any) -> None:
        raise OSError("connection lost")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await says(b"data: one\n\n", kind=STREAM)(scope, receive, send)
        except OSError as error:
            raise ClientDisconnect from error

    scope = {"type": "http", "path": CHAT, "method": "POST", "headers": []}
    with pytest.raises((OSError, ClientDisconnect)):
        asyncio.run(ReportMiddleware(app, server=Server())(scope, None, gone))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The statuses that log and metrics were told."""
    statuses: list[int] = []
    monkeypatch.setattr(report.journal, "write", lambda record, status, seconds: statuses.append(status))
    return statuses


def hears(app: App, *, before: int) -> App:
    """The application, which hears that its client has left before the body's piece of that number."""

    async def hearing(scope: Any, receive: Any, send: Any) -> None:
        bodies = 0

        async def told(message: Any) -> None:
            nonlocal bodies
            if message["type"] == "http.response.body":
                if bodies == before:
                    await receive()
                bodies += 1
            await send(message)

        await app(scope, receive, told)

    return hearing


@pytest.mark.parametrize(
    ("app", "status"),
    [
        (says(b"{}"), 200),
        (says(b"{}", status=400, writes_before=None), 400),
        (says(b"data: one\n\n", kind=STREAM), 200),
        (says(b"data: one\n\n", ValueError("bug"), kind=STREAM), 200),  # and ended in words
        (says(b"data: one\n\n", None, kind=STREAM), 499),
        (says(None, kind=STREAM), 499),
        (hears(says(b"data: one\n\n", kind=STREAM), before=1), 499),
        (hears(says(b"null"), before=0), 499),  # as vLLM ends an answer that nobody waits for
    ],
)
def test_log_and_metrics_tell_an_answer_from_one_whose_client_left_before_its_end(
    app: App, status: int, told: list[int], impatient: None
) -> None:
    answered(app)
    assert told == [status]


def test_a_fault_that_the_server_answers_is_no_client_that_left(told: list[int], impatient: None) -> None:
    with pytest.raises(ValueError, match="bug"):
        answered(says(ValueError("bug"), kind=STREAM))
    assert told == [500]


@pytest.mark.parametrize(
    ("wish", "ordinary", "admins"),
    [
        (b"remote", RATHER_REMOTE, "remote"),
        (b"local", None, "local"),
        (b"auto", None, None),
        (None, None, None),
    ],
)
def test_only_an_operator_may_insist_on_where_prefill_runs(
    wish: bytes | None, ordinary: str | None, admins: str | None
) -> None:
    wishes: list[str | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        record = current.get()
        assert record
        wishes.append(record.prefill_wish)
        await says(b"{}")(scope, receive, send)

    for key in (None, Key(), Key(admin=True)):
        answered(app, wish=wish, key=key)
    assert wishes == [ordinary, ordinary, admins]
