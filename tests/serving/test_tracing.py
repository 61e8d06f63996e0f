"""Spans, as a collector that speaks OTLP over HTTP receives them; and what it costs when there is none."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")
pytest.importorskip("opentelemetry.sdk")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import diptych
from diptych.serving import tracing
from diptych.serving.record import Leg, Record, Refusal
from diptych.serving.transfers import Transfer

CHAT = "/v1/chat/completions"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
SERVER, CLIENT, INTERNAL, ERROR = 2, 3, 1, 2
VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
    "OTEL_TRACES_SAMPLER",
)


class Receiver:
    """A collector: takes requests of OTLP/HTTP and keeps their spans. `status` is what it answers."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.headers["content-type"] == "application/x-protobuf"
                if receiver.status == 200:
                    receiver.paths.append(self.path)
                    receiver.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def spans(self) -> dict[str, Any]:
        """By name, after all that is made was sent."""
        tracing.flush(10.0)
        found = [span for scope in self._scopes() for span in scope.spans]
        by_name = {span.name: span for span in found}
        assert len(by_name) == len(found)
        return by_name

    def about(self) -> dict[str, Any]:
        """The resource whose spans they are."""
        (resources,) = {str(each.resource): each for each in self._resources()}.values()
        return attributes(resources.resource)

    def _resources(self) -> list[Any]:
        return [each for request in self.requests for each in request.resource_spans]

    def _scopes(self) -> list[Any]:
        return [scope for each in self._resources() for scope in each.scope_spans]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def attributes(of: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in of.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has not traced yet."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    tracing._tools.cache_clear()
    yield
    tracing._tools.cache_clear()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A collector that the standard variable names."""
    receiver = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    yield receiver
    receiver.close()


def done_leg() -> Leg:
    """A prompt that took 0.25 s in decode, 0.1 s of it until the first token, 0.04 s of that for its KV transfer."""
    now = time.monotonic()
    return Leg(
        path="remote",
        transfer=Transfer(2_000_000, 0.04, 0.0004, 60),
        prompt_tokens=100,
        cached_tokens=32,
        attempts=1,
        begun=True,
        handed_at=now - 0.25,
        first_token_at=now - 0.15,
        decode_began_at=now - 0.15,
        output_tokens=8,
        finish_reason="stop",
    )


def one_request(headers: dict[str, str], status: int = 200) -> None:
    """A request through both legs, the prefill replica's part in this process, too."""
    record = Record("decode-1", route=CHAT, began_at=time.monotonic() - 0.4)
    with tracing.incoming(CHAT, headers) as request:
        with tracing.span("diptych.prefill", {"diptych.prefill.replica": "prefill-7"}) as call:
            carried = dict(call.headers or {})
            asyncio.run(_prefill(carried))
            call.note({"diptych.queue_ms": 3.5, "diptych.unknown": None})
        record.legs.append(done_leg())
        tracing.leg_done(record.legs[0])
        request.request_done(record, status)


async def _prefill(carried: dict[str, str]) -> None:
    with tracing.continued(carried, "diptych.prefill.engine", {"diptych.computed_tokens": 68}) as there:
        assert there.headers is not None and there.headers != carried


def test_a_request_makes_spans_over_both_legs_in_the_clients_trace(collector: Receiver) -> None:
    one_request({"traceparent": TRACEPARENT})
    spans = collector.spans()
    request = spans[f"POST {CHAT}"]
    call, there = spans["diptych.prefill"], spans["diptych.prefill.engine"]
    transfer, decode = spans["diptych.kv_transfer"], spans["diptych.decode"]
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert request.parent_span_id.hex() == PARENT
    assert {each.parent_span_id for each in (call, transfer, decode)} == {request.span_id}
    assert there.parent_span_id == call.span_id
    kinds = [span.kind for span in (request, call, there, transfer, decode)]
    assert kinds == [SERVER, CLIENT, SERVER, INTERNAL, INTERNAL]
    assert collector.paths == ["/v1/traces"] * len(collector.paths)


def test_legs_have_the_times_that_were_measured(collector: Receiver) -> None:
    one_request({})
    spans = collector.spans()
    transfer, decode = spans["diptych.kv_transfer"], spans["diptych.decode"]
    lasted = {
        span.name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for span in (transfer, decode)
    }
    assert lasted["diptych.kv_transfer"] == pytest.approx(0.04, abs=1e-3)
    assert lasted["diptych.decode"] == pytest.approx(0.25, abs=0.05)
    until_first = (transfer.end_time_unix_nano - decode.start_time_unix_nano) / 1e9
    assert until_first == pytest.approx(0.1, abs=2e-3)
    assert abs(decode.end_time_unix_nano / 1e9 - time.time()) < 20


def test_attributes_are_those_of_the_conventions_and_ours(collector: Receiver) -> None:
    one_request({})
    spans = collector.spans()
    told = attributes(spans[f"POST {CHAT}"])
    assert told.pop("diptych.request.id")
    assert told.pop("gen_ai.response.time_to_first_chunk") == pytest.approx(0.25, abs=0.1)
    assert told == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 8,
        "gen_ai.usage.cache_read.input_tokens": 32,
        "gen_ai.response.finish_reasons": ["stop"],
        "diptych.path": "remote",
        "diptych.decode.replica": "decode-1",
        "diptych.uncached_tokens": 68,
        "diptych.priority": 0,
    }
    call = attributes(spans["diptych.prefill"])
    assert call == {"diptych.prefill.replica": "prefill-7", "diptych.queue_ms": 3.5}
    moved = attributes(spans["diptych.kv_transfer"])
    assert moved["diptych.kv_transfer.bytes"] == 2_000_000 and moved["diptych.computed"] == ["start", "end"]
    assert attributes(spans["diptych.decode"])["diptych.first_token_seconds"] == pytest.approx(0.1)


