"""An endpoint of Diptych's kind on a loopback port, without a model: it streams what a test scripts.

It speaks real HTTP, and refuses what vLLM behind Diptych refuses: a missing key, an unknown model, a request
without messages, too few tokens. It only streams (501 otherwise).
"""

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fakes.loopback_server import LoopbackServer

KEY = "dk-4f1c0ffee"
MODEL = "tiny"

TIMING: Mapping[str, Any] = {
    "path": "remote",
    "prefill_ms": 212.4,
    "kv_transfer_ms": 2.41,
    "kv_transfer_bytes": 3_250_586,
    "prefill_replica": "prefill#0",
    "computed": [],
}


@dataclass(frozen=True)
class Script:
    """How chat completions are answered; the defaults are a plain good answer.

    Attributes:
        tokens: the contents of the chunks that carry text.
        before_first_s, between_s: seconds to wait before the first token, and between tokens.
        status, body, headers: answer with this instead of a stream, unless status is 200.
        cut_after: close the connection after so many tokens, without ending the body.
        end_after: end the body properly after so many tokens, without a finish reason or `[DONE]`.
        fail_after: send an error object after so many tokens, then `[DONE]`.
        garbage_after: send something that is no JSON after so many tokens.
        cut_numbers: close the connection after the finish reason, before usage, timing and `[DONE]`.
        content_type: of a good answer.
        timing: the `diptych` object; None as from another server.
        usage: whether usage is told when asked for.
        line_end: `\\n`, `\\r\\n` or `\\r`.
        comments: send a comment, an event name and an id before each event.
        piece_bytes: write the stream in pieces of so many bytes; 0 for an event at a time.
    """

    tokens: tuple[str, ...] = ("Hello", ", ", "world", ".")
    before_first_s: float = 0.0
    between_s: float = 0.0
    status: int = 200
    body: str | Mapping[str, Any] = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    end_after: int | None = None
    fail_after: int | None = None
    garbage_after: int | None = None
    cut_numbers: bool = False
    content_type: str = "text/event-stream; charset=utf-8"
    timing: Mapping[str, Any] | None = field(default_factory=lambda: TIMING)
    usage: bool = True
    line_end: str = "\n"
    comments: bool = False
    piece_bytes: int = 0


