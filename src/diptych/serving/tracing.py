"""OpenTelemetry's spans over both legs of a request, for a collector that the standard variables name.

    POST /v1/chat/completions          from request to the answer's end
        diptych.prefill                the call to a prefill replica, as decode sees it
            diptych.prefill.engine     there, in its process
        diptych.kv_transfer            its length as NIXL measured it, ended at the first token
        diptych.decode                 from decode's engine taking the prompt to its last token

Without OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT nothing is imported and every call returns at
once. Tracing of a process starts with its first span, after its engine was forked off. A collector that is down costs
its spans and two lines in the log. No span carries text of a prompt or an answer.
"""

import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any

from diptych.serving.journal import finish_reasons, first_token_s
from diptych.serving.record import Leg, Record
from diptych.serving.routes import route_of

logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
}
_METHODS = ("GET", "POST")
_FLUSH_S = 2.0
_current: ContextVar[Any] = ContextVar("diptych_trace", default=None)


class Span:
    """A span that is open, or nothing where spans are not wanted.

    Args:
        headers: what to send along to have another process continue the trace; None: nothing.
    """

    def __init__(self, span: Any = None, headers: Mapping[str, str] | None = None) -> None:
        self._span = span
        self.headers = headers

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes; those that are None are left out."""
        if self._span is not None:
            self._span.set_attributes(_known(attributes))

    def request_done(self, record: Record, status: int) -> None:
        """Say how a request ended: the attributes of its record, and an error for a status from 500 on."""
        if self._span is None:
            return
        self.note(_of_request(record, status))
        if status >= 500:
            self._fail(str(status))

    def _fail(self, kind: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR)


@contextlib.contextmanager
def incoming(path: str, headers: Mapping[str, str], method: str = "POST") -> Iterator[Span]:
    """The span of a client's request; a `traceparent` among its headers makes it part of that trace.

    Args:
        path: of the request's URL.
        headers: the request's, their names in small letters.
        method: the request's.
    """
    tools = _tools()
    if tools is None:
        yield Span()
        return
    route = route_of(path)
    known_method = method if method in _METHODS else "_OTHER"
    attributes = {
        "http.request.method": known_method,
        "http.route": route,
        "gen_ai.operation.name": _OPERATIONS.get(route),
    }
    parent = tools.parent(headers)
    with _opened(f"{known_method} {route}", "SERVER", parent, attributes) as opened:
        yield opened


@contextlib.contextmanager
def span(name: str, attributes: Mapping[str, Any] | None = None) -> Iterator[Span]:
    """A span around a call to another replica, inside the request's; its `headers` go along with the call."""
    parent = _current.get()
    if parent is None:
        yield Span()
        return
    with _opened(name, "CLIENT", parent, attributes or {}) as opened:
        yield opened


@contextlib.contextmanager
def continued(
    trace_headers: Mapping[str, str] | None, name: str, attributes: Mapping[str, Any] | None = None
) -> Iterator[Span]:
    """The other end of such a call. Its `headers` are for the engine, whose own spans then hang below.

    Args:
        trace_headers: what came along; without any there is no span.
        name: of the span.
        attributes: of the span.
    """
    tools = _tools() if trace_headers else None
    if tools is None or trace_headers is None:
        yield Span(headers=trace_headers)
        return
    with _opened(name, "SERVER", tools.parent(trace_headers), attributes or {}) as opened:
        yield opened


def trace_headers() -> Mapping[str, str] | None:
    """What to give an engine that runs a prompt of the current request here; None without a span."""
    tools = _tools()
    parent = _current.get()
    return None if tools is None or parent is None else tools.headers(parent)


def leg_done(leg: Leg) -> None:
    """Make the spans of a prompt that has ended: its KV transfer and its decode, as they were timed.

    Called inside the request's span.
    """
    tools, parent = _tools(), _current.get()
    if tools is None or parent is None or leg.handed_at is None:
        return
    if leg.transfer is not None and leg.decode_began_at is not None:
        moved = {
            "diptych.leg.id": leg.id,
            "diptych.kv_transfer.bytes": leg.transfer.bytes,
            "diptych.kv_transfer.descriptors": leg.transfer.descriptors,
            "diptych.kv_transfer.post_seconds": leg.transfer.post_seconds,
            # NIXL tells how long it took, not when: it is drawn as ending at decode's first token.
            "diptych.computed": ("start", "end"),
        }
        begun_at = leg.decode_began_at - leg.transfer.seconds
        tools.timed("diptych.kv_transfer", parent, moved, begun_at, leg.decode_began_at)
    tools.timed("diptych.decode", parent, _of_leg(leg), leg.handed_at, time.monotonic())


