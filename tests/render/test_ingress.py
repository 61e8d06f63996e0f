"""The way of requests on a cluster: HAProxy where it is there, and the same for every pod of Ray's."""

from pathlib import Path
from typing import Any

import pytest

from diptych.catalog.engines import AWS_IMAGE, LOCAL
from diptych.render.ingress import (
    HAPROXY_PORTS,
    REPLICA_PORTS,
    has_haproxy,
    is_behind_haproxy,
    pod_environment,
)
from diptych.render.inputs import Facts
from diptych.render.layout import worker_groups
from diptych.render.pods import head_pod, worker_pod
from diptych.spec import Document

FACTS = Facts(serving_archive=b"code", zone="us-east-2a")
OLD = {"name": "registry.example.com/llm:1.0", "ray_version": "2.57.1"}
UNKNOWN = {"name": "registry.example.com/llm:1.0"}


def document(ingress: str = "auto", **fields: Any) -> Document:
    given = {"on": "eks", "model": "Qwen/Qwen3-8B", "access": {"ingress": ingress}}
    return Document.model_validate(given | fields)


def environments(made: Document) -> list[dict[str, str]]:
    """What each of Ray's containers has in its environment."""
    pods = [head_pod(made), *(worker_pod(made, FACTS, group) for group in worker_groups(made))]
    lists = [pod["spec"]["containers"][0]["env"] for pod in pods]
    return [{each["name"]: each.get("value") for each in variables} for variables in lists]


@pytest.mark.parametrize("versions", [AWS_IMAGE, LOCAL], ids=lambda each: str(each.ray))
def test_both_pairs_of_versions_have_haproxy(versions: Any) -> None:
    assert has_haproxy(versions.ray)


@pytest.mark.parametrize(
    ("ingress", "fields", "behind"),
    [
        ("auto", {}, True),
        ("auto", {"on": "kubernetes"}, True),
        ("auto", {"image": OLD}, False),
        ("auto", {"image": UNKNOWN}, False),
        ("auto", {"topology": "aggregated"}, True),
        ("haproxy", {"image": UNKNOWN}, True),
        ("proxy", {}, False),
    ],
)
def test_haproxy_is_there_where_ray_brings_it_or_the_document_says_so(
    ingress: str, fields: dict[str, Any], behind: bool
) -> None:
    made = document(ingress, **fields)
    assert is_behind_haproxy(made) is behind
    asked = {each.get("RAY_SERVE_ENABLE_HA_PROXY") for each in environments(made)}
    assert asked == {"1" if behind else None}


@pytest.mark.parametrize(("ingress", "behind"), [("auto", True), ("haproxy", True), ("proxy", False)])
def test_here_clients_come_by_haproxy_unless_the_document_says_otherwise(ingress: str, behind: bool) -> None:
    assert is_behind_haproxy(Document.model_validate({"access": {"ingress": ingress}})) is behind


@pytest.mark.parametrize("ingress", ["haproxy", "proxy"])
def test_every_pod_of_rays_is_told_the_same_of_the_way(ingress: str) -> None:
    made = document(ingress)
    told = [{name: each.get(name) for name in pod_environment(made)} for each in environments(made)]
    assert told == [pod_environment(made)] * len(told)
    assert len(told) == 3


@pytest.mark.parametrize(("least", "refuses"), [(0, False), (1, True)])
def test_requests_wait_for_a_replica_only_where_that_is_what_starts_one(least: int, refuses: bool) -> None:
    scaled = {"autoscaling_config": {"min_replicas": least, "max_replicas": 2}}
    name = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
    assert ("fallback" in pod_environment(document("haproxy", decode=scaled))[name]) is refuses
    assert "fallback" not in pod_environment(document("proxy", decode=scaled))[name]


@pytest.mark.parametrize("versions", [AWS_IMAGE, LOCAL], ids=lambda each: str(each.ray))
def test_ports_and_variables_are_those_that_ray_reads(versions: Any) -> None:
    ray = pytest.importorskip("ray")
    if ray.__version__ != versions.ray:
        pytest.skip(f"Ray {ray.__version__} is installed")
    from ray.serve._private import constants

    assert {
        constants.RAY_SERVE_HAPROXY_STATS_PORT,
        constants.RAY_SERVE_HAPROXY_METRICS_PORT,
        constants.RAY_SERVE_FALLBACK_PROXY_HTTP_PORT,
        constants.RAY_SERVE_FALLBACK_PROXY_GRPC_PORT,
    } == HAPROXY_PORTS.keys()
    first = constants.RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT
    last = constants.RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT
    assert (REPLICA_PORTS[0], REPLICA_PORTS[-1]) == (first, last)
    read = Path(constants.__file__).read_text()
    assert [name for name in pod_environment(document("haproxy")) if f'"{name}"' not in read] == []
