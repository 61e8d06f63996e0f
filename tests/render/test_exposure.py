"""Ways to the endpoint from outside the cluster: none by default, and none without TLS."""

from typing import Any

import pytest

from diptych.errors import DocumentError
from diptych.render.exposure import exposure_objects
from diptych.spec import Document

CERTIFICATE = "arn:aws:acm:us-east-2:123456789012:certificate/0b1c2d3e-0000-4000-8000-123456789abc"
GATEWAY = {"expose": "gateway", "hostname": "llm.example.com", "tls_secret": "tls", "gateway_class": "envoy"}


def objects(on: str = "eks", **access: Any) -> list[dict[str, Any]]:
    return exposure_objects(Document.model_validate({"on": on, "model": "a/b", "access": access}))


def test_nothing_is_exposed_by_default() -> None:
    assert objects() == []


def test_the_load_balancer_is_internal_and_ends_tls() -> None:
    [service] = objects(expose="internal-lb", tls_certificate_arn=CERTIFICATE)
    annotations = {
        name.rpartition("/")[2]: value for name, value in service["metadata"]["annotations"].items()
    }
    assert annotations["aws-load-balancer-internal"] == "true"
    assert annotations["aws-load-balancer-scheme"] == "internal"
    assert annotations["aws-load-balancer-ssl-cert"] == CERTIFICATE
    assert [port["port"] for port in service["spec"]["ports"]] == [443]


def test_the_load_balancer_finds_the_pods_of_whichever_ray_cluster_serves() -> None:
    [service] = objects(expose="internal-lb", tls_certificate_arn=CERTIFICATE)
    assert service["spec"]["selector"] == {"diptych.dev/service": "diptych", "ray.io/serve": "true"}


def test_the_gateway_ends_tls_and_lets_clients_at_what_they_need_only() -> None:
    gateway, route = objects("kubernetes", **GATEWAY)
    [listener] = gateway["spec"]["listeners"]
    assert (listener["protocol"], listener["tls"]["mode"]) == ("HTTPS", "Terminate")
    assert listener["hostname"] == route["spec"]["hostnames"][0] == "llm.example.com"
    [rule] = route["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "diptych-serve-svc", "port": 8000}]
    assert [match["path"]["value"] for match in rule["matches"]] == ["/v1", "/health"]
    assert route["spec"]["parentRefs"] == [{"name": gateway["metadata"]["name"]}]


@pytest.mark.parametrize(
    ("on", "access", "field"),
    [
        ("eks", {"expose": "internal-lb"}, "access.tls_certificate_arn"),
        ("kubernetes", {"expose": "internal-lb", "tls_certificate_arn": CERTIFICATE}, "internal-lb"),
        *(
            (
                "kubernetes",
                {name: value for name, value in GATEWAY.items() if name != left_out},
                f"access.{left_out}",
            )
            for left_out in ("hostname", "tls_secret", "gateway_class")
        ),
    ],
)
def test_what_it_takes_is_named_where_it_is_missing(on: str, access: dict[str, Any], field: str) -> None:
    with pytest.raises(DocumentError, match=field):
        objects(on, **access)
