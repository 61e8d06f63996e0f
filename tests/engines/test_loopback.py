"""Everything that listens is on a loopback address: read from the kernel's socket tables."""

import contextlib
import ipaddress
import socket
from pathlib import Path

import httpx
import psutil
import pytest

from engines.service import Service

pytestmark = pytest.mark.engines

TCP_LISTEN, UDP_UNCONNECTED = "0A", "07"
JOB_APIS = ("/api/job_agent/jobs/", "/api/jobs/")
RAYS_OWN = ("raylet", "gcs_server", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


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


def ports_of_ray(service: Service) -> set[int]:
    """Where Ray's own processes listen: all but Serve's, which are the endpoint's, and the engines'."""
    pids = {one.pid for one in service.processes() if " ".join(one.cmdline()).strip().endswith(RAYS_OWN)}
    pids |= {one.pid for one in service.processes() if one.name() in RAYS_OWN}
    listening = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    return {each.laddr.port for each in listening if each.pid in pids}


def asked_for_a_job(service: Service, body: dict[str, str], token: str | None = None) -> list[int]:
    """What Ray's own ports answer to a job: the statuses of those that speak HTTP."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    statuses = []
    for port in sorted(ports_of_ray(service)):
        for path in JOB_APIS:
            with contextlib.suppress(httpx.TransportError):
                url = f"http://127.0.0.1:{port}{path}"
                answer = httpx.post(url, json=body, headers=headers, timeout=5, trust_env=False)
                statuses.append(answer.status_code)
    return statuses


def test_rays_job_api_takes_no_job_without_rays_token(service: Service, tmp_path: Path) -> None:
    job = {"entrypoint": f"touch {tmp_path}/ran"}
    for token in (None, "wrong", service.key, service.admin_key):
        statuses = asked_for_a_job(service, job, token)
        assert (401 if token is None else 403) in statuses  # the job API is there, and refuses
        assert [status for status in statuses if status < 400] == []
    # With the token it is read: a job without an entrypoint is what is wrong then.
    rays_token = (service.directory / "ray-token").read_text().strip()
    with_token = asked_for_a_job(service, {}, rays_token)
    assert {401, 403}.isdisjoint(with_token)
    assert 400 in with_token
    assert not (tmp_path / "ran").exists()


def test_there_is_no_dashboard(service: Service) -> None:
    running = [" ".join(process.cmdline()) for process in service.processes()]
    assert any("DashboardAgent" in line for line in running)  # the look would have seen it
    assert [
        line for line in running if line.endswith("dashboard.py") or "/dashboard/dashboard.py" in line
    ] == []
    listening = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    ours = {process.pid for process in service.processes()}
    assert [each.laddr for each in listening if each.pid in ours and each.laddr.port == 8265] == []
