"""The endpoint in a cluster answers as one on this machine, and its key is in a private file."""

import stat

import pytest

from diptych.endpoint.metrics import fetch_status
from diptych.errors import ClusterError
from diptych.kube import service
from diptych.kube.endpoint import endpoint
from fakes.kubernetes import install_operator
from fakes.provable_endpoint import KEY
from kube.world import World


def test_clients_and_diptych_reach_it_each_with_a_key_of_their_own(bare: World) -> None:
    install_operator(bare.fake, "kuberay-system")
    job = bare.job()
    with bare.cluster(job) as cluster:
        service.up(job, cluster)
        with endpoint(job, cluster, admin=True) as reached:
            assert fetch_status(reached)
            assert reached.url.startswith("http://127.0.0.1:")
            assert stat.S_IMODE(reached.api_key_file.stat().st_mode) == 0o600  # type: ignore[union-attr]
        with endpoint(job, cluster) as reached:
            assert reached.read_key() == KEY and KEY not in repr(reached)
            assert not fetch_status(reached), "the clients' key opens admin routes"


def test_a_service_that_has_no_pods_is_said_so(bare: World) -> None:
    install_operator(bare.fake, "kuberay-system")
    job = bare.job()
    with bare.cluster(job) as cluster:
        service.up(job, cluster)
        service.down(job, cluster)
        with pytest.raises(ClusterError), endpoint(job, cluster, patience_s=0.2):
            pass
