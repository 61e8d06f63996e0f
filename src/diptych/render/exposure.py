"""How the endpoint is reached from outside the cluster: not at all, by an internal load balancer, or by a Gateway.

Both ways out end TLS, and both lead to pods on which a proxy of Ray Serve with a running replica answers: KubeRay's
readiness probe says which those are.
"""

from typing import Any

from diptych.errors import DocumentError
from diptych.render import names
from diptych.render.objects import metadata
from diptych.render.serve import DRAIN_S
from diptych.spec import Document

_TLS_PORT = 443
_TLS_POLICY = "ELBSecurityPolicy-TLS13-1-2-2021-06"
_ROUTES = ({"type": "PathPrefix", "value": "/v1"}, {"type": "Exact", "value": "/health"})
"""What clients need. Serve's own pages and our status are for port-forward."""


def exposure_objects(document: Document) -> list[dict[str, Any]]:
    """The objects for `access.expose`; none for `none`.

    Raises:
        DocumentError: TLS or something else that it takes is missing.
    """
    return _WAYS[document.access.expose](document)


def _nothing(_: Document) -> list[dict[str, Any]]:
    return []


def _load_balancer(document: Document) -> list[dict[str, Any]]:
    """A network load balancer inside the VPC.

    The annotations are understood by what every EKS cluster has and by the AWS Load Balancer Controller alike.
    """
    if document.on != "eks":
        raise DocumentError(
            "access.expose is internal-lb, which is a load balancer of AWS, and `on` is not eks.",
            "Set access.expose to gateway or none.",
        )
    certificate = _required(
        document, "tls_certificate_arn", "a certificate in AWS Certificate Manager for access.hostname"
    )
    prefix = "service.beta.kubernetes.io/aws-load-balancer"
    annotations = {
        f"{prefix}-type": "nlb",
        f"{prefix}-internal": "true",
        f"{prefix}-scheme": "internal",
        f"{prefix}-ssl-cert": certificate,
        f"{prefix}-ssl-ports": str(_TLS_PORT),
        f"{prefix}-ssl-negotiation-policy": _TLS_POLICY,
        f"{prefix}-backend-protocol": "tcp",
        f"{prefix}-target-group-attributes": f"deregistration_delay.timeout_seconds={DRAIN_S}",
        # By these `down` knows it for ours where its controller has gone.
        f"{prefix}-additional-resource-tags": (
            f"{names.SERVICE_LABEL}={document.name},{names.DOMAIN}/cluster={document.cluster_name}"
        ),
    }
    if document.access.hostname:
        annotations["external-dns.alpha.kubernetes.io/hostname"] = document.access.hostname
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(document, f"{document.name}-lb", annotations=annotations),
        "spec": {
            "type": "LoadBalancer",
            # Straight to the pods' own nodes, which also are the only ones that pass its health check.
            "externalTrafficPolicy": "Local",
            "selector": {names.SERVICE_LABEL: document.name, "ray.io/serve": "true"},
            "ports": [{"name": "https", "port": _TLS_PORT, "targetPort": "serve", "protocol": "TCP"}],
        },
    }
    return [service]


def _gateway(document: Document) -> list[dict[str, Any]]:
    hostname = _required(document, "hostname", "the name that clients use")
    secret = _required(document, "tls_secret", "a secret of the type kubernetes.io/tls")
    listener = {
        "name": "https",
        "protocol": "HTTPS",
        "port": _TLS_PORT,
        "hostname": hostname,
        "tls": {"mode": "Terminate", "certificateRefs": [{"kind": "Secret", "name": secret}]},
        "allowedRoutes": {"namespaces": {"from": "Same"}},
    }
    rule = {
        "matches": [{"path": path} for path in _ROUTES],
        "backendRefs": [{"name": names.serve_service(document), "port": names.serve_port(document)}],
        # An answer may be longer than a proxy's patience; the service has deadlines of its own.
        "timeouts": {"request": "0s"},
    }
    api = "gateway.networking.k8s.io/v1"
    gateway_class = _required(document, "gateway_class", "a GatewayClass of the cluster")
    return [
        {
            "apiVersion": api,
            "kind": "Gateway",
            "metadata": metadata(document, document.name),
            "spec": {"gatewayClassName": gateway_class, "listeners": [listener]},
        },
        {
            "apiVersion": api,
            "kind": "HTTPRoute",
            "metadata": metadata(document, document.name),
            "spec": {
                "parentRefs": [{"name": document.name}],
                "hostnames": [hostname],
                "rules": [rule],
            },
        },
    ]


def _required(document: Document, field: str, what: str) -> str:
    value: str | None = getattr(document.access, field)
    if not value:
        raise DocumentError(
            f"access.expose is {document.access.expose}, and access.{field} is not set.",
            f"Set it to {what}.",
        )
    return value


_WAYS = {"none": _nothing, "internal-lb": _load_balancer, "gateway": _gateway}
