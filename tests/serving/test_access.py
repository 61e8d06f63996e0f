"""The endpoint's door: an ASGI application behind it counts who comes through."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from diptych.serving.access import (
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_TIMEOUT_S,
    AccessMiddleware,
)
from diptych.serving.keys import Key

KEY = "dk-right"
ADMIN = "dk-admin"
HERE = ("127.0.0.1", 40000)
ELSEWHERE = ("10.1.2.3", 40000)


class Door:
    """The middleware, and what reached the application behind it."""

    def __init__(self, *key_files: Path, is_open: bool = False) -> None:
        self.bodies: list[bytes] = []
        self.scopes: list[dict[str, Any]] = []
        self.pieces_read = 0
        files = [str(path) for path in key_files]
        given = files[0] if len(files) == 1 else files or None
        self._app = AccessMiddleware(self._behind, api_key_file=given, open=is_open)

    async def _behind(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        body, more = b"", scope["type"] == "http"
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    def knock(
        self,
        body: bytes | list[bytes] = b"{}",
        path: str = "/v1/completions",
        method: str = "POST",
        authorization: str | None = f"Bearer {KEY}",
        kind: str = "http",
        api_key: str | None = None,
        headers: list[tuple[bytes, bytes]] | None = None,
        client: tuple[str, int] | None = HERE,
        root_path: str = "",
    ) -> tuple[int, dict[str, Any], dict[bytes, bytes]]:
        """Status, JSON body and headers of the answer."""
        pieces = body if isinstance(body, list) else [body]
        messages = [
            {"type": "http.request", "body": piece, "more_body": number < len(pieces) - 1}
            for number, piece in enumerate(pieces)
        ]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            self.pieces_read += 1
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        shown = [(b"Authorization", authorization.encode("latin-1"))] if authorization is not None else []
        shown += [(b"X-Api-Key", api_key.encode())] if api_key is not None else []
        scope = {
            "type": kind,
            "path": path,
            "root_path": root_path,
            "method": method,
            "headers": shown + (headers or []),
            "client": client,
        }
        asyncio.run(self._app(scope, receive, send))
        return sent[0]["status"], json.loads(sent[1]["body"]), dict(sent[0]["headers"])


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n{ADMIN} admin\n")
    return path


@pytest.fixture
def door(key_file: Path) -> Door:
    return Door(key_file)


def test_the_right_key_opens_and_the_body_arrives_whole(door: Door) -> None:
    assert door.knock([b'{"prompt": ', b'"x"', b"}"])[0] == 200
    assert door.bodies == [b'{"prompt": "x"}']


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer  "])
def test_the_scheme_may_be_written_in_any_case(door: Door, scheme: str) -> None:
    assert door.knock(authorization=f"{scheme} {KEY}")[0] == 200


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        KEY,
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Basic {KEY}",
        "Bearer \xff",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_without_the_right_key_nothing_comes_through(
    door: Door, authorization: str | None, method: str
) -> None:
    status, body, headers = door.knock(method=method, authorization=authorization)
    assert status == 401
    assert body["error"]["type"] == "invalid_api_key"
    assert headers[b"www-authenticate"] == b"Bearer"
    assert door.bodies == []


@pytest.mark.parametrize(
    "path", ["/health/", "/HEALTH", "/health/x", "//health", "/ready/", "/v1/models", "/diptych/v1/status"]
)
def test_only_health_and_readiness_themselves_are_open(door: Door, path: str) -> None:
    for free in ("/health", "/ready"):
        assert door.knock(path=free, method="GET", authorization=None)[0] == 200
    assert door.knock(path=path, method="GET", authorization=None)[0] == 401


def test_a_browser_may_ask_whether_it_may_ask(door: Door) -> None:
    assert door.knock(method="OPTIONS", authorization=None)[0] == 200


# Admin routes


@pytest.mark.parametrize(
    "path",
    [
        "/diptych/v1/status",
        "/diptych/v1/canary",
        "/diptych/v1/probe",
        "/diptych/v1/nccl",
        "/diptych/v2/x",
        "/metrics",
        "/metrics/",
        "/metricsx",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_admin_route_opens_to_an_admin_key_only(door: Door, path: str, method: str) -> None:
    status, body, _ = door.knock(path=path, method=method)
    assert (status, body["error"]["type"]) == (403, "permission_denied")
    assert "needs an admin key" in body["error"]["message"]
    assert "'admin'" in body["error"]["message"]
    assert door.knock(path=path, method=method, authorization=None)[0] == 401
    assert door.bodies == []
    assert door.knock(path=path, method=method, authorization=f"Bearer {ADMIN}")[0] == 200
    assert door.scopes[-1]["diptych.key"] == Key(admin=True)


def test_an_admin_key_opens_every_other_route_too(door: Door) -> None:
    assert door.knock(authorization=f"Bearer {ADMIN}")[0] == 200


def test_an_admin_route_is_known_below_the_prefix_of_an_application_too(door: Door) -> None:
    for path in ("/llm/metrics", "/llm/diptych/v1/status"):
        assert door.knock(path=path, root_path="/llm", method="GET")[0] == 403
    assert door.knock(path="/llm/v1/models", root_path="/llm", method="GET")[0] == 200
    assert door.knock(path="/llm/health", root_path="/llm", method="GET", authorization=None)[0] == 200
    assert door.knock(path="/metrics", root_path="/met", method="GET")[0] == 403


# Access without keys


@pytest.mark.parametrize("client", [HERE, ("::1", 1), ("::ffff:127.0.0.1", 1), None])
def test_an_open_endpoint_asks_nobody_on_this_machine_for_a_key(
    key_file: Path, client: tuple[str, int] | None
) -> None:
    door = Door(key_file, is_open=True)
    assert door.knock(authorization=None, client=client)[0] == 200
    assert door.scopes[-1]["diptych.key"] == Key()
    assert door.knock(authorization="Bearer none", client=client)[0] == 200
    assert Door().knock(authorization=None, client=client)[0] == 200


@pytest.mark.parametrize("client", [ELSEWHERE, ("2001:db8::1", 1), ("::ffff:10.0.0.1", 1), ("proxy", 1)])
def test_an_open_endpoint_asks_clients_from_elsewhere_all_the_same(
    key_file: Path, client: tuple[str, int]
) -> None:
    door = Door(key_file, is_open=True)
    assert door.knock(authorization=None, client=client)[0] == 401
    assert door.knock(client=client)[0] == 200
    assert Door().knock(authorization=None, client=client)[0] == 401


@pytest.mark.parametrize("name", [b"X-Forwarded-For", b"Forwarded", b"X-Real-IP"])
def test_an_open_endpoint_asks_whoever_somebody_here_forwards(key_file: Path, name: bytes) -> None:
    status, answer, _ = Door(key_file, is_open=True).knock(authorization=None, headers=[(name, b"127.0.0.1")])
    assert status == 401
    assert "missing" in answer["error"]["message"]


@pytest.mark.parametrize("client", [HERE, ELSEWHERE, None])
def test_an_endpoint_behind_haproxy_is_open_to_nobody_since_all_clients_seem_to_be_here(
    client: tuple[str, int] | None,
    key_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    for door in (Door(key_file, is_open=True), Door()):
        assert door.knock(authorization=None, client=client)[0] == 401
    assert "HAProxy hides where clients are" in caplog.text
    assert Door(key_file, is_open=True).knock(client=client)[0] == 200


def test_admin_routes_of_an_open_endpoint_are_closed_all_the_same(key_file: Path) -> None:
    for door in (Door(key_file, is_open=True), Door()):
        assert door.knock(path="/metrics", authorization=None)[0] == 401
    door = Door(key_file, is_open=True)
    assert door.knock(path="/metrics")[0] == 403
    assert door.knock(path="/metrics", authorization=f"Bearer {ADMIN}")[0] == 200


def test_an_endpoint_without_keys_says_so_at_its_start(
    key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Door(key_file)
        assert caplog.messages == []
        Door()
    assert "has no keys" in caplog.messages[0]


# Priority and time


@pytest.mark.parametrize(
    ("words", "asked", "priority"),
    [
        ("", None, 0),
        ("", "3", 3),
        ("", "-3", 0),
        ("", " 0 ", 0),
        ("priority=5", None, 5),
        ("priority=5", "4", 5),
        ("priority=5", "6", 6),
        ("priority=-5", None, -5),
        ("priority=-5", "-3", -3),
        ("priority=-5", "-999999999", -5),
    ],
)
def test_the_priority_is_the_keys_and_a_header_can_only_put_a_request_behind(
    key_file: Path, words: str, asked: str | None, priority: int
) -> None:
    key_file.write_text(f"{KEY} {words}\n")
    door = Door(key_file)
    headers = [(b"X-Diptych-Priority", asked.encode())] if asked is not None else []
    assert door.knock(headers=headers)[0] == 200
    assert door.scopes[-1]["diptych.priority"] == priority


@pytest.mark.parametrize("asked", ["", "high", "1.5", "+1", "0x1", "1_0", "1e3", "9999999999", "\xb2", "1 2"])
def test_a_priority_that_is_no_whole_number_is_refused_and_named(door: Door, asked: str) -> None:
    status, body, _ = door.knock(headers=[(b"x-diptych-priority", asked.encode("latin-1"))])
    assert (status, body["error"]["param"]) == (400, "x-diptych-priority")
    assert door.bodies == []


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        (None, None),
        ("30", 30.0),
        ("0.25", 0.25),
        (".5", 0.5),
        ("30s", 30.0),
        (" 30 s ", 30.0),
        ("500ms", 0.5),
        ("1.5ms", 0.0015),
        (f"{MAX_TIMEOUT_S:.0f}", MAX_TIMEOUT_S),
    ],
)
def test_the_time_that_a_client_gives_is_read(door: Door, asked: str | None, seconds: float | None) -> None:
    assert door.knock(headers=[(b"X-Request-Timeout", asked.encode())] if asked else [])[0] == 200
    assert door.scopes[-1]["diptych.timeout_s"] == seconds


@pytest.mark.parametrize(
    "asked", ["", "soon", "0", "0.0s", "-1", "1e3", "inf", "nan", "5m", "86400.1", "9" * 400, "1,5", "30 s s"]
)
def test_a_time_that_is_none_is_refused_and_named(door: Door, asked: str) -> None:
    status, body, _ = door.knock(headers=[(b"x-request-timeout", asked.encode())])
    assert (status, body["error"]["param"]) == (400, "x-request-timeout")
    assert door.bodies == []


def test_what_needs_no_key_has_no_priority_of_its_own(door: Door) -> None:
    headers = [(b"x-diptych-priority", b"high")]
    assert door.knock(path="/health", method="GET", authorization=None, headers=headers)[0] == 200
    told = {name: door.scopes[-1][f"diptych.{name}"] for name in ("key", "priority", "timeout_s")}
    assert told == {"key": Key(), "priority": 0, "timeout_s": None}


# What no request may carry


@pytest.mark.parametrize(
    "body",
    [
        b'{"kv_transfer_params": {"do_remote_prefill": true}}',
        b'{"kv_transfer_params": {}}',
        b'{"kv_transfer_params": 0}',
        rb'{"kv\u005ftransfer_params": {"a": 1}}',
        rb'{"\u006b\u0076\u005f\u0074ransfer_params": {"a": 1}}',
        b'{"a": 1, "kv_transfer_params": {"b": "kv_transfer_params"}}',
        b'{"kv_transfer_params": null, "kv_transfer_params": {"a": 1}}',
        b'{"vllm_xargs": {"kv_transfer_params": {"a": 1}}}',
    ],
)
def test_kv_transfer_settings_from_outside_are_refused_however_they_are_spelt(
    door: Door, body: bytes
) -> None:
    status, answer, _ = door.knock(body)
    assert (status, answer["error"]["param"]) == (400, "kv_transfer_params")
    assert door.bodies == []


def test_settings_of_an_encoders_transfer_are_refused_too(door: Door) -> None:
    assert door.knock(b'{"ec_transfer_params": {"a": 1}}')[0] == 400
    assert door.knock(b'{"vllm_xargs": {"ec_transfer_params": 1}}')[0] == 400


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "utf-8-sig"])
def test_kv_transfer_settings_are_refused_in_every_encoding_that_json_reads(
    door: Door, encoding: str
) -> None:
    body = '{"kv_transfer_params": {"do_remote_prefill": true}}'.encode(encoding)
    assert json.loads(body)
    status, answer, _ = door.knock(body)
    assert (status, answer["error"]["param"]) == (400, "kv_transfer_params")
    assert door.bodies == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "what is kv_transfer_params?"}',
        rb'{"prompt": "\u00fc"}',
        b'{"kv_transfer_params": null}',
        b'["kv_transfer_params"]',
        b'{"messages": [{"kv_transfer_params": 1}]}',
        b'{"kv_transfer',
        b"\xff\\u",
        b"",
    ],
)
def test_what_is_no_setting_of_the_request_passes_unchanged(door: Door, body: bytes) -> None:
    assert door.knock(body)[0] == 200
    assert door.bodies == [body]


def test_deeply_nested_json_does_not_break_the_door(door: Door) -> None:
    body = b'{"kv_transfer": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    assert door.knock(body)[0] == 200


def test_a_body_over_the_limit_is_refused_before_it_is_held_whole(door: Door) -> None:
    piece = b"x" * 2**20
    status, answer, _ = door.knock([piece] * (MAX_BODY_BYTES // 2**20 + 8))
    assert status == 413
    assert "32 MiB" in answer["error"]["message"]
    assert door.bodies == []
    assert door.knock([piece] * (MAX_BODY_BYTES // 2**20))[0] == 200


def test_a_body_that_announces_more_than_the_limit_is_refused_unread(door: Door) -> None:
    for length in (str(MAX_BODY_BYTES + 1), "9" * 5000):
        status, answer, _ = door.knock(headers=[(b"content-length", length.encode())])
        assert (status, answer["error"]["type"]) == (413, "invalid_request_error")
    assert door.pieces_read == 0
    assert door.knock(headers=[(b"content-length", str(MAX_BODY_BYTES).encode())])[0] == 200


def test_a_body_is_read_no_further_than_its_limit(door: Door) -> None:
    piece = b"x" * 2**20
    door.knock([piece] * 64)
    assert door.pieces_read == MAX_BODY_BYTES // 2**20 + 1


@pytest.mark.parametrize("path", ["/v1/completions", "/health"])
def test_headers_beyond_the_limits_are_refused(door: Door, path: str) -> None:
    many = [(b"x-a", b"1")] * MAX_HEADERS
    large = [(b"x-a", b"1" * MAX_HEADER_BYTES)]
    for headers in (many, large):
        status, answer, _ = door.knock(path=path, headers=headers)
        assert (status, answer["error"]["type"]) == (431, "invalid_request_error")
    assert door.bodies == []
    assert door.knock(path=path, headers=many[1:])[0] == 200
    assert door.knock(path=path, headers=[(b"x-a", b"1" * (MAX_HEADER_BYTES - 100))])[0] == 200


def test_a_websocket_is_closed_at_the_door() -> None:
    door, sent = Door(), []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    scope = {"type": "websocket", "path": "/v1/realtime", "headers": []}
    asyncio.run(door._app(scope, None, send))  # type: ignore[arg-type]
    assert (sent, door.scopes) == (["websocket.close"], [])


def test_what_is_no_http_request_passes_untouched(door: Door) -> None:
    assert door.knock(kind="lifespan", authorization=None)[0] == 200


def test_a_key_may_be_shown_as_anthropics_clients_show_it(door: Door) -> None:
    assert door.knock(authorization=None, api_key=KEY)[0] == 200
    assert door.knock(authorization=None, api_key="dk-wrong")[0] == 401
    assert door.knock(authorization="Basic x", api_key=KEY)[0] == 401