def flush(timeout_s: float = _FLUSH_S) -> None:
    """Send what has not been sent yet, for so many seconds at most. Called before a replica ends."""
    if not _tools.cache_info().currsize:
        return
    tools = _tools()
    if tools is not None:
        sending = threading.Thread(target=tools.provider.force_flush, daemon=True)
        sending.start()
        sending.join(timeout_s)


@contextlib.contextmanager
def _opened(name: str, kind: str, parent: Any, attributes: Mapping[str, Any]) -> Iterator[Span]:
    tools = _tools()
    assert tools is not None
    begun, context = tools.start(name, kind, parent, attributes)
    opened = Span(begun, tools.headers(context))
    token = _current.set(context)
    try:
        yield opened
    except BaseException as error:  # its name only: messages of errors may quote a request
        opened._fail(type(error).__name__)
        raise
    finally:
        _current.reset(token)
        begun.end()


class _Tools:
    """OpenTelemetry, imported: this process's tracer, apart from any that an engine makes global."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.provider = provider
        self._tracer = provider.get_tracer("diptych")
        self._trace = trace
        self._nothing = Context()
        self._propagator = TraceContextTextMapPropagator()

    def parent(self, headers: Mapping[str, str]) -> Any:
        return self._propagator.extract(headers, context=self._nothing)

    def headers(self, context: Any) -> dict[str, str]:
        carried: dict[str, str] = {}
        self._propagator.inject(carried, context=context)
        return carried

    def start(self, name: str, kind: str, parent: Any, attributes: Mapping[str, Any]) -> tuple[Any, Any]:
        """A new span, and the context of what happens inside it."""
        begun = self._tracer.start_span(
            name, context=parent, kind=self._trace.SpanKind[kind], attributes=_known(attributes)
        )
        return begun, self._trace.set_span_in_context(begun, parent)

    def timed(
        self, name: str, parent: Any, attributes: Mapping[str, Any], begun_at: float, ended_at: float
    ) -> None:
        """A span that is over, its times on `time.monotonic`'s clock."""
        made = self._tracer.start_span(
            name, context=parent, attributes=_known(attributes), start_time=_epoch_ns(begun_at)
        )
        made.end(end_time=_epoch_ns(ended_at))


@cache
def _tools() -> _Tools | None:
    """This process's, or None where there is no collector."""
    if not any(os.environ.get(name) for name in _ENDPOINTS) or _is_off():
        return None
    try:
        from diptych.serving.collector import make_provider

        provider = make_provider()
    except Exception as error:  # a variable that OpenTelemetry can't read must not cost an answer
        logger.error("There are no spans, OpenTelemetry could not be set up: %s", error)
        return None
    atexit.register(flush)
    return _Tools(provider)


def _is_off() -> bool:
    return os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or (
        os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
    )


def _of_request(record: Record, status: int) -> dict[str, Any]:
    told = record.to_json()
    return {
        "http.response.status_code": status,
        "gen_ai.usage.input_tokens": sum(leg.prompt_tokens or 0 for leg in record.legs) or None,
        "gen_ai.usage.output_tokens": sum(leg.output_tokens for leg in record.legs) or None,
        "gen_ai.usage.cache_read.input_tokens": sum(leg.cached_tokens or 0 for leg in record.legs) or None,
        "gen_ai.response.finish_reasons": finish_reasons(record.legs) or None,
        "gen_ai.response.time_to_first_chunk": first_token_s(record),
        "diptych.request.id": record.id,
        "diptych.path": told["path"],
        "diptych.why": told["why"],
        "diptych.prefill.replica": told["prefill_replica"],
        "diptych.decode.replica": told["decode_replica"],
        "diptych.uncached_tokens": told["uncached_tokens"],
        "diptych.priority": record.priority,
        "diptych.refusal": record.refusal.kind if record.refusal else None,
    }


def _of_leg(leg: Leg) -> dict[str, Any]:
    first_s = (
        leg.decode_began_at - leg.handed_at
        if leg.decode_began_at is not None and leg.handed_at is not None
        else None
    )
    return {
        "gen_ai.usage.input_tokens": leg.prompt_tokens,
        "gen_ai.usage.output_tokens": leg.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": leg.cached_tokens,
        "gen_ai.response.finish_reasons": [leg.finish_reason] if leg.finish_reason else None,
        "diptych.leg.id": leg.id,
        "diptych.path": leg.path,
        "diptych.why": leg.why,
        "diptych.attempts": leg.attempts,
        "diptych.kv_transfer.failed": leg.kv_transfer_failed,
        "diptych.first_token_seconds": first_s,
    }


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _epoch_ns(at: float) -> int:
    return time.time_ns() - round((time.monotonic() - at) * 1e9)