@dataclass(frozen=True)
class Request:
    """A request as it came in; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


class StreamEndError(Exception):
    """The script ends the stream here: in form (`clean`), or by closing the connection."""

    def __init__(self, *, clean: bool) -> None:
        super().__init__()
        self.clean = clean


class FakeEndpoint(LoopbackServer):
    """The endpoint, up within `with`.

    Attributes:
        requests: every request so far, in order.
        script: how the next chat completion is answered; may be changed at any time.
        status: the object at `/diptych/v1/status`; None for 404.
        client_left: set when a client closes its connection in the middle of an answer.
    """

    def __init__(self, script: Script | None = None, *, key: str | None = KEY, model: str = MODEL) -> None:
        self.script = script or Script()
        self.key = key
        self.models = [model]
        self.status: Mapping[str, Any] | None = {"phases": {}}
        self.requests: list[Request] = []
        self.client_left = threading.Event()
        super().__init__(_Server(self))

    def key_file(self, folder: Path) -> Path:
        """A file with the key, as `up` makes it."""
        path = folder / "api-key"
        path.write_text(f"{self.key}\n")
        path.chmod(0o600)
        return path

    @property
    def chats(self) -> list[Any]:
        """The bodies of the chat completions asked for so far."""
        return [request.body for request in self.requests if request.path == "/v1/chat/completions"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, fake: FakeEndpoint) -> None:
        self.fake = fake
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what is wrong here, but not that a client has gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Be silent."""

    def do_GET(self) -> None:
        if not self._admitted(None):
            return
        fake = self.server.fake
        if self.path == "/v1/models":
            data = [{"id": name, "object": "model"} for name in fake.models]
            self._send(200, {"object": "list", "data": data})
        elif self.path == "/diptych/v1/status" and fake.status is not None:
            self._send(200, fake.status)
        else:
            self._send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            parsed = json.loads(body.decode())
        except ValueError:
            parsed = None
        script = self.server.fake.script
        if not self._admitted(parsed):
            return
        if self.path != "/v1/chat/completions":
            self._send(404, {"detail": "Not Found"})
        elif script.status != 200:
            self._send(script.status, script.body, script.headers)
        elif refusal := _refusal(parsed, self.server.fake.models):
            self._send(*refusal)
        else:
            self._answer(parsed, script)

    def _admitted(self, body: Any) -> bool:
        headers = {name.lower(): value for name, value in self.headers.items()}
        fake = self.server.fake
        fake.requests.append(Request(self.command, self.path, headers, body))
        if fake.key is None or headers.get("authorization") == f"Bearer {fake.key}":
            return True
        self._send(401, _error("The API key is missing or wrong; send 'Authorization: Bearer KEY'.", 401))
        return False

    def _send(
        self, status: int, body: str | Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("content-type", "text/html" if isinstance(body, str) else "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, request: Mapping[str, Any], script: Script) -> None:
        timed = self.headers.get("x-diptych-timing") == "include"
        self.send_response(200)
        self.send_header("content-type", script.content_type)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for event in _events(request, script, timed):
                self._write(_on_the_wire(event, script), script.piece_bytes)
            self.wfile.write(b"0\r\n\r\n")
        except StreamEndError as end:
            self.wfile.write(b"0\r\n\r\n" if end.clean else b"")
            self.close_connection = True
        except (BrokenPipeError, ConnectionResetError):
            self.server.fake.client_left.set()
            self.close_connection = True

    def _write(self, data: bytes, piece_bytes: int) -> None:
        size = piece_bytes or len(data)
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
            if piece_bytes:
                time.sleep(0.0005)


def _refusal(request: Any, models: list[str]) -> tuple[int, Mapping[str, Any]] | None:
    """The status and body with which vLLM refuses a request; None for one that it takes."""
    if not isinstance(request, dict):
        return 400, _error("The request body is no JSON object.", 400)
    if request.get("model") not in models:
        return 404, _error(f"The model `{request.get('model')}` does not exist.", 404)
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        return 400, _error("messages: Field required", 400)
    for message in messages:
        if message.get("role") not in ("system", "user", "assistant") or not message.get("content"):
            return 400, _error("messages: a role or content is missing", 400)
    if not request.get("stream"):
        return 501, _error("This fake only streams.", 501)
    max_tokens = request.get("max_tokens")
    if max_tokens is not None and max_tokens < 1:
        return 400, _error(f"max_tokens must be at least 1, got {max_tokens}.", 400)
    return None


def _events(request: Mapping[str, Any], script: Script, timed: bool) -> Iterator[str]:
    """The data of the stream's events, in time."""
    yield _chunk(request, {"role": "assistant", "content": ""})
    time.sleep(script.before_first_s)
    for number, token in enumerate(script.tokens):
        yield from _mishap(script, number)
        if number:
            time.sleep(script.between_s)
        yield _chunk(request, {"content": token})
    yield from _mishap(script, len(script.tokens))
    yield _chunk(request, {}, "stop")
    if script.cut_numbers:
        raise StreamEndError(clean=False)
    if script.usage and (request.get("stream_options") or {}).get("include_usage"):
        yield json.dumps({"object": "chat.completion.chunk", "choices": [], "usage": _usage(request, script)})
    if timed and script.timing is not None:
        yield json.dumps({"object": "chat.completion.chunk", "choices": [], "diptych": script.timing})
    yield "[DONE]"


def _mishap(script: Script, number: int) -> Iterator[str]:
    """What the script has in store once `number` tokens are out."""
    if number == script.cut_after:
        raise StreamEndError(clean=False)
    if number == script.end_after:
        raise StreamEndError(clean=True)
    if number == script.garbage_after:
        yield '{"choices": [{'
    if number == script.fail_after:
        yield json.dumps(_error("The engine died while it wrote this answer.", 503))
        yield "[DONE]"


def _chunk(request: Mapping[str, Any], delta: Mapping[str, Any], finish_reason: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": request["model"]}
    # As vLLM does: characters beyond ASCII go out as they are. Lone surrogates cannot.
    plain = json.dumps({**chunk, "choices": [choice]}, ensure_ascii=False)
    return plain.encode("utf-8", "backslashreplace").decode()


def _usage(request: Mapping[str, Any], script: Script) -> dict[str, Any]:
    prompt = sum(len(message["content"].split()) for message in request["messages"])
    completion = len(script.tokens)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def _on_the_wire(data: str, script: Script) -> bytes:
    fields = [": keep-alive", "event: message", "id: 1"] if script.comments else []
    return script.line_end.join([*fields, f"data: {data}", "", ""]).encode()


def _error(message: str, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": "error", "param": None, "code": code}}
