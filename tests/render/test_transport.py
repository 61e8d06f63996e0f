"""What the service is told to prove: what the document asks of the KV transfer, and what its nodes have for it."""

from typing import Any

import pytest

from diptych.render.transport import transport
from diptych.spec import Document

MODEL = "Qwen/Qwen3-8B"


def document(**fields: Any) -> Document:
    return Document.model_validate({"model": MODEL} | fields)


def on_eks(prefill: str, decode: str, **fields: Any) -> Document:
    nodes = {"prefill": {"nodes": {"instance_type": prefill}}, "decode": {"nodes": {"instance_type": decode}}}
    return document(on="eks", **nodes, **fields)


def test_on_this_machine_nothing_is_asked_unless_the_document_does() -> None:
    assert transport(Document.model_validate({})) == {}
    assert transport(Document.model_validate({"kv_transfer": {"backend": "UCX"}})) == {"backend": "UCX"}


def test_efa_is_asked_for_where_all_pods_have_it() -> None:
    assert transport(on_eks("g6.8xlarge", "g6.8xlarge")) == {
        "backend": "LIBFABRIC",
        "provider": "efa",
        "rails": 1,
        "rdma_counters": False,
        "bandwidth_bytes_per_s": 25e9 / 8,
    }


def test_rdma_counters_should_move_where_both_phases_have_gpudirect() -> None:
    assert transport(on_eks("p5.48xlarge", "p5.48xlarge"))["rdma_counters"] is True
    assert transport(on_eks("p5.48xlarge", "g6.8xlarge"))["rdma_counters"] is False


def test_of_unlike_phases_the_weaker_one_says_what_a_kv_transfer_has() -> None:
    both = transport(on_eks("p5.48xlarge", "g6.8xlarge"))
    assert (both["rails"], both["bandwidth_bytes_per_s"]) == (1, 25e9 / 8)


def test_a_replica_has_its_share_of_a_nodes_network() -> None:
    def gbps(decode: int) -> float:
        sizes = {"prefill": 8, "decode": decode}
        phases = {
            phase: {
                "nodes": {"instance_type": "p5.48xlarge"},
                "engine_kwargs": {"tensor_parallel_size": size},
            }
            for phase, size in sizes.items()
        }
        told: float = transport(document(on="eks", **phases))["bandwidth_bytes_per_s"] / (1e9 / 8)
        return told

    assert (gbps(8), gbps(2), gbps(1)) == (3200, 800, 400)
    assert gbps(16) == 3200  # of several nodes a replica has one's at least


FLOW = {"flow_bytes_per_s": 5e9 / 8}
"""What EC2 gives one TCP flow."""


@pytest.mark.parametrize("types", [("g6.8xlarge", "g6.xlarge"), ("g6.xlarge", "g6.xlarge")])
def test_without_efa_on_all_of_them_none_is_asked_for_and_tcp_has_the_smaller_network(
    types: tuple[str, str],
) -> None:
    assert transport(on_eks(*types)) == {"backend": "UCX", "bandwidth_bytes_per_s": 2.5e9 / 8} | FLOW


@pytest.mark.parametrize("backend", ["UCX", "LIBFABRIC"])
def test_a_backend_over_tcp_is_told_what_tcp_has(backend: str) -> None:
    told = transport(on_eks("g6.xlarge", "g6.xlarge", kv_transfer={"backend": backend}))
    assert told == {"backend": backend, "bandwidth_bytes_per_s": 2.5e9 / 8} | FLOW


def test_ucx_is_not_expected_to_use_efa() -> None:
    told = transport(on_eks("g6.8xlarge", "g6.8xlarge", kv_transfer={"backend": "UCX"}))
    assert told == {"backend": "UCX", "bandwidth_bytes_per_s": 25e9 / 8} | FLOW


def test_of_nodes_that_nobody_knows_nothing_is_said_of_their_network() -> None:
    assert transport(on_eks("m99.large", "g6.xlarge")) == {"backend": "UCX"}
    assert transport(document(on="kubernetes")) == {"backend": "UCX"}


def test_on_another_cluster_the_links_speed_is_known_only_with_an_instance_type() -> None:
    resources = {"resources": {"efa": 2, "gpus": 1}}
    told = transport(document(on="kubernetes", prefill=resources, decode=resources))
    assert told == {"backend": "LIBFABRIC", "provider": "efa", "rails": 2}


def test_a_fallback_is_allowed_only_where_the_document_does() -> None:
    allowed = on_eks("g6.8xlarge", "g6.8xlarge", kv_transfer={"allow_fallback": True})
    assert transport(allowed)["allow_fallback"] is True
    assert "allow_fallback" not in transport(on_eks("g6.8xlarge", "g6.8xlarge"))


def test_one_engine_for_both_phases_moves_no_kv_cache() -> None:
    assert transport(document(on="eks", topology="aggregated")) == {}
