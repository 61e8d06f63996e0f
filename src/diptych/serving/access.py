"""Who may talk to the endpoint, and what a request may never carry."""

import hashlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health"})
MAX_BODY_BYTES = 32 * 2**20
_INTERNAL_FIELD = "kv_transfer_params"
_INTERNAL_FIELDS = (_INTERNAL_FIELD, "ec_transfer_params")


def error_body(message: str, kind: str, code: int, param: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's API words it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class ApiKeys:
    """The keys in a file, one per line; read again whenever the file changes, so that keys rotate without a restart.

    While it can't be read there are none, and the log says so once.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._read_at = -1
        self._digests: list[bytes] = []
        self._is_readable = True
        self._current()

    def admit(self, presented: str) -> bool:
        """Whether the key is one of ours; takes the same time wherever a wrong key differs."""
        digest = hashlib.sha256(presented.encode()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._current()]
        return any(matches)

    def _current(self) -> list[bytes]:
        try:
            changed_at = self._path.stat().st_mtime_ns
            if changed_at != self._read_at:
                lines = (line.strip() for line in self._path.read_text().splitlines())
                self._digests = [hashlib.sha256(line.encode()).digest() for line in lines if line]
                self._read_at = changed_at
            self._is_readable = True
        except (OSError, UnicodeDecodeError) as error:
            self._digests, self._read_at = [], -1
            self._complain(error.strerror if isinstance(error, OSError) else "it is not UTF-8")
        return self._digests

    def _complain(self, why: str | None) -> None:
        if self._is_readable:
            told = "The endpoint's keys can't be read from %s (%s): every request gets 401 until they can be."
            logger.error(told, self._path, why)
        self._is_readable = False


class AccessMiddleware:
    """Refuses requests without a key (401), too large (413) or with KV-transfer settings of their own (400).

    `kv_transfer_params` says from which address the KV cache is read: a client that could set it could make the
    engine read from anywhere.
    """

    def __init__(self, app: App, *, api_key_file: str | None) -> None:
        self._app = app
        self._keys = ApiKeys(api_key_file) if api_key_file else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._keys and not _is_open(scope) and not self._keys.admit(_key(scope)):
            message = "The API key is missing or wrong; send 'Authorization: Bearer KEY'."
            await _refuse(send, 401, error_body(message, "invalid_api_key", 401))
            return
        if scope["method"] == "POST":
            body = await _read_body(receive)
            if body is None:
                message = f"The request body is larger than {MAX_BODY_BYTES // 2**20} MiB."
                await _refuse(send, 413, error_body(message, "invalid_request_error", 413))
                return
            if _carries_internal_field(body):
                message = f"'{_INTERNAL_FIELD}' is set by the server and may not be sent."
                await _refuse(send, 400, error_body(message, "invalid_request_error", 400, _INTERNAL_FIELD))
                return
            receive = _replay(body, receive)
        await self._app(scope, receive, send)


def _is_open(scope: Scope) -> bool:
    """Liveness, and the question of a browser whether it may ask."""
    return scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS"


def _key(scope: Scope) -> str:
    """The key that is shown: as OpenAI's clients do (`Authorization: Bearer`), or as Anthropic's (`x-api-key`)."""
    headers: dict[bytes, str] = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    scheme, _, key = headers.get(b"authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    return "" if scheme else headers.get(b"x-api-key", "").strip()


async def _read_body(receive: Receive) -> bytes | None:
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            break
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            return None
        more = message.get("more_body", False)
    return b"".join(parts)


def _carries_internal_field(body: bytes) -> bool:
    # Escapes and, as json reads it too, UTF-16 and UTF-32 (which have zero bytes) can spell the name otherwise.
    if not any(sign in body for sign in (b"_transfer", b"\\u", b"\0")):
        return False
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return False
    if not isinstance(parsed, dict):
        return False
    arguments = parsed.get("vllm_xargs")
    places = [parsed, arguments if isinstance(arguments, dict) else {}]
    return any(place.get(field) is not None for place in places for field in _INTERNAL_FIELDS)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> MutableMapping[str, Any]:
        return pending.pop() if pending else await receive()

    return replayed


async def _refuse(send: Send, status: int, content: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})
