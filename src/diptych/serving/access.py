"""Who may talk to the endpoint, and what a request may never carry.

For the layers behind it, `AccessMiddleware` leaves in the ASGI scope: `diptych.key` (a `Key`: what the sender may),
`diptych.priority` (an int as vLLM counts it: lower is served earlier) and `diptych.timeout_s` (seconds after which the
client gives up; None: never).
"""

import ipaddress
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from diptych.serving import metrics
from diptych.serving.errors import INVALID, error_body
from diptych.serving.keys import ApiKeys, Key
from diptych.serving.routes import route_path

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Mapping[bytes, str]

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/ready"})
# Prefixes: vLLM mounts its metrics under whatever begins so.
ADMIN_PATHS = ("/diptych/", "/metrics")
MAX_BODY_BYTES = 32 * 2**20
# With one of these somebody stands between, whose client may be anybody.
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")
MAX_HEADER_BYTES = 32 * 2**10
MAX_HEADERS = 100
MAX_TIMEOUT_S = 24 * 3600.0
PRIORITY_HEADER = b"x-diptych-priority"
TIMEOUT_HEADER = b"x-request-timeout"
_INTERNAL_FIELD = "kv_transfer_params"
_INTERNAL_FIELDS = (_INTERNAL_FIELD, "ec_transfer_params")
_KINDS = {401: "invalid_api_key", 403: "permission_denied"}
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,9}")
_TIMEOUT = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+) ?(ms|s)?")


def behind_haproxy() -> bool:
    """Whether Serve has HAProxy before its replicas: to them every client then has HAProxy's address."""
    return os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1"


def hides_clients() -> bool:
    """Whether a client with an address of this machine may be elsewhere: HAProxy lets in others than loopback's."""
    return behind_haproxy() and os.environ.get("DIPTYCH_ON_LOOPBACK") != "1"


class AccessMiddleware:
    """Lets in who has a key, and no request that is too large or steers what only the server may.

    Refuses with 401 (no key), 403 (an ordinary key on an admin route), 413 and 431 (body or headers too large) and 400
    (headers that can't be read; `kv_transfer_params`, which says from which address the KV cache is read: a client that
    could set it could make the engine read from anywhere).

    Args:
        api_key_file: the file or files with the keys, as `ApiKeys` reads them. None is `open`, since there is no key.
        open: clients on this machine (a loopback address) need no key, but for admin routes. Behind HAProxy on other
            interfaces, which hides where clients are, it has no effect.
    """

    def __init__(self, app: App, *, api_key_file: str | list[str] | None, open: bool = False) -> None:
        self._app = app
        self._keys = ApiKeys(api_key_file or [])
        asks_none = open or not api_key_file
        self._is_open = asks_none and not hides_clients()
        if asks_none and not self._is_open:
            logger.error("HAProxy hides where clients are: all of them need a key (access.api_key_file).")
        elif not api_key_file:
            told = "The endpoint has no keys (access.api_key_file): only clients on this machine are served."
            logger.warning(told)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # no route takes one
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._admit(scope)
            if scope["method"] == "POST":
                receive = _replay(await _read_body(receive), receive)
        except _Refused as refused:
            metrics.refused(refused.status)
            await refused.answer(send)
            return
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        scope.update({"diptych.key": Key(), "diptych.priority": 0, "diptych.timeout_s": None})
        headers = _headers(scope)
        path = route_path(scope)
        if path in OPEN_PATHS or scope["method"] == "OPTIONS":  # a browser asks whether it may ask
            return
        key = self._key_for(path, headers, scope)
        scope["diptych.key"] = key
        scope["diptych.priority"] = _priority(headers, key)
        scope["diptych.timeout_s"] = _timeout_s(headers)

    def _key_for(self, path: str, headers: Headers, scope: Scope) -> Key:
        key = self._keys.find(_shown_key(headers))
        is_admin_route = path.startswith(ADMIN_PATHS)
        is_direct = not any(name in headers for name in _FORWARDED)
        if key is None and not is_admin_route and self._is_open and is_direct and _is_on_this_machine(scope):
            return Key()
        if key is None:
            asked = "an admin key" if is_admin_route else "a key"
            raise _Refused(
                401, f"The API key is missing or wrong; send {asked} as 'Authorization: Bearer KEY'."
            )
        if is_admin_route and not key.admin:
            raise _Refused(
                403,
                f"{path} needs an admin key, and this one is ordinary. A key becomes one by the word 'admin' behind "
                "it, in the file that holds the endpoint's keys.",
            )
        return key


class _Refused(Exception):  # noqa: N818 - a refusal is no mishap
    """A request that does not come through, with what its client is told."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self._content = error_body(message, _KINDS.get(status, INVALID), status, param)

    async def answer(self, send: Send) -> None:
        headers = [(b"content-type", b"application/json")]
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(self._content).encode()})


def _headers(scope: Scope) -> Headers:
    """The request's headers, unless they are too large or announce a body that is."""
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    if size > MAX_HEADER_BYTES or len(scope["headers"]) > MAX_HEADERS:
        limit = f"{MAX_HEADER_BYTES // 2**10} KiB or {MAX_HEADERS}"
        raise _Refused(431, f"The request's headers are more than {limit}.")
    headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    length = headers.get(b"content-length", "")
    if length.isdecimal() and float(length) > MAX_BODY_BYTES:
        raise _too_large()
    return headers


def _shown_key(headers: Headers) -> str:
    """The key that is shown: as OpenAI's clients do (`Authorization: Bearer`), or as Anthropic's (`x-api-key`)."""
    scheme, _, key = headers.get(b"authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    return "" if scheme else headers.get(b"x-api-key", "").strip()


def _is_on_this_machine(scope: Scope) -> bool:
    client = scope.get("client")
    if not client:  # a Unix socket
        return True
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _priority(headers: Headers, key: Key) -> int:
    """The key's priority, or a later one that the client asks for."""
    asked = headers.get(PRIORITY_HEADER)
    if asked is None:
        return key.priority
    if not _WHOLE_NUMBER.fullmatch(asked.strip()):
        raise _unreadable(PRIORITY_HEADER, "is no whole number of at most 9 digits")
    return max(key.priority, int(asked))


def _timeout_s(headers: Headers) -> float | None:
    """Seconds after which the client gives up, from `30`, `0.5`, `30s` or `500ms`."""
    asked = headers.get(TIMEOUT_HEADER)
    if asked is None:
        return None
    parts = _TIMEOUT.fullmatch(asked.strip())
    seconds = float(parts[1]) / (1000 if parts[2] == "ms" else 1) if parts else 0.0
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise _unreadable(TIMEOUT_HEADER, "is no time above 0 and up to 24 hours, like 30, 30s or 500ms")
    return seconds


def _unreadable(header: bytes, what: str) -> _Refused:
    name = header.decode()
    return _Refused(400, f"The header {name} {what}.", name)


def _too_large() -> _Refused:
    return _Refused(413, f"The request body is larger than {MAX_BODY_BYTES // 2**20} MiB.")


async def _read_body(receive: Receive) -> bytes:
    """The whole body, unless it is too large or carries a field that only the server sets."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            break
        piece = message.get("body", b"")
        if len(body) + len(piece) > MAX_BODY_BYTES:
            raise _too_large()
        body += piece
        more = message.get("more_body", False)
    if _carries_internal_field(body):
        raise _Refused(400, f"'{_INTERNAL_FIELD}' is set by the server and may not be sent.", _INTERNAL_FIELD)
    return bytes(body)


def _carries_internal_field(body: bytes | bytearray) -> bool:
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
