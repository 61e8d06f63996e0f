"""The endpoint's door: an ASGI application behind it counts who comes through."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from diptych.serving.access import MAX_BODY_BYTES, AccessMiddleware, ApiKeys

KEY = "dk-right"


class Door:
    """The middleware, and what reached the application behind it."""

    def __init__(self, key_file: Path | None) -> None:
        self.bodies: list[bytes] = []
        self._app = AccessMiddleware(self._behind, api_key_file=str(key_file) if key_file else None)

    async def _behind(self, scope: Any, receive: Any, send: Any) -> None:
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
    ) -> tuple[int, dict[str, Any], dict[bytes, bytes]]:
        """Status, JSON body and headers of the answer."""
        pieces = body if isinstance(body, list) else [body]
        messages = [
            {"type": "http.request", "body": piece, "more_body": number < len(pieces) - 1}
            for number, piece in enumerate(pieces)
        ]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"Authorization", authorization.encode("latin-1"))] if authorization is not None else []
        headers += [(b"X-Api-Key", api_key.encode())] if api_key is not None else []
        scope = {"type": kind, "path": path, "method": method, "headers": headers}
        asyncio.run(self._app(scope, receive, send))
        return sent[0]["status"], json.loads(sent[1]["body"]), dict(sent[0]["headers"])


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n")
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
    "path", ["/health/", "/HEALTH", "/health/x", "//health", "/v1/models", "/diptych/v1/status"]
)
def test_only_health_itself_is_open(door: Door, path: str) -> None:
    assert door.knock(path="/health", method="GET", authorization=None)[0] == 200
    assert door.knock(path=path, method="GET", authorization=None)[0] == 401


def test_a_browser_may_ask_whether_it_may_ask(door: Door) -> None:
    assert door.knock(method="OPTIONS", authorization=None)[0] == 200


def test_keys_that_cannot_be_read_are_told_once_and_let_nobody_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    door = Door(path)
    assert [door.knock()[0] for _ in range(3)] == [401, 401, 401]
    [told] = caplog.messages
    assert f"can't be read from {path} (No such file or directory)" in told
    path.write_text(f"{KEY}\n")
    assert door.knock()[0] == 200
    path.write_bytes(b"\xff" + KEY.encode())
    assert door.knock()[0] == 401
    assert "it is not UTF-8" in caplog.messages[1]
    assert len(caplog.messages) == 2
    assert KEY not in caplog.text


def test_without_a_key_file_everybody_comes_in() -> None:
    door = Door(None)
    assert door.knock(authorization=None)[0] == 200


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


def test_keys_rotate_when_the_file_changes(door: Door, key_file: Path) -> None:
    assert door.knock()[0] == 200
    key_file.write_text("dk-second\n\n  dk-third  \n")
    assert door.knock()[0] == 401
    assert door.knock(authorization="Bearer dk-second")[0] == 200
    assert door.knock(authorization="Bearer dk-third")[0] == 200


def test_a_key_file_that_is_gone_or_empty_lets_nobody_in(door: Door, key_file: Path) -> None:
    assert door.knock()[0] == 200
    key_file.write_text("\n\n")
    assert door.knock(authorization="Bearer ")[0] == 401
    assert door.knock()[0] == 401
    key_file.unlink()
    assert door.knock()[0] == 401
    key_file.write_text(KEY)
    assert door.knock()[0] == 200


def test_the_keys_themselves_are_not_kept_in_memory(key_file: Path) -> None:
    keys = ApiKeys(str(key_file))
    assert keys.admit(KEY)
    assert KEY not in repr(vars(keys))


def test_what_is_no_http_request_passes_untouched(door: Door) -> None:
    assert door.knock(kind="lifespan", authorization=None)[0] == 200


def test_a_key_may_be_shown_as_anthropics_clients_show_it(door: Door) -> None:
    assert door.knock(authorization=None, api_key=KEY)[0] == 200
    assert door.knock(authorization=None, api_key="dk-wrong")[0] == 401
    assert door.knock(authorization="Basic x", api_key=KEY)[0] == 401
