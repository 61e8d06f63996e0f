"""Who reaches what: the policies are evaluated as Kubernetes does, for the pods, their friends and strangers."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import kubernetes_validate
import pytest

from diptych.render import policies
from diptych.render.ingress import HAPROXY_PORTS, REPLICA_PORTS
from diptych.render.layout import worker_groups
from diptych.spec import Document

NAMESPACE = "inference"


@dataclass(frozen=True)
class Peer:
    """A pod, or an address outside the cluster when it has no namespace."""

    namespace: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = "10.0.0.1"


def ours(node_type: str, phase: str | None = None, service: str = "qwen") -> Peer:
    labels = {
        "diptych.dev/service": service,
        "ray.io/node-type": node_type,
        "app.kubernetes.io/name": "kuberay",
    }
    return Peer(NAMESPACE, labels | ({"diptych.dev/phase": phase} if phase else {}))


HEAD = ours("head")
PREFILL = ours("worker", "prefill")
DECODE = ours("worker", "decode")
PODS = {"head": HEAD, "prefill": PREFILL, "decode": DECODE}
OTHER_SERVICE = ours("worker", "decode", service="other")
NEIGHBOUR = Peer(NAMESPACE)
CLIENT = Peer(NAMESPACE, {"diptych.dev/client": "qwen"})
STRANGER = Peer("default")
OPERATOR = Peer("kuberay-operator", {"app.kubernetes.io/name": "kuberay-operator"})
OPERATOR_ELSEWHERE = Peer("ray-system", {"app.kubernetes.io/name": "kuberay-operator"})
PROMETHEUS = Peer("monitoring")
PROMETHEUS_ELSEWHERE = Peer("metrics", {"app.kubernetes.io/name": "prometheus"})
ISTIO_GATEWAY = Peer(NAMESPACE, {"gateway.networking.k8s.io/gateway-name": "qwen"})
ENVOY_GATEWAY = Peer("envoy-gateway-system", {"gateway.envoyproxy.io/owning-gateway-name": "qwen"})
FALSE_GATEWAY = Peer("default", {"gateway.networking.k8s.io/gateway-name": "qwen"})
IN_NETWORK = Peer(None, address="10.20.30.40")
FROM_INTERNET = Peer(None, address="8.8.8.8")


def document(**fields: Any) -> Document:
    return Document.model_validate(
        {
            "on": "eks",
            "name": "qwen",
            "model": "Qwen/Qwen3-8B",
            "kubernetes": {"namespace": NAMESPACE},
            **fields,
        }
    )


def rendered(**fields: Any) -> list[dict[str, Any]]:
    return policies.network_policies(document(**fields))


def reaches(made: list[dict[str, Any]], source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    """Whether a connection gets through: out of the source, if it is a pod of ours, and into the target."""
    out = source.namespace is None or _passes(made, "Egress", source, target, port, protocol)
    into = target.namespace is None or _passes(made, "Ingress", target, source, port, protocol)
    return out and into


def _passes(
    made: list[dict[str, Any]], way: str, subject: Peer, peer: Peer, port: int, protocol: str
) -> bool:
    key, side = ("ingress", "from") if way == "Ingress" else ("egress", "to")
    about = [
        policy["spec"]
        for policy in made
        if policy["metadata"]["namespace"] == subject.namespace
        and way in policy["spec"]["policyTypes"]
        and _selected(policy["spec"]["podSelector"], subject.labels)
    ]
    rules = [rule for spec in about for rule in spec.get(key, [])]
    return not about or any(
        _peer_matches(rule.get(side), peer) and _port_matches(rule.get("ports"), port, protocol)
        for rule in rules
    )


def _peer_matches(peers: list[dict[str, Any]] | None, peer: Peer) -> bool:
    return not peers or any(_one_peer_matches(each, peer) for each in peers)


def _one_peer_matches(each: dict[str, Any], peer: Peer) -> bool:
    if "ipBlock" in each:
        return ipaddress.ip_address(peer.address) in ipaddress.ip_network(each["ipBlock"]["cidr"])
    if peer.namespace is None:
        return False
    if "namespaceSelector" in each:
        found = {"kubernetes.io/metadata.name": peer.namespace}
        if not _selected(each["namespaceSelector"], found):
            return False
    elif peer.namespace != NAMESPACE:
        return False
    return _selected(each.get("podSelector", {}), peer.labels)


def _selected(selector: dict[str, Any], labels: Mapping[str, str]) -> bool:
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def _port_matches(ports: list[dict[str, Any]] | None, port: int, protocol: str) -> bool:
    return not ports or any(
        each["protocol"] == protocol and each["port"] <= port <= each.get("endPort", each["port"])
        for each in ports
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"on": "kubernetes"},
        {"topology": "aggregated"},
        {"access": {"expose": "internal-lb"}},
        {"access": {"expose": "gateway"}},
        {"monitoring": False},
        {"model": {"source": "s3://models/qwen"}},
        {"prefill": {"num_replicas": 3}, "decode": {"num_replicas": 512}},
    ],
)
def test_kubernetes_accepts_them(fields: dict[str, Any]) -> None:
    made = rendered(**fields) + policies.disruption_budgets(document(**fields))
    for each in made:
        kubernetes_validate.validate(each, "1.35", strict=True)
    names = [each["metadata"]["name"] for each in made if each["kind"] == "NetworkPolicy"]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("source", "target", "port", "through"),
    [
        # Ray, and what NCCL and UCX choose: among the service's own pods
        (PREFILL, HEAD, 6379, True),
        (DECODE, HEAD, 8265, True),
        (HEAD, DECODE, 10002, True),
        (DECODE, PREFILL, 19999, True),
        (PREFILL, DECODE, 45123, True),
        (DECODE, PREFILL, 8000, True),
        # where replicas meet for a KV transfer: between the phases
        (DECODE, PREFILL, 20000, True),
        (DECODE, PREFILL, 20063, True),
        (PREFILL, DECODE, 22000, True),
        (HEAD, PREFILL, 20000, False),
        (PREFILL, PREFILL, 20000, False),
        (DECODE, DECODE, 22001, False),
        # each port belongs to one phase
        (DECODE, PREFILL, 22000, False),
        # strangers
        *((stranger, PREFILL, 20000, False) for stranger in (NEIGHBOUR, STRANGER, OTHER_SERVICE, IN_NETWORK)),
        *((stranger, DECODE, 45123, False) for stranger in (NEIGHBOUR, STRANGER, OTHER_SERVICE, IN_NETWORK)),
        *((stranger, HEAD, 6379, False) for stranger in (NEIGHBOUR, STRANGER, OTHER_SERVICE, OPERATOR)),
        *((stranger, HEAD, 8265, False) for stranger in (NEIGHBOUR, STRANGER, CLIENT, PROMETHEUS)),
        # Ray's job API is also its agents', and Ray Client runs code
        *(
            (stranger, to, 52365, False)
            for stranger in (NEIGHBOUR, STRANGER, CLIENT)
            for to in (HEAD, DECODE)
        ),
        *((stranger, HEAD, 10001, False) for stranger in (NEIGHBOUR, STRANGER, CLIENT, OPERATOR)),
        # the operator
        (OPERATOR, HEAD, 8265, True),
        (OPERATOR, HEAD, 52365, False),
        (OPERATOR, HEAD, 8000, True),
        (OPERATOR, DECODE, 8265, False),
        (OPERATOR_ELSEWHERE, HEAD, 8265, False),
        # Prometheus
        (PROMETHEUS, HEAD, 8080, True),
        (PROMETHEUS, PREFILL, 8080, True),
        (PROMETHEUS_ELSEWHERE, DECODE, 8080, True),
        (PROMETHEUS, DECODE, 8000, False),
        (NEIGHBOUR, DECODE, 8080, False),
    ],
)
def test_who_reaches_what(source: Peer, target: Peer, port: int, through: bool) -> None:
    assert reaches(rendered(), source, target, port) == through


@pytest.mark.parametrize("ingress", ["haproxy", "proxy"])
@pytest.mark.parametrize("port", [*HAPROXY_PORTS, REPLICA_PORTS[0], REPLICA_PORTS[-1]])
def test_what_haproxy_opens_is_for_the_services_own_pods(ingress: str, port: int) -> None:
    """Its pages, the proxy behind it and decode's own servers: they listen on every interface."""
    exposed = {"expose": "internal-lb", "ingress": ingress}
    others = (NEIGHBOUR, STRANGER, CLIENT, OTHER_SERVICE, OPERATOR, PROMETHEUS, IN_NETWORK, FROM_INTERNET)
    for target in PODS.values():
        assert [each for each in others if reaches(rendered(access=exposed), each, target, port)] == []
        assert all(reaches(rendered(access=exposed), each, target, port) for each in PODS.values())


