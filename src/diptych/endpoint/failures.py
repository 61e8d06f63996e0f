"""Every way in which a request to an endpoint fails, as an `EndpointError` that says what to do.

What the server says about its refusal is passed on; the key never is, not even when the server echoes it.
"""

import json
from collections.abc import Mapping
from typing import Any

import httpx

from diptych.endpoint.address import Endpoint
from diptych.errors import BusyError, EndpointError

_STATUS_HINT = "`diptych status` says what is up."
_LOGS_HINT = "`diptych logs` shows what happened."
_TOO_LONG = ("context length", "max_model_len", "maximum model length", "too long", "too many tokens")


def unreachable(endpoint: Endpoint, error: httpx.TransportError) -> EndpointError:
    """No connection could be made, or it ended before an answer began."""
    if isinstance(error, httpx.TimeoutException):
        return EndpointError(f"Nothing answers at {endpoint.url}: no connection in time.", _STATUS_HINT)
    if isinstance(error, httpx.ConnectError) and "SSL" in str(error):
        return EndpointError(
            f"No secure connection to {endpoint.url}: {error}.",
            "Does it speak https, with a certificate that holds?",
        )
    if isinstance(error, httpx.ConnectError):
        return EndpointError(f"Nothing answers at {endpoint.url}: {_reason(error)}.", _STATUS_HINT)
    return EndpointError(
        f"The endpoint at {endpoint.url} closed the connection without an answer.",
        f"It may be starting or stopping. {_STATUS_HINT}",
    )


def silent(endpoint: Endpoint, timeout_s: float, tokens: int) -> EndpointError:
    """No byte came for `timeout_s` seconds; `tokens` had come before."""
    return EndpointError(
        f"The endpoint at {endpoint.url} has sent nothing for {timeout_s:g} s, {_so_far(tokens)}.",
        f"An engine may be stuck or overloaded. {_STATUS_HINT}",
    )


def cut(endpoint: Endpoint, tokens: int) -> EndpointError:
    """The stream ended, `tokens` after its start, before the answer did."""
    return EndpointError(
        f"The answer from {endpoint.url} was cut off {_so_far(tokens)}.",
        f"The service may have lost an engine. {_LOGS_HINT}",
    )


def failed_inside(
    endpoint: Endpoint, chunk: Mapping[str, Any], tokens: int, key: str | None
) -> EndpointError:
    """The server reported an error inside the stream it had begun."""
    said = _without_key(server_message(chunk), key) or "it did not say why"
    return EndpointError(f"The endpoint at {endpoint.url} failed {_so_far(tokens)}: {said}", _LOGS_HINT)


def unintelligible(endpoint: Endpoint, what: str) -> EndpointError:
    """The server answered, but not in the protocol; `what` names the part that is not."""
    return EndpointError(
        f"The endpoint at {endpoint.url} answered with {what}.",
        "Is it an OpenAI-compatible endpoint? A proxy in between may have answered instead.",
    )


def refused(
    endpoint: Endpoint,
    response: httpx.Response,
    body: bytes,
    *,
    key: str | None,
    models: list[str] | None = None,
) -> EndpointError:
    """The server answered with a status other than 200.

    Args:
        body: the answer's body, or its beginning.
        key: the key that was sent.
        models: after 404, the names of the models that the endpoint has; None when it does not tell.
    """
    status = response.status_code
    said = _without_key(_said(body), key)
    if status in (401, 403):
        return _unauthorised(endpoint, said)
    if status == 404:
        return _not_found(endpoint, said, models)
    if status in (429, 503):
        return BusyError(
            _sentence(f"The endpoint at {endpoint.url} takes no request now ({status})", said),
            _retry_hint(response.headers.get("retry-after")),
        )
    if 400 <= status < 500:
        too_long = any(words in said.lower() for words in _TOO_LONG)
        return EndpointError(
            _sentence(f"The endpoint at {endpoint.url} refused the request ({status})", said),
            "Send a shorter prompt, or ask for fewer tokens." if too_long else "",
        )
    if 300 <= status < 400:
        where = _without_key(response.headers.get("location", "another address"), key)
        return EndpointError(
            f"The endpoint at {endpoint.url} sends requests on to {where} ({status}).", "Use that address."
        )
    return EndpointError(_sentence(f"The endpoint at {endpoint.url} failed ({status})", said), _LOGS_HINT)


def server_message(body: object) -> str:
    """What the server says went wrong, in the shapes that OpenAI, vLLM and FastAPI use; "" for none."""
    if isinstance(body, str):
        return body.strip()
    if isinstance(body, list):
        return "; ".join(filter(None, map(server_message, body)))
    if isinstance(body, dict):
        found = (
            server_message(body[name]) for name in ("error", "message", "detail", "msg") if body.get(name)
        )
        return next(filter(None, found), "")
    return ""


def is_error(chunk: Mapping[str, Any]) -> bool:
    """Whether a chunk of a stream is an error object and no part of the answer."""
    return bool(chunk.get("error")) or chunk.get("object") == "error"


def _unauthorised(endpoint: Endpoint, said: str) -> EndpointError:
    if endpoint.api_key_file is None:
        return EndpointError(
            _sentence(f"The endpoint at {endpoint.url} wants an API key, and none was sent", said),
            "Name the file that holds the key; `diptych up` prints where it is.",
        )
    return EndpointError(
        _sentence(f"The endpoint at {endpoint.url} does not accept the key in {endpoint.api_key_file}", said),
        f"The key may be of another service. {_STATUS_HINT}",
    )


def _not_found(endpoint: Endpoint, said: str, models: list[str] | None) -> EndpointError:
    if models is None or endpoint.model in models:
        return EndpointError(
            _sentence(f"The endpoint at {endpoint.url} has no /v1/chat/completions (404)", said),
            "Is it an OpenAI-compatible endpoint, and its URL whole?",
        )
    serves = f"It serves {', '.join(models)}." if models else "It serves no model yet."
    return EndpointError(f"The endpoint at {endpoint.url} has no model {endpoint.model}.", serves)


def _said(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    try:
        return server_message(json.loads(text))
    except ValueError:
        # A proxy's HTML page says nothing that the status does not.
        return "" if text.lstrip().startswith("<") else text.strip()[:500]


def _without_key(text: str, key: str | None) -> str:
    return text.replace(key, "[key]") if key else text


def _retry_hint(after: str | None) -> str:
    if after is None:
        return f"Try again in a moment. {_STATUS_HINT}"
    return f"Try again in {after} s." if after.isdecimal() else f"Try again after {after}."


def _sentence(start: str, said: str) -> str:
    return f"{start}: {said}" if said else f"{start}."


def _so_far(tokens: int) -> str:
    """How far an answer had come. Chunks are counted and each holds a token or more: hence "at least"."""
    if tokens == 0:
        return "before the first token"
    return f"after at least {tokens} token{'s' if tokens > 1 else ''}"


def _reason(error: httpx.ConnectError) -> str:
    text = str(error)
    # "[Errno 111] Connection refused" and the like: the number helps nobody.
    text = text.partition("] ")[2] if text.startswith("[Errno") else text
    return text[:1].lower() + text[1:] if text else "no connection"
