"""Where a replica's gRPC server is bound."""

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving.loopback import keep_replica_on_loopback
from diptych.serving.ray_llm import replica_module


@pytest.mark.parametrize(
    ("node", "bound"),
    [("127.0.0.1", "127.0.0.1:7001"), ("10.0.0.8", "[::]:7001")],
    ids=["a node on loopback", "a node that others reach"],
)
def test_it_is_bound_to_loopback_where_the_node_is_reached_there_only(
    monkeypatch: pytest.MonkeyPatch, node: str, bound: str
) -> None:
    seen: list[str] = []
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: node)
    monkeypatch.setattr(replica_module, "add_port_to_grpc_server", lambda _, where: seen.append(where) or 1)
    keep_replica_on_loopback()
    assert replica_module.add_port_to_grpc_server(None, "[::]:7001") == 1
    assert seen == [bound]
