"""The proof with which the step `service` ends: what is looked at, what is enough, and what is not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diptych.endpoint import Endpoint
from diptych.errors import ClusterError
from diptych.kube.proof import prove
from diptych.serving.nixl_log import NixlLog
from diptych.spec import Document
from fakes import probed
from fakes.provable_endpoint import MODEL, ProvableEndpoint, probing
from kube.jobs import Told, job_for

Probed = Callable[[], tuple[dict[str, Any], dict[str, Any]]]


@pytest.fixture
def document(tmp_path: Path) -> Document:
    """Two g6.8xlarge, with EFA."""
    return job_for(tmp_path / "job").document


@pytest.fixture
def served() -> Iterator[ProvableEndpoint]:
    with ProvableEndpoint() as endpoint:
        yield endpoint


def proven(document: Document, served: ProvableEndpoint, folder: Path, kind: Probed) -> str:
    served.behaviour.probe = probing(kind)
    return prove(document, Endpoint(served.url, served.key_file(folder), MODEL), Told())


@pytest.mark.report("T9")
def test_on_g_instances_rdma_counters_that_stay_and_the_warning_of_cuda_buffers_are_no_reason_to_doubt(
    document: Document, served: ProvableEndpoint, tmp_path: Path
) -> None:
    _, pair = probed.proven_on_g6()
    counters = pair["after"]["decode"]["workers"][0]["device_counters"]["efa:rdmap0s0"]
    before = pair["before"]["decode"]["workers"][0]["device_counters"]["efa:rdmap0s0"]
    assert counters["rdma_read_bytes"] == before["rdma_read_bytes"]
    assert pair["after"]["decode"]["workers"][0]["warnings"][0]["kind"] == "cuda-not-registered"
    assert "a KV transfer is proven: 160 tokens" in proven(document, served, tmp_path, probed.proven_on_g6)


@pytest.mark.report("T10")
@pytest.mark.parametrize("kind", [probed.ucx_on_efa, probed.ucx_for_libfabric])
def test_ucx_where_efa_was_asked_for_is_not_put_up_with(
    document: Document, served: ProvableEndpoint, tmp_path: Path, kind: Probed
) -> None:
    with pytest.raises(ClusterError, match=r"transport is not proven\. .*UCX"):
        proven(document, served, tmp_path, kind)


def _names_without_nixls_own_word() -> tuple[dict[str, Any], dict[str, Any]]:
    """EFA's library is mapped and its device open, as NCCL has them too; of NIXL's backend and rails nobody tells."""
    asked, pair = probed.still_efa()
    for moment in ("before", "after"):
        for side in ("prefill", "decode"):
            pair[moment][side]["workers"][0] |= {"backends": [], "rails": None}
    return asked, pair


@pytest.mark.report("T11")
def test_that_efa_is_there_and_open_does_not_prove_that_nixl_takes_it(
    document: Document, served: ProvableEndpoint, tmp_path: Path
) -> None:
    with pytest.raises(ClusterError, match="transport is not proven"):
        proven(document, served, tmp_path, _names_without_nixls_own_word)


def test_an_endpoint_that_does_not_answer_is_said_with_what_to_do(
    document: Document, served: ProvableEndpoint, tmp_path: Path
) -> None:
    served.behaviour.down = True
    with pytest.raises(ClusterError, match=r"The first prompt .*was not answered"):
        prove(document, Endpoint(served.url, served.key_file(tmp_path), MODEL), Told())


@pytest.mark.report("T11")
def test_what_nccl_says_of_efa_is_not_taken_for_nixls_word(tmp_path: Path) -> None:
    output = tmp_path / "worker"
    output.write_text("NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 1 nics)\n")
    (tmp_path / "fd").mkdir()
    (tmp_path / "fd" / "2").symlink_to(output)
    log = NixlLog(tmp_path / "fd")
    log.look()
    assert log.rails is None