@pytest.mark.parametrize(
    ("access", "admitted", "refused"),
    [
        ({}, [CLIENT], [NEIGHBOUR, STRANGER, IN_NETWORK, FROM_INTERNET, ISTIO_GATEWAY]),
        ({"expose": "internal-lb"}, [CLIENT, IN_NETWORK], [FROM_INTERNET]),
        (
            {"expose": "gateway", "gateway_class": "istio"},
            [CLIENT, ISTIO_GATEWAY, ENVOY_GATEWAY],
            [NEIGHBOUR, STRANGER, FALSE_GATEWAY, IN_NETWORK, FROM_INTERNET],
        ),
        ({"expose": "gateway", "gateway_class": "aws-alb"}, [CLIENT, IN_NETWORK], [FROM_INTERNET]),
    ],
)
def test_the_endpoint_is_open_to_where_requests_come_from(
    access: dict[str, Any], admitted: list[Peer], refused: list[Peer]
) -> None:
    made = rendered(access=access)
    for pod in (HEAD, PREFILL, DECODE):
        assert all(reaches(made, peer, pod, 8000) for peer in admitted)
        assert not any(reaches(made, peer, pod, 8000) for peer in refused)


def test_the_endpoints_port_is_the_documents() -> None:
    made = rendered(access={"port": 9000})
    assert reaches(made, CLIENT, DECODE, 9000) and not reaches(made, CLIENT, DECODE, 8000)


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS.keys())
def test_pods_reach_name_servers_and_https_and_not_the_instance_metadata(pod: Peer) -> None:
    made = rendered()
    name_server = Peer("kube-system", {"k8s-app": "kube-dns"})
    assert reaches(made, pod, name_server, 53, "UDP") and reaches(made, pod, name_server, 53)
    assert reaches(made, pod, Peer(None, address="169.254.20.10"), 53, "UDP")
    assert reaches(made, pod, FROM_INTERNET, 443)
    assert not reaches(made, pod, Peer(None, address="169.254.169.254"), 80)
    assert not reaches(made, pod, Peer(None, address="10.0.0.9"), 10250)
    assert not reaches(made, pod, STRANGER, 5432)


