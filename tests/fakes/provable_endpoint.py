"""An endpoint of Diptych's kind that can be verified, without a model: status, the probe, completions on either way.

It speaks real HTTP, and refuses what the real one refuses: no key, an ordinary key on admin routes, sizes that are no
numbers. Its model continues a prompt by arithmetic on its tokens, so that both ways answer the same unless a test makes
one of them wrong.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fakes import probed
from fakes.loopback_server import LoopbackServer

ADMIN_KEY, KEY, MODEL = "dk-admin", "dk-client", "tiny"
Json = dict[str, Any]


@dataclass
class Behaviour:
    """What a test changes.

    Attributes:
        probe: the probe's answer to its sizes; None: there is no such route, as in older versions.
        asked: how often the probe was asked, and for what.
        aggregated: whether one engine does both phases.
        path: of completions that ask for prefill elsewhere, and why it is another than `remote`.
        wrong_after: tokens after which the way over prefill answers something else; None: never.
        apart: by how much its log-probabilities differ.
        knows_other: whether each way tells of the other's token as one of the most probable.
        usage: KV cache in use by replica, one value for each look at the status, the last one over and over.
        expired, failed: leases that expired and KV transfers that failed, likewise, on prefill and decode.
        running: requests inside each engine.
        finished: requests that each engine has finished, one value for each look at the status, likewise.
        replicas: of prefill, what their names end in, one for each look at the status, likewise.
        draining: whether prefill is about to go.
        down: answer everything with 503.
        nccl: what NCCL's run over the nodes came to; None: there is no such route, as in older versions.
        is_measuring: another such run is under way.
    """

    probe: Callable[[list[int]], Json] | None
    asked: list[Json] = field(default_factory=list)
    aggregated: bool = False
    path: tuple[str, str | None] = ("remote", None)
    wrong_after: int | None = None
    apart: float = 0.0
    knows_other: bool = True
    usage: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    expired: tuple[int, ...] = (0,)
    failed: tuple[int, ...] = (0,)
    running: int = 0
    finished: tuple[int, ...] = (0,)
    replicas: tuple[str, ...] = ("1",)
    draining: bool = False
    down: bool = False
    nccl: Json | None = None
    is_measuring: bool = False
    looks: int = 0


def probing(kind: Callable[[], tuple[Json, Json]], **fields: Any) -> Callable[[list[int]], Json]:
    """A probe through one pair of a known kind, whatever the sizes."""

    def probe(tokens: list[int]) -> Json:
        asked, pair = kind()
        total = sum(tokens)
        pair["transfers"] = [
            one | (old if not (old := pair["transfers"][0])["ok"] else {}) | {"tokens": one["tokens"]}
            for one in probed.transfers(tokens, pair["transfers"][-1]["ms"] or 0.0)
        ]
        lost = not pair["transfers"][0]["ok"]
        for side, name in (("prefill", "prompt_tokens"), ("decode", "external_kv_tokens")):
            counters = pair["after"][side]["counters"]
            counters[name] = pair["before"][side]["counters"][name] + (
                0 if lost and side == "decode" else total
            )
            for each in ("requests_finished", "generation_tokens"):
                counters[each] = pair["before"][side]["counters"][each] + len(tokens)
        return probed.answer(asked, pair, **fields)

    return probe


class ProvableEndpoint(LoopbackServer):
    """The endpoint, up within `with`."""

    def __init__(self, probe: Callable[[list[int]], Json] | None = None) -> None:
        self.behaviour = Behaviour(probe or probing(probed.ucx_here))
        self.requests: list[tuple[str, str | None, Any]] = []
        super().__init__(_Server(self))

    def key_file(self, folder: Path, key: str = ADMIN_KEY) -> Path:
        path = folder / f"key-{key}"
        path.write_text(f"{key}\n")
        return path

    def salts(self) -> list[tuple[str | None, str]]:
        """The way and salt of each prompt."""
        return [(way, body["cache_salt"]) for path, way, body in self.requests if "completions" in path]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, fake: ProvableEndpoint) -> None:
        self.fake = fake
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one piece: two would wait for each other's acknowledgement
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Be silent."""

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer(json.loads(body) if body else {})

    def _answer(self, body: Any) -> None:
        fake, behaviour = self.server.fake, self.server.fake.behaviour
        way = self.headers.get("x-diptych-prefill")
        fake.requests.append((self.path, way, body))
        key = self.headers.get("authorization", "").removeprefix("Bearer ")
        if behaviour.down:
            self._send(503, _error("The service is restarting an engine.", "service_unavailable"))
        elif key not in (ADMIN_KEY, KEY):
            self._send(401, _error("The API key is missing or wrong.", "invalid_api_key"))
        elif self.path.startswith("/diptych/") and key != ADMIN_KEY:
            self._send(403, _error("It needs an admin key, and this one is ordinary.", "permission_denied"))
        elif self.path == "/diptych/v1/status":
            self._send(200, _status(behaviour))
        elif self.path == "/diptych/v1/probe" and behaviour.probe:
            self._send(*_probed(behaviour, body))
        elif self.path == "/diptych/v1/nccl" and behaviour.is_measuring:
            self._send(
                409, _error("NCCL is being measured in this cluster already.", "invalid_request_error")
            )
        elif self.path == "/diptych/v1/nccl" and behaviour.nccl is not None:
            self._send(200, behaviour.nccl)
        elif self.path == "/tokenize":
            self._send(
                200, {"tokens": [ord(letter) for letter in body["prompt"]], "count": len(body["prompt"])}
            )
        elif self.path == "/v1/chat/completions" and body.get("stream"):
            self._stream(body)
        elif self.path in ("/v1/completions", "/v1/chat/completions"):
            self._send(200, _completed(behaviour, body, way if key == ADMIN_KEY else None))
        else:
            self._send(404, {"detail": "Not Found"})

    def _stream(self, body: Json) -> None:
        """An answer of two words, as events: the connection ends with it."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for event in _events(body):
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _probed(behaviour: Behaviour, body: Json) -> tuple[int, Json]:
    tokens, repeat = body.get("tokens", [15, 16, 17, 1000]), body.get("repeat", 1)
    if not all(isinstance(size, int) for size in tokens) or len(tokens) > 16 or repeat > 20:
        return 400, _error("'tokens' is a list of 1 to 16 sizes.", "invalid_request_error")
    behaviour.asked.append(body)
    assert behaviour.probe is not None
    return 200, behaviour.probe([size for size in tokens for _ in range(repeat)])


def _status(behaviour: Behaviour) -> Json:
    look, behaviour.looks = behaviour.looks, behaviour.looks + 1

    def replica(phase: str) -> Json:
        usage = behaviour.usage.get(phase, (0.0,))
        counters = {
            "kv_cache_usage": usage[min(look, len(usage) - 1)],
            "kv_leases_expired": behaviour.expired[min(look, len(behaviour.expired) - 1)],
            "kv_transfers_failed": behaviour.failed[min(look, len(behaviour.failed) - 1)],
            "requests_running": behaviour.running,
            "requests_finished": behaviour.finished[min(look, len(behaviour.finished) - 1)],
        }
        number = behaviour.replicas[min(look, len(behaviour.replicas) - 1)] if phase == "prefill" else "1"
        return {
            "phase": phase,
            "replica": f"{phase}-{number}",
            "draining": behaviour.draining and phase == "prefill",
            "pid": 10,
            "engine_pid": 11,
            "ready": True,
            "kv_cache_tokens": 4096,
            "counters": counters,
        }

    phases = ["aggregated"] if behaviour.aggregated else ["prefill", "decode"]
    return {"phases": {phase: [replica(phase)] for phase in phases}, "readiness": {"state": "ready"}}


def _completed(behaviour: Behaviour, body: Json, way: str | None) -> Json:
    prompt = body.get("prompt") or [
        ord(letter) for message in body["messages"] for letter in message["content"]
    ]
    if isinstance(prompt, str):
        prompt = [ord(letter) for letter in prompt]
    path, why = behaviour.path if way == "remote" else ("local-whole", "the client asked for it")
    if behaviour.aggregated:
        path, why = "aggregated", None
    tokens, other = [], []
    for number in range(body["max_tokens"]):
        right = (sum(prompt) + 31 * number) % 997
        is_wrong = way == "remote" and behaviour.wrong_after is not None and number >= behaviour.wrong_after
        tokens.append(right + 1 if is_wrong else right)
        other.append(right if is_wrong else right + 1)
    shift = behaviour.apart if way == "remote" else 0.0
    record = {"path": path, "why": why, "uncached_tokens": len(prompt) // 2}
    record["kv_transfer_bytes"] = 1000 if path == "remote" else None
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens), "prompt_tokens_details": None}
    named = [(f"token_id:{one}", -0.5 - shift) for one in tokens]
    tops = [
        {f"token_id:{one}": -0.5 - shift} | ({f"token_id:{two}": -0.6} if behaviour.knows_other else {})
        for one, two in zip(tokens, other, strict=True)
    ]
    told: Json = {
        "tokens": [n for n, _ in named],
        "token_logprobs": [p for _, p in named],
        "top_logprobs": tops,
    }
    if "messages" in body:
        told = {
            "content": [
                {
                    "token": name,
                    "logprob": logprob,
                    "top_logprobs": [{"token": n, "logprob": p} for n, p in top.items()],
                }
                for (name, logprob), top in zip(named, tops, strict=True)
            ]
        }
    choice = {"logprobs": told if body.get("logprobs") else None}
    return {"choices": [choice], "usage": usage, "diptych": record}


def _events(body: Json) -> Iterator[Json]:
    """The chunks of a streamed answer: text, then its numbers, and what the phases took."""
    for text in ("Hello", " there"):
        yield {"model": body["model"], "choices": [{"index": 0, "delta": {"content": text}}]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    yield {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}}
    took = {"prefill_ms": 212.4, "kv_transfer_ms": 2.4, "kv_transfer_bytes": 3_250_586}
    yield {"choices": [], "diptych": {"path": "remote", "prefill_replica": "prefill-1", **took}}


def _error(message: str, kind: str) -> Json:
    return {"error": {"message": message, "type": kind, "param": None, "code": 400}}
