"""Everything that listens is on a loopback address: read from the kernel's socket tables."""

import ipaddress
import socket
from pathlib import Path

import psutil
import pytest

from engines.service import Service

pytestmark = pytest.mark.engines

TCP_LISTEN, UDP_UNCONNECTED = "0A", "07"


def is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback


def kernel_address(hexadecimal: str) -> str:
    """An address as /proc/net writes it: 32-bit words in host order."""
    words = [int(hexadecimal[i : i + 8], 16).to_bytes(4, "little") for i in range(0, len(hexadecimal), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


def own_sockets(service: Service) -> set[str]:
    """The inodes of every socket that a process of the service holds."""
    found = set()
    for process in service.processes():
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                target = str(entry.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def table(name: str, state: str, inodes: set[str]) -> list[tuple[str, int]]:
    """Local address and port of the given sockets that are in the state."""
    rows = [line.split() for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    mine = [row[1].split(":") for row in rows if row[3] == state and row[9] in inodes]
    return [(kernel_address(address), int(port, 16)) for address, port in mine]


def test_every_tcp_listener_of_every_process_is_on_loopback(service: Service) -> None:
    pids = {process.pid for process in service.processes()}
    listeners = [
        connection.laddr
        for connection in psutil.net_connections("tcp")
        if connection.pid in pids and connection.status == psutil.CONN_LISTEN
    ]
    assert len(listeners) > 10  # Ray's, Serve's, ZMQ's, the side channels: the look saw them
    assert [address for address in listeners if not is_loopback(address.ip)] == []


def test_the_kernels_own_tables_agree(service: Service) -> None:
    inodes = own_sockets(service)
    listeners = table("tcp", TCP_LISTEN, inodes) + table("tcp6", TCP_LISTEN, inodes)
    ports = {port for _, port in listeners}
    assert int(service.url.rpartition(":")[2]) in ports
    assert [address for address, _ in listeners if not is_loopback(address)] == []


def test_both_nixl_side_channels_are_among_the_listeners(service: Service) -> None:
    """Ports of engines and not of Ray: without them the tests above would look at Ray alone."""
    inodes = own_sockets(service)
    ports = {port for _, port in table("tcp", TCP_LISTEN, inodes)}
    arguments = service.plan["serve_config"]["applications"][0]["args"]
    for phase in ("prefill", "decode"):
        assert arguments[f"{phase}_config"]["experimental_configs"]["NIXL_SIDE_CHANNEL_PORT_BASE"] in ports


def test_no_process_serves_udp_to_the_network(service: Service) -> None:
    inodes = own_sockets(service)
    sockets = table("udp", UDP_UNCONNECTED, inodes) + table("udp6", UDP_UNCONNECTED, inodes)
    assert [address for address, port in sockets if port and not is_loopback(address)] == []
