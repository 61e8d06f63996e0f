"""On a node that is reached over loopback only, replicas listen there only.

Serve gives each replica a gRPC server for calls between deployments and binds it to every interface. Where the
node's own address is 127.0.0.1 nobody else can need it.
"""

import ipaddress

import ray

from diptych.serving.ray_llm import change_grpc_address

_EVERY_INTERFACE = "[::]:"


def keep_replica_on_loopback() -> None:
    """Bind this replica's gRPC server to the node's address when that is a loopback address.

    Must run before Serve starts the server, that is, while the replica's own class is initialised.
    """
    address = ray.util.get_node_ip_address()
    if ipaddress.ip_address(address).is_loopback:
        change_grpc_address(lambda where: where.replace(_EVERY_INTERFACE, f"{address}:"))
