"""All that tells of a service is read at one time, and what may not be read outside of it is done without."""

import pytest

from diptych.kube import service
from diptych.kube.connection import RefusedError
from diptych.kube.snapshot import take
from kube.world import World


def test_it_has_the_services_own_objects_and_the_pods_of_others_apart(here: World) -> None:
    job = here.job()
    with here.cluster(job) as cluster:
        service.up(job, cluster)
        seen = take(cluster, job.document, checkpoint_bytes=7)

    assert seen.service is not None and len(seen.clusters) == 1 and seen.checkpoint_bytes == 7
    assert seen.current is not None and seen.serving["rayClusterName"] == seen.current["metadata"]["name"]
    assert [pod["metadata"]["labels"]["ray.io/node-type"] for pod in seen.pods] == [
        "head",
        "worker",
        "worker",
    ]
    assert len(seen.pods_in("prefill")) == len(seen.pods_in("decode")) == 1
    assert len(seen.operator) == 1 and seen.operator[0] in seen.others
    assert len(seen.nodes) == 3 and seen.events


def test_a_service_that_is_not_there_gives_an_empty_one(here: World) -> None:
    job = here.job()
    with here.cluster(job) as cluster:
        seen = take(cluster, job.document)

    assert seen.service is None and seen.current is None and not seen.pods and not seen.serving


def test_nodes_and_other_namespaces_may_be_closed_to_us(here: World) -> None:
    job = here.job()
    with here.cluster(job) as cluster:
        service.up(job, cluster)
        here.fake.denied |= {("list", "nodes"), ("list", "events")}
        seen = take(cluster, job.document)

    assert seen.nodes == () and seen.events == () and len(seen.pods) == 3


def test_a_service_that_may_not_be_read_is_an_error(here: World) -> None:
    here.fake.denied.add(("get", "rayservices"))
    job = here.job()
    with here.cluster(job) as cluster, pytest.raises(RefusedError, match="rayservices"):
        take(cluster, job.document)