@pytest.mark.parametrize(("source", "through"), [("s3://models/qwen", True), ("Qwen/Qwen3-8B", False)])
def test_pods_get_credentials_for_a_bucket_only_where_the_model_is_in_one(source: str, through: bool) -> None:
    agent = Peer(None, address="169.254.170.23")
    assert reaches(rendered(model={"source": source}), PREFILL, agent, 80) == through


@pytest.mark.parametrize(
    ("place", "autoscaling", "through"),
    [("eks", True, False), ("kubernetes", True, True), ("kubernetes", False, False)],
)
def test_rays_autoscaler_reaches_an_api_behind_port_6443(
    place: str, autoscaling: bool, through: bool
) -> None:
    decode = {"autoscaling_config": {"max_replicas": 2}} if autoscaling else {}
    made = rendered(on=place, decode=decode)
    assert reaches(made, HEAD, Peer(None, address="10.96.0.1"), 6443) == through


def test_on_another_cluster_the_operator_may_be_in_any_namespace() -> None:
    made = rendered(on="kubernetes")
    assert reaches(made, OPERATOR_ELSEWHERE, HEAD, 8265)
    assert not reaches(made, STRANGER, HEAD, 8265)


def test_without_monitoring_nobody_reaches_the_metrics() -> None:
    assert not reaches(rendered(monitoring=False), PROMETHEUS, DECODE, 8080)


