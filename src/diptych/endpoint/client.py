"""One chat completion from an OpenAI-compatible endpoint, streamed, with what each phase took.

Diptych's endpoint tells the phases' times in a chunk of its own before `data: [DONE]`; any other server works
too, with those values None.
"""

import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import httpx

from diptych.endpoint import failures
from diptych.endpoint.address import Endpoint
from diptych.endpoint.answer import Answer
from diptych.endpoint.http import open_client
from diptych.endpoint.metrics import fetch_models
from diptych.endpoint.result import ChatResult, Delta
from diptych.endpoint.sse import events

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 120.0
"""Seconds without a byte: a long prompt on a slow machine is silent until its first token."""

_ERROR_BODY_BYTES = 64 * 1024

Message = Mapping[str, str]
"""`{"role": "system" | "user" | "assistant", "content": ...}`"""


def chat(
    endpoint: Endpoint,
    messages: Sequence[Message],
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    extra: Mapping[str, Any] | None = None,
    read_timeout_s: float = READ_TIMEOUT_S,
) -> ChatResult:
    """The whole answer to `messages`; arguments and errors are those of `stream_chat`."""
    deltas = stream_chat(
        endpoint,
        messages,
        max_tokens=max_tokens,
        temperature=temperature,
        extra=extra,
        read_timeout_s=read_timeout_s,
    )
    return next(delta.result for delta in deltas if delta.result is not None)


def stream_chat(
    endpoint: Endpoint,
    messages: Sequence[Message],
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    extra: Mapping[str, Any] | None = None,
    read_timeout_s: float = READ_TIMEOUT_S,
) -> Generator[Delta, None, None]:
    """Yield the answer to `messages` as it arrives; the last delta carries the `ChatResult`.

    Closing the generator closes the connection, which ends the request on the server.

    Args:
        max_tokens: the most tokens to generate; None leaves it to the server.
        temperature: 0 is greedy; None leaves it to the server.
        extra: further fields of the request, by their OpenAI or vLLM names (`{"seed": 1}`).
        read_timeout_s: seconds to wait for each byte.

    Raises:
        EndpointError: there is no key, nothing answers, the request is refused, or the answer breaks off.
    """
    key = endpoint.read_key()
    timeout = httpx.Timeout(read_timeout_s, connect=CONNECT_TIMEOUT_S)
    body = _body(endpoint.model, messages, max_tokens, temperature, extra or {})
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream",
        # A proxy that compresses holds tokens back.
        "accept-encoding": "identity",
        "x-diptych-timing": "include",
        "x-diptych-prefill": "remote",  # a chat is there to show both phases, also where a short way would do
    }
    with open_client(endpoint, key, timeout) as client:
        answer = Answer(endpoint.model, sent_s=time.perf_counter())
        try:
            with client.stream("POST", "/v1/chat/completions", content=body, headers=headers) as response:
                _check(endpoint, response, key)
                yield from _deltas(endpoint, response, answer, key)
        except httpx.ReadTimeout as error:
            raise failures.silent(endpoint, read_timeout_s, answer.tokens) from error
        except httpx.TransportError as error:
            raise failures.unreachable(endpoint, error) from error
    yield Delta("", answer.result())


def _body(
    model: str,
    messages: Sequence[Message],
    max_tokens: int | None,
    temperature: float | None,
    extra: Mapping[str, Any],
) -> bytes:
    options = {"max_tokens": max_tokens, "temperature": temperature}
    return json.dumps(
        {
            **{name: value for name, value in options.items() if value is not None},
            **extra,
            "model": model,
            "messages": [dict(message) for message in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


def _check(endpoint: Endpoint, response: httpx.Response, key: str | None) -> None:
    """Raise unless a stream of events follows."""
    if response.status_code != 200:
        models = fetch_models(endpoint) if response.status_code == 404 else None
        raise failures.refused(endpoint, response, _beginning(response), key=key, models=models)
    kind = response.headers.get("content-type", "no content type").partition(";")[0].strip()
    if kind != "text/event-stream":
        raise failures.unintelligible(endpoint, f"{kind} where a stream of events was asked for")


def _beginning(response: httpx.Response) -> bytes:
    """As much of a refusal's body as is worth reading; what breaks off is left out."""
    body = b""
    try:
        for piece in response.iter_bytes():
            body += piece
            if len(body) >= _ERROR_BODY_BYTES:
                break
    except httpx.HTTPError:
        pass
    return body[:_ERROR_BODY_BYTES]


def _deltas(endpoint: Endpoint, response: httpx.Response, answer: Answer, key: str | None) -> Iterator[Delta]:
    """Yield the stream's texts and collect it in `answer`, up to `[DONE]` or the end of a finished answer."""
    for data in events(_pieces(endpoint, response, answer)):
        if data == "[DONE]":
            return
        chunk = _chunk(endpoint, data)
        if failures.is_error(chunk):
            raise failures.failed_inside(endpoint, chunk, answer.tokens, key)
        text = answer.add(chunk, time.perf_counter())
        if text:
            yield Delta(text)
    if not answer.complete:
        raise failures.cut(endpoint, answer.tokens)


def _pieces(endpoint: Endpoint, response: httpx.Response, answer: Answer) -> Iterator[bytes]:
    """The body's bytes; ends without an error where only numbers are lost, after a finished answer."""
    try:
        yield from response.iter_bytes()
    except httpx.HTTPError as error:
        if answer.complete:
            return
        if isinstance(error, httpx.TimeoutException):
            raise
        raise failures.cut(endpoint, answer.tokens) from error


def _chunk(endpoint: Endpoint, data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        raise failures.unintelligible(endpoint, "a chunk that is no JSON object")
    return chunk
