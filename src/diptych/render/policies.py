"""Who may talk to the service's pods, and how many of them may be evicted at a time.

NetworkPolicies deny what they do not name, and add up: who needs more adds a policy with
`diptych.dev/service` in its `podSelector`. They hold where the network plug-in enforces them (on EKS the VPC CNI,
which `eksctl.cluster_config` tells to; it lets a new pod talk freely for its first moments). They do not see EFA, see
`eksctl.efa_security_group`, nor what a pod's own node sends: probes of the kubelet and `kubectl port-forward` get
through, on every plug-in we know of.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from diptych.render import names
from diptych.render.eksctl import POD_IDENTITY_AGENT
from diptych.render.helm import KUBERAY
from diptych.render.layout import WorkerGroup, gpus_per_replica, worker_groups
from diptych.render.objects import metadata
from diptych.render.pods import DASHBOARD_PORT, METRICS_PORT, has_autoscaler
from diptych.spec import Document, Phase, is_bucket

CLIENT_LABEL = f"{names.DOMAIN}/client"
"""A pod in the service's namespace whose label of this name has the service's name may use the endpoint."""

MONITORING_NAMESPACES = ("monitoring", "prometheus", "observability")
PRIVATE_RANGES = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
"""Where the clients of a load balancer that is internal to a network can be."""

_LAST_PORT = 65535
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_PROMETHEUS_APPS = ("prometheus", "prometheus-agent", "vmagent", "alloy")
_OPERATOR_PODS = {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}}
_ENVOY_GATEWAY_NAMESPACE = "envoy-gateway-system"
# A replica's ranks take one port each; while replicas are replaced there are up to twice as many.
_FEWEST_SIDE_CHANNEL_PORTS = 64

Ports = tuple[int, int]
"""The first and the last of a range of ports."""


def network_policies(document: Document) -> list[dict[str, Any]]:
    """The NetworkPolicies of the service's pods, in the service's namespace.

    In: from the service's own pods everything but the ports where replicas meet for a KV transfer, which are open
    between prefill and decode only (other ports can't be told apart: Ray, NCCL and UCX choose them as they go); from
    KubeRay's operator to Ray's dashboard and the endpoint of the head; to the endpoint from where `access.expose`
    says; to the metrics from Prometheus.

    Out: to the service's own pods, to name servers, and to HTTPS anywhere, which the model's files need. Port 80 is
    closed, and with it the instance metadata of the node, whatever its hop limit is.
    """
    head = {"matchLabels": {names.SERVICE_LABEL: document.name, "ray.io/node-type": "head"}}
    found = [
        _policy(document, "deny", _own(document), ["Ingress", "Egress"]),
        _policy(document, "ray", _own(document), ["Ingress"], ingress=_from_own_pods(document)),
        *_kv_transfer(document),
        _policy(document, "operator", head, ["Ingress"], ingress=[_from_operator(document)]),
        _policy(document, "endpoint", _own(document), ["Ingress"], ingress=[_to_endpoint(document)]),
    ]
    if document.monitoring:
        rule = {"from": _prometheus(), "ports": _ports(METRICS_PORT)}
        found.append(_policy(document, "metrics", _own(document), ["Ingress"], ingress=[rule]))
    found.append(_policy(document, "egress", _own(document), ["Egress"], egress=_egress(document)))
    return found


def disruption_budgets(document: Document) -> list[dict[str, Any]]:
    """A PodDisruptionBudget for each phase with several workers: one at a time may be evicted.

    Written as `minAvailable`: for `maxUnavailable` Kubernetes asks the pods' owner for its scale, RayCluster has
    none, and then nothing at all can be evicted (kuberay #2662). For the head and for a phase of one worker there is
    nothing between allowing every eviction, which needs no budget, and allowing none, which blocks the node's end.
    Pods that are not ready never block: workers are not until a Serve proxy answers on them. Where replicas span pods
    there is none: Serve has its proxy on the first pod of a replica only, so that the others never become ready.
    """
    groups = (each for each in worker_groups(document) if each.least_pods > 1 and each.pods_per_replica == 1)
    return [_disruption_budget(document, group) for group in groups]


def side_channel_ports(document: Document, phase: Phase) -> Ports:
    """The ports on which the replicas of `phase` meet for a KV transfer."""
    first: int = getattr(document.kv_transfer.ports, phase)
    wanted = 2 * document.phases[phase].most_replicas * gpus_per_replica(document, phase)
    return first, min(first + max(wanted, _FEWEST_SIDE_CHANNEL_PORTS) - 1, _LAST_PORT)


def ports_without(ranges: Iterable[Ports]) -> list[Ports]:
    """All ports but those of `ranges`, as ranges.

    >>> ports_without([(20000, 20063), (22000, 22063)])
    [(1, 19999), (20064, 21999), (22064, 65535)]
    """
    found, start = [], 1
    for first, last in sorted(ranges):
        if first > start:
            found.append((start, first - 1))
        start = max(start, last + 1)
    if start <= _LAST_PORT:
        found.append((start, _LAST_PORT))
    return found


def _from_own_pods(document: Document) -> list[dict[str, Any]]:
    phases: tuple[Phase, ...] = ("prefill", "decode") if document.topology == "split" else ()
    closed = [side_channel_ports(document, phase) for phase in phases]
    ports = [port for each in ports_without(closed) for port in _port_range(each)]
    # A rule with an empty list of ports would be one for all ports.
    return [{"from": [{"podSelector": _own(document)}], "ports": ports}] if ports else []


def _kv_transfer(document: Document) -> list[dict[str, Any]]:
    if document.topology != "split":
        return []
    ways: tuple[tuple[Phase, Phase], ...] = (("prefill", "decode"), ("decode", "prefill"))
    found = []
    for phase, other in ways:
        ports = _port_range(side_channel_ports(document, phase))
        rule = {"from": [{"podSelector": _own(document, other)}], "ports": ports}
        found.append(
            _policy(document, f"kv-transfer-{phase}", _own(document, phase), ["Ingress"], ingress=[rule])
        )
    return found


def _from_operator(document: Document) -> dict[str, Any]:
    """Ours on EKS; on another cluster it may be anybody's, in any namespace."""
    namespaces = _namespaces(KUBERAY.namespace) if document.on == "eks" else {}
    peer = {"namespaceSelector": namespaces, "podSelector": _OPERATOR_PODS}
    return {"from": [peer], "ports": _ports(DASHBOARD_PORT, names.serve_port(document))}


def _to_endpoint(document: Document) -> dict[str, Any]:
    clients = {"podSelector": {"matchLabels": {CLIENT_LABEL: document.name}}}
    return {"from": [clients, *_entrances(document)], "ports": _ports(names.serve_port(document))}


def _entrances(document: Document) -> list[dict[str, Any]]:
    """Where requests from outside come from.

    Through a load balancer they keep their client's address, or have the load balancer's. A gateway that runs in
    pods is known by their labels: in the service's namespace by Gateway API's own (GEP-1762), in Envoy Gateway's
    namespace by its. A gateway that is a load balancer of AWS, which its class tells, counts as one.
    """
    way = document.access.expose
    if way == "none":
        return []
    by_aws = (document.access.gateway_class or "").startswith(("aws", "amazon", "alb"))
    if way == "internal-lb" or by_aws:
        return [{"ipBlock": {"cidr": cidr}} for cidr in PRIVATE_RANGES]
    gateway = {"matchLabels": {"gateway.networking.k8s.io/gateway-name": document.name}}
    envoy = {"matchLabels": {"gateway.envoyproxy.io/owning-gateway-name": document.name}}
    return [
        {"podSelector": gateway},
        {"namespaceSelector": _namespaces(_ENVOY_GATEWAY_NAMESPACE), "podSelector": envoy},
    ]


def _prometheus() -> list[dict[str, Any]]:
    apps = {"key": "app.kubernetes.io/name", "operator": "In", "values": list(_PROMETHEUS_APPS)}
    return [
        {"namespaceSelector": _namespaces(*MONITORING_NAMESPACES)},
        {"namespaceSelector": {}, "podSelector": {"matchExpressions": [apps]}},
    ]


def _egress(document: Document) -> list[dict[str, Any]]:
    """Rules without `to` hold for any destination, a name server on the node and the cluster's API included.

    Ray's autoscaler talks to that API, which has port 6443 behind its Service on most clusters; on EKS it is 443.
    """
    https = (443, 6443) if has_autoscaler(document) and document.on != "eks" else (443,)
    rules = [
        {"to": [{"podSelector": _own(document)}]},
        {"ports": [{"protocol": "UDP", "port": 53}, *_ports(53)]},
        {"ports": _ports(*https)},
    ]
    if document.on == "eks" and is_bucket(document.model.source):
        rules.append({"to": [{"ipBlock": {"cidr": POD_IDENTITY_AGENT}}], "ports": _ports(80)})
    return rules


def _disruption_budget(document: Document, group: WorkerGroup) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(document, f"{document.name}-{group.name}"),
        "spec": {
            "minAvailable": group.least_pods - 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": _own(document, group.name),
        },
    }


def _policy(
    document: Document, purpose: str, pods: dict[str, Any], types: Sequence[str], **rules: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(document, f"{document.name}-{purpose}"),
        "spec": {"podSelector": pods, "policyTypes": list(types), **rules},
    }


def _own(document: Document, phase: str | None = None) -> dict[str, Any]:
    labels = {names.SERVICE_LABEL: document.name}
    return {"matchLabels": labels if phase is None else {**labels, names.PHASE_LABEL: phase}}


def _namespaces(*namespaces: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": _NAMESPACE_NAME, "operator": "In", "values": list(namespaces)}]}


def _ports(*ports: int) -> list[dict[str, Any]]:
    return [{"protocol": "TCP", "port": port} for port in ports]


def _port_range(ports: Ports) -> list[dict[str, Any]]:
    first, last = ports
    return [{"protocol": "TCP", "port": first, "endPort": last}]