def test_one_engine_has_no_ports_for_kv_transfers() -> None:
    made = rendered(topology="aggregated")
    worker = ours("worker", "aggregated")
    assert reaches(made, HEAD, worker, 20000)
    assert not reaches(made, NEIGHBOUR, worker, 20000)
    assert not [each for each in made if "kv-transfer" in each["metadata"]["name"]]


@pytest.mark.parametrize(
    ("fields", "phase", "ports"),
    [
        ({}, "prefill", (20000, 20063)),
        ({"kv_transfer": {"ports": {"decode": 30000}}}, "decode", (30000, 30063)),
        (
            {"decode": {"num_replicas": 12}, "engine_kwargs": {"tensor_parallel_size": 4}},
            "decode",
            (22000, 22095),
        ),
        ({"prefill": {"autoscaling_config": {"max_replicas": 50}}}, "prefill", (20000, 20099)),
        ({"kv_transfer": {"ports": {"prefill": 65535}}}, "prefill", (65535, 65535)),
    ],
)
def test_every_rank_of_every_replica_has_its_port(fields: dict[str, Any], phase: Any, ports: Any) -> None:
    assert policies.side_channel_ports(document(**fields), phase) == ports


@pytest.mark.parametrize(
    ("ranges", "rest"),
    [
        ([], [(1, 65535)]),
        ([(1, 100)], [(101, 65535)]),
        ([(65000, 65535)], [(1, 64999)]),
        ([(200, 300), (100, 250)], [(1, 99), (301, 65535)]),
        ([(1, 65535)], []),
    ],
)
def test_all_ports_but_some(ranges: list[tuple[int, int]], rest: list[tuple[int, int]]) -> None:
    assert policies.ports_without(ranges) == rest


def test_a_budget_lets_one_worker_of_a_phase_go_and_counts_what_raycluster_cannot_tell() -> None:
    made = policies.disruption_budgets(document(prefill={"num_replicas": 3}, decode={"num_replicas": 2}))
    spec = {each["metadata"]["name"]: each["spec"] for each in made}
    assert {name: each["minAvailable"] for name, each in spec.items()} == {
        "qwen-prefill": 2,
        "qwen-decode": 1,
    }
    for each in spec.values():
        assert "maxUnavailable" not in each  # RayCluster has no scale: nothing could be evicted at all
        assert each["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert _selected(spec["qwen-prefill"]["selector"], PREFILL.labels)
    assert not _selected(spec["qwen-prefill"]["selector"], DECODE.labels)


def test_replicas_that_span_pods_have_no_budget_since_one_of_their_pods_is_never_ready() -> None:
    spanning = {"num_replicas": 2, "engine_kwargs": {"tensor_parallel_size": 4}, "resources": {"gpus": 1}}
    assert policies.disruption_budgets(document(decode=spanning)) == []


@pytest.mark.parametrize(
    ("decode", "least"),
    [
        ({"num_replicas": 1}, None),
        ({"autoscaling_config": {"min_replicas": 1, "max_replicas": 8}}, None),
        ({"autoscaling_config": {"min_replicas": 3, "max_replicas": 8}}, 2),
    ],
)
def test_no_budget_forbids_every_eviction(decode: dict[str, Any], least: int | None) -> None:
    made = document(decode=decode)
    budgets = policies.disruption_budgets(made)
    assert [each["spec"]["minAvailable"] for each in budgets] == ([] if least is None else [least])
    for group in worker_groups(made):
        own = [each for each in budgets if each["metadata"]["name"] == f"qwen-{group.name}"]
        assert all(each["spec"]["minAvailable"] < group.least_pods for each in own)
