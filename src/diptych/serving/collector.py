"""The collector of spans: who it is by OpenTelemetry's variables, and what the log hears of it when it is down.

Imported only where there is one.
"""

import contextlib
import logging
import os
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from ray import serve
from ray.serve.exceptions import RayServeException

logger = logging.getLogger(__name__)

_RESOURCE = "OTEL_RESOURCE_ATTRIBUTES"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
# What OpenTelemetry's own exporters say, several times per batch, goes unsaid: `Collector` says it once.
_TALKATIVE = (
    "opentelemetry.exporter",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.trace.export",
)


class Collector(SpanExporter):
    """An exporter whose failures are told once, and so is their end."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter
        self._works = True
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        """Send spans, in a thread of their own."""
        try:
            result: SpanExportResult = self._exporter.export(spans)
        except Exception as error:
            result, why = SpanExportResult.FAILURE, f"{type(error).__name__}: {error}"
        else:
            why = "it is not there or does not take them"
        self._tell(result is SpanExportResult.SUCCESS, why)
        return result

    def shutdown(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is kept here."""
        return True

    def _tell(self, works: bool, why: str) -> None:
        if works == self._works:
            return
        self._works = works
        if works:
            logger.warning("The collector takes spans again.")
        else:
            logger.warning("The collector gets no spans: %s. They are lost until it takes them again.", why)


def make_provider() -> Any:
    """What makes spans in this process and sends them to the collector.

    Raises:
        ValueError: a variable of OpenTelemetry's holds what it can't.
    """
    # `tracing.flush` sends the rest when the process ends; the provider itself might wait half a minute for nobody.
    provider = TracerProvider(resource=Resource.create(_about()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Collector(_exporter())))
    return provider


def _about() -> dict[str, str]:
    """Whose spans they are. OpenTelemetry's variables go before, as far as they say it."""
    about = {}
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in os.environ.get(_RESOURCE, ""):
        about["service.name"] = "diptych"
    with contextlib.suppress(RayServeException):
        about["service.instance.id"] = serve.get_replica_context().replica_id.unique_id
    return about


def _exporter() -> Any:
    """OpenTelemetry's own exporter for the protocol that its variables name, HTTP without any.

    Raises:
        ValueError: there is no such protocol.
    """
    protocol = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), "http/protobuf")
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        return OverHttp()
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        return OverGrpc()
    raise ValueError(f"{_PROTOCOLS[0]} is {protocol!r}: it can be http/protobuf or grpc")
