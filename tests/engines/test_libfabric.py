"""LIBFABRIC asked for on a machine without EFA: what is served, what is not, and what is said of it.

Each test starts a service of its own: what is asked for is looked at while it comes up.
"""

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diptych.endpoint import Endpoint
from engines.libfabric import LibfabricService, libraries
from engines.service import NAME, leftovers
from engines.verdicts import CARRIED, by_name, told, verified

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.hosts]

LIBFABRIC = "kv_transfer.backend=LIBFABRIC"
EFA = {"backend": "LIBFABRIC", "provider": "efa", "rails": 1}
# Each signal that is there when it is looked at counts: at least the backend, the rails and the fabric of both ends.
OVER_TCP = re.compile(
    r"EFA was asked for, and LIBFABRIC over tcp is in use \(rails made by prefill rank 0: 1 over tcp, and [5-9] more "
    r"of the signals contradict it\)\."
)

UCX_INSTEAD = (
    "LIBFABRIC was asked for, and UCX over shared memory is in use (backend set for prefill: UCX, and 5 more of the "
    "signals contradict it)."
)


@contextlib.contextmanager
def service_of(*settings: str, **more: Any) -> Iterator[LibfabricService]:
    """A service that is not up yet; at the end nothing of it is left."""
    with tempfile.TemporaryDirectory(prefix="dt-") as directory:
        service = LibfabricService(Path(directory), *settings, **more)
        try:
            yield service
        finally:
            service.down()
            assert (leftovers(service) if service.plan else []) == []


@pytest.fixture(scope="module")
def over_tcp() -> dict[str, str]:
    """Variables with which NIXL finds all that LIBFABRIC needs."""
    return {"LD_LIBRARY_PATH": str(libraries())}


def endpoint(service: LibfabricService) -> Endpoint:
    return Endpoint(service.url, service.directory / "admin-key", service.model)


def test_libfabric_over_tcp_is_proven_where_that_was_asked_for(over_tcp: dict[str, str]) -> None:
    with service_of(LIBFABRIC, variables=over_tcp | {"FI_PROVIDER": "tcp"}) as service:
        up = service.up()
        assert up.returncode == 0, up.stderr
        report = verified(endpoint(service))
        print(f"\n{told(report)}")
        assert report.holds
        assert by_name(report)["transport"].state == "holds"
        assert by_name(report)["transport"].says == (
            f"LIBFABRIC over tcp was asked for, and carried the KV cache: LIBFABRIC over tcp, {CARRIED}."
        )


def test_a_service_that_was_asked_for_efa_does_not_come_up_over_tcp(over_tcp: dict[str, str]) -> None:
    with service_of(LIBFABRIC, asked=EFA, variables=over_tcp) as service:
        up = service.up()
        print(f"\n{up.stderr}")
        assert up.returncode == 1
        assert OVER_TCP.search(up.stderr)


def test_where_a_fallback_from_efa_is_allowed_it_serves_and_says_so(over_tcp: dict[str, str]) -> None:
    with service_of(LIBFABRIC, asked=EFA | {"allow_fallback": True}, variables=over_tcp) as service:
        up = service.up()
        assert up.returncode == 0, up.stderr
        status = service.status()
        assert status["ready"] and OVER_TCP.fullmatch(status["fallback"]), status["fallback"]
        assert OVER_TCP.search(service.run("status", "--name", NAME).stdout.replace("\n", " "))
        done = service.run("verify", "--name", NAME, "--json", timeout_s=120.0)
        print(f"\n{done.stdout}")
        assert done.returncode == 0, done.stderr
        proofs = {proof["name"]: proof for proof in json.loads(done.stdout)["proofs"]}
        assert proofs["transport"]["state"] == "warns"
        assert OVER_TCP.fullmatch(proofs["transport"]["says"]), proofs["transport"]["says"]


def test_without_its_libraries_an_engine_with_libfabric_does_not_start() -> None:
    with service_of(LIBFABRIC) as service:
        up = service.up()
        print(f"\n{up.stderr}")
        assert up.returncode == 1
        assert "engine did not start. Its own last words: nixl" in up.stderr
        assert "nixlNotFoundError: NIXL_ERR_NOT_FOUND" in up.stderr


def test_libfabric_asked_for_and_ucx_in_the_engines_does_not_come_up() -> None:
    """As where NIXL_BACKEND is set, which vLLM does not read: the engines have another backend than was meant."""
    with service_of("kv_transfer.backend=UCX", asked={"backend": "LIBFABRIC"}) as service:
        up = service.up()
        print(f"\n{up.stderr}")
        assert up.returncode == 1
        assert UCX_INSTEAD in up.stderr