def test_the_service_has_a_name_that_can_be_set(collector: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    one_request({})
    collector.spans()
    assert collector.about()["service.name"] == "diptych"
    collector.requests.clear()
    tracing._tools.cache_clear()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat-for-all")
    one_request({})
    collector.spans()
    assert collector.about()["service.name"] == "chat-for-all"


def test_the_endpoint_for_traces_alone_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{receiver.url}/own/way")
    one_request({})
    assert receiver.spans()
    assert set(receiver.paths) == {"/own/way"}
    receiver.close()


def test_a_path_and_a_method_that_a_client_made_up_get_into_no_span(collector: Receiver) -> None:
    with tracing.incoming("/v1/responses/secret", {}, "SECRET"):
        pass
    (name,) = collector.spans()
    assert name == "_OTHER /v1/responses/{response_id}"
    assert b"secret" not in b"".join(request.SerializeToString().lower() for request in collector.requests)


def test_only_what_went_wrong_here_is_an_error(collector: Receiver) -> None:
    one_request({}, 429)
    assert collector.spans()[f"POST {CHAT}"].status.code != ERROR
    collector.requests.clear()
    one_request({}, 503)
    failed = collector.spans()[f"POST {CHAT}"]
    assert failed.status.code == ERROR and attributes(failed)["error.type"] == "503"


def test_an_exception_is_told_by_its_name_and_not_by_its_words(collector: Receiver) -> None:
    with pytest.raises(ValueError, match="my prompt"), tracing.incoming(CHAT, {}):
        raise ValueError("my prompt")
    (failed,) = collector.spans().values()
    assert failed.status.code == ERROR and attributes(failed)["error.type"] == "ValueError"
    assert b"my prompt" not in b"".join(request.SerializeToString() for request in collector.requests)


def test_a_refused_request_says_which_kind(collector: Receiver) -> None:
    with tracing.incoming(CHAT, {}) as request:
        refused = Refusal(429, "The queue is full.", "overloaded_error", 1)
        request.request_done(Record(route=CHAT, refusal=refused), 429)
    told = attributes(collector.spans()[f"POST {CHAT}"])
    assert told["diptych.refusal"] == "overloaded_error" and "gen_ai.usage.input_tokens" not in told


def test_a_client_that_does_not_want_to_be_traced_is_not(collector: Receiver) -> None:
    one_request({"traceparent": f"00-{TRACE}-{PARENT}-00"})
    one_request({})
    assert TRACE not in {span.trace_id.hex() for span in collector.spans().values()}


def test_requests_at_the_same_time_keep_their_spans_apart(collector: Receiver) -> None:
    async def request(number: int) -> None:
        with tracing.incoming(CHAT, {}):
            await asyncio.sleep(0.001 * (number % 3))
            with tracing.span(f"call-{number}"):
                await asyncio.sleep(0.001)

    async def all_of_them() -> None:
        await asyncio.gather(*(request(number) for number in range(20)))

    asyncio.run(all_of_them())
    tracing.flush(10.0)
    found = [span for scope in collector._scopes() for span in scope.spans]
    calls = [span for span in found if span.name.startswith("call-")]
    requests = {span.span_id for span in found if span.name.startswith("POST")}
    assert len(requests) == 20 and {span.parent_span_id for span in calls} == requests


def test_what_is_nobodys_request_makes_no_spans(collector: Receiver) -> None:
    with tracing.span("diptych.prefill") as call, tracing.continued(None, "diptych.prefill.engine") as there:
        assert call.headers is None and there.headers is None
    tracing.leg_done(done_leg())
    assert tracing.trace_headers() is None
    assert collector.spans() == {}


def test_an_engine_gets_the_requests_span_to_hang_its_own_on(collector: Receiver) -> None:
    with tracing.incoming(CHAT, {"traceparent": TRACEPARENT}):
        carried = tracing.trace_headers()
    assert carried is not None
    _, trace, span, _ = carried["traceparent"].split("-")
    assert (trace, span) == (TRACE, collector.spans()[f"POST {CHAT}"].span_id.hex())


def test_a_collector_that_is_down_blocks_nobody_and_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver()
    receiver.status = 400
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    with caplog.at_level(logging.DEBUG):
        began = time.monotonic()
        for _ in range(5):
            one_request({})
            time.sleep(0.05)
        assert time.monotonic() - began < 5.0
        tracing.flush(10.0)
        ours = [r.getMessage() for r in caplog.records if r.name.startswith(("diptych", "opentelemetry"))]
        assert len(ours) == 1 and ours[0].startswith("The collector gets no spans")
        receiver.status = 200
        one_request({})
        assert receiver.spans()
        ours = [r.getMessage() for r in caplog.records if r.name.startswith(("diptych", "opentelemetry"))]
        assert ours[1:] == ["The collector takes spans again."]
    receiver.close()


def test_the_last_words_wait_for_a_silent_collector_no_longer_than_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://192.0.2.1:4318")  # nobody answers there
    one_request({})
    began = time.monotonic()
    tracing.flush(0.3)
    assert time.monotonic() - began < 2.0


def test_a_process_that_ends_sends_its_spans(collector: Receiver) -> None:
    code = f"from diptych.serving import tracing\nwith tracing.incoming({CHAT!r}, {{}}): pass"
    source = str(Path(diptych.__file__).parents[1])
    environment = {"PYTHONPATH": source, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(collector.spans()) == [f"POST {CHAT}"]


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none"), ("", "")]
)
def test_without_a_collector_nothing_is_traced_or_imported(name: str, value: str) -> None:
    code = (
        "import sys, asyncio\n"
        "from diptych.serving import tracing\n"
        f"with tracing.incoming({CHAT!r}, {{'traceparent': {TRACEPARENT!r}}}) as request:\n"
        "    with tracing.span('diptych.prefill') as call: assert call.headers is None\n"
        "    request.request_done(None, 200)\n"
        "    assert tracing.trace_headers() is None\n"
        "carried = {'traceparent': 'as it came'}\n"
        "with tracing.continued(carried, 'there') as there: assert there.headers is carried\n"
        "tracing.flush()\n"
        "print(*(name for name in sys.modules if name.startswith('opentelemetry')))"
    )
    environment = {"PYTHONPATH": str(Path(diptych.__file__).parents[1])}
    if name:
        environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", name: value}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", "")


def test_a_variable_that_says_nonsense_costs_the_spans_and_no_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "smoke")
    with tracing.incoming(CHAT, {}) as request:
        request.request_done(Record(route=CHAT), 200)
    assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'smoke'" in caplog.text
    assert request.headers is None
