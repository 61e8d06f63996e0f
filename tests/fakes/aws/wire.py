"""AWS's protocols, as the client's own service models describe them: which operation a request asks for, its
parameters, and how a result or an error is written. What the operations do is elsewhere."""

import functools
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

from moto.core.loaders import create_loader
from moto.core.model import OperationModel, ServiceModel
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.serialize import SerializationContext, get_serializer_class
from werkzeug.wrappers import Request

REQUEST_ID = "7a62c49f-347e-4fc4-9331-6e8e0a1b2c3d"

# Names under which requests are signed, and the models of the services.
_MODELS = {
    "servicequotas": "service-quotas",
    "tagging": "resourcegroupstaggingapi",
    "elasticloadbalancing": "elbv2",
}


class AwsError(Exception):
    """An answer that refuses: the code and message that a client is to see."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


@dataclass(frozen=True)
class Call:
    """A request to AWS.

    Attributes:
        service: as it is signed: "eks", "servicequotas".
        operation: "DescribeCluster"; "" where nobody knows.
        access_key: id of the key that signed.
    """

    service: str
    operation: str
    region: str
    access_key: str
    parameters: Mapping[str, Any]

    @property
    def action(self) -> str:
        """As policies name it: "eks:DescribeCluster"."""
        prefix = {"tagging": "tag"}.get(self.service, self.service)
        return f"{prefix}:{self.operation}"


@functools.cache
def _model(service: str) -> ServiceModel:
    name = _MODELS.get(service, service)
    return ServiceModel(create_loader().load_service_model(name, "service-2"), service_name=name)


def _protocol(service: str) -> str:
    """The one that moto can read and write, where a service speaks several."""
    model = _model(service)
    spoken = model.metadata.get("protocols", [model.protocol])
    return next(str(one) for one in spoken if one in PROTOCOL_PARSERS)


@functools.cache
def _routes(service: str) -> tuple[tuple[str, re.Pattern[str], str], ...]:
    """Method, path and operation of a service that speaks REST; the longest paths first."""
    model = _model(service)
    found = []
    for name in model.operation_names:
        http = model.operation_model(name).http
        path = re.sub(r"\{(\w+)\+?\}", r"(?P<\1>[^/]+)", http["requestUri"].split("?")[0])
        found.append((http["method"], re.compile(f"^{path}$"), name))
    return tuple(sorted(found, key=lambda route: -len(route[1].pattern)))


def read(environ: dict[str, Any]) -> Call | None:
    """The request's call; None where it is none that we know how to read. Its body can be read again."""
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    signed = re.search(r"Credential=([^/]+)/\d+/([^/]+)/([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
    if signed is None:
        return None
    access_key, region, service = signed.groups()
    try:
        operation, path_parameters = _operation(service, environ, body)
    except (LookupError, ValueError):
        return Call(service, "", region, access_key, {})
    parameters = _parameters(service, operation, environ, body, path_parameters)
    environ["wsgi.input"] = io.BytesIO(body)
    return Call(service, operation, region, access_key, parameters)


def write(call: Call, result: Mapping[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a good answer, given in the shape that boto3 returns."""
    model = _model(call.service)
    serializer = get_serializer_class(model.service_name, _protocol(call.service))(
        _operation_model(call.service, call.operation), context=SerializationContext(REQUEST_ID)
    )
    written = serializer.serialize(result)
    body = written["body"]
    return (
        int(written["status_code"]),
        dict(written["headers"]),
        body if isinstance(body, bytes) else body.encode(),
    )


def refuse(service: str, error: AwsError) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an error in the service's protocol."""
    try:
        protocol = _protocol(service)
    except Exception:  # botocore's: no such service
        protocol = "json"
    code, message = escape(error.code), escape(error.message)
    if protocol == "ec2":
        body = (
            f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
            f"<RequestID>{REQUEST_ID}</RequestID></Response>"
        )
    elif protocol in {"query", "rest-xml"}:
        body = (
            f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>"
            f"<RequestId>{REQUEST_ID}</RequestId></ErrorResponse>"
        )
    else:
        body = json.dumps({"__type": error.code, "message": error.message})
    kind = "text/xml" if body.startswith("<") else "application/json"
    headers = {"Content-Type": kind, "x-amzn-errortype": error.code, "x-amzn-RequestId": REQUEST_ID}
    return error.status, headers, body.encode()


def _operation(service: str, environ: Mapping[str, Any], body: bytes) -> tuple[str, dict[str, str]]:
    """Raises LookupError or ValueError (of the model) where nothing fits."""
    if target := environ.get("HTTP_X_AMZ_TARGET"):
        return target.rpartition(".")[2], {}
    protocol = _protocol(service)
    if protocol in {"ec2", "query"}:
        form = parse_qs(body.decode()) or parse_qs(environ.get("QUERY_STRING", ""))
        return form["Action"][0], {}
    path = environ.get("REQUEST_URI") or environ.get("RAW_URI") or environ["PATH_INFO"]
    for method, pattern, name in _routes(service):
        matched = pattern.match(path.split("?")[0])
        if matched and method == environ["REQUEST_METHOD"]:
            return name, {key: unquote(value) for key, value in matched.groupdict().items()}
    raise LookupError(path)


def _operation_model(service: str, operation: str) -> OperationModel:
    return _model(service).operation_model(operation)


def _parameters(
    service: str, operation: str, environ: dict[str, Any], body: bytes, in_path: Mapping[str, str]
) -> Mapping[str, Any]:
    """As boto3 takes them."""
    request, model = Request(environ), _operation_model(service, operation)
    parser = PROTOCOL_PARSERS[_protocol(service)](model)
    parsed = parser.parse(
        {
            "method": request.method,
            "values": request.values,
            "headers": request.headers,
            "body": body,
            "url_path": request.path,
            "url_params": dict(in_path),
        }
    )
    return dict(parsed or {})
