"""The managed port-forward outlives what happens to pods, websockets and the API server, and leaves nothing behind."""

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from diptych.errors import ClusterError
from diptych.kube.connection import Cluster, Target, connect
from diptych.kube.forward import Forward
from fakes.kubernetes import FakeKubernetes, Fault

NAMESPACE = "inference"
PORT = 8000
LABELS = {"ray.io/cluster": "ray-llm-x7k2q", "ray.io/serve": "true"}
PIECES = 5
TOGETHER = 20


class _Answers(BaseHTTPRequestHandler):
    """/echo answers with what was sent; /slow writes a piece every 100 ms; /wait does so for ever.

    /together begins, as /slow does, once `TOGETHER` have asked for it.
    """

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/together":
            self.server.together.wait(timeout=20)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(10_000 if self.path == "/wait" else PIECES):
            piece = f"data: {number}\n\n".encode()
            try:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            except OSError:  # the client is gone
                self.close_connection = True
                return
            time.sleep(0.1)
            if self.server.is_over:  # type: ignore[attr-defined]
                return
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that went
    server.is_over = False  # type: ignore[attr-defined]
    server.together = threading.Barrier(TOGETHER)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.is_over = True  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def backend(server: ThreadingHTTPServer) -> tuple[str, int]:
    return ("127.0.0.1", int(server.server_address[1]))


@pytest.fixture
def kubernetes(backend: tuple[str, int]) -> Iterator[FakeKubernetes]:
    with FakeKubernetes() as fake:
        fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        fake.backends[PORT] = backend
        add_pod(fake, "worker-1")
        yield fake


@pytest.fixture
def cluster(kubernetes: FakeKubernetes, tmp_path: Path) -> Iterator[Cluster]:
    with connect(Target(kubernetes.kubeconfig(tmp_path / "kubeconfig"))) as found:
        yield found


def add_pod(
    fake: FakeKubernetes, name: str, labels: dict[str, str] | None = None, *, is_ready: bool = True
) -> None:
    word = "True" if is_ready else "False"
    fake.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels or LABELS},
            "spec": {
                "nodeName": "node-1",
                "containers": [
                    {
                        "name": "ray",
                        "image": "ray",
                        "ports": [{"name": "serve", "containerPort": PORT, "protocol": "TCP"}],
                    }
                ],
            },
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": word}]},
        }
    )


def add_service(fake: FakeKubernetes) -> None:
    port = {"name": "serve", "port": 80, "targetPort": "serve", "protocol": "TCP"}
    fake.put(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "ray-llm-serve-svc", "namespace": NAMESPACE},
            "spec": {"selector": LABELS, "ports": [port]},
        }
    )


def replace_pod(fake: FakeKubernetes, old: str, new: str) -> None:
    fake.delete("Pod", old, NAMESPACE, grace_s=0)
    add_pod(fake, new)


def forward(cluster: Cluster, target: str = "ray.io/serve=true", **more: object) -> Forward:
    return Forward(cluster, NAMESPACE, target, PORT, **more)  # type: ignore[arg-type]


def ask(url: str, text: str = "hello", timeout_s: float = 20.0) -> str:
    with httpx.Client(trust_env=False, timeout=timeout_s) as client:
        return client.post(f"{url}/echo", content=text).text


def test_a_request_and_its_answer_go_through_whole(cluster: Cluster) -> None:
    large = "x" * 3_000_000

    with forward(cluster) as opened:
        assert ask(opened.url, large) == large
        assert opened.pod() == "worker-1"


def test_a_stream_arrives_piece_by_piece(cluster: Cluster) -> None:
    times = []
    with (
        forward(cluster) as opened,
        httpx.Client(trust_env=False) as client,
        client.stream("GET", f"{opened.url}/slow") as answer,
    ):
        times = [time.monotonic() for _ in answer.iter_raw()]

    assert len(times) >= PIECES
    assert times[PIECES - 1] - times[0] > 0.3


def test_many_connections_are_carried_at_once(cluster: Cluster) -> None:
    def stream(opened: Forward) -> int:
        with httpx.Client(trust_env=False, timeout=30) as client:
            return client.get(f"{opened.url}/together").text.count("data:")

    with forward(cluster) as opened, ThreadPoolExecutor(TOGETHER) as pool:
        counts = list(pool.map(stream, [opened] * TOGETHER))

    assert counts == [PIECES] * TOGETHER


def test_a_pod_that_is_replaced_is_followed(cluster: Cluster, kubernetes: FakeKubernetes) -> None:
    with forward(cluster) as opened, httpx.Client(trust_env=False, timeout=20) as client:
        assert client.post(f"{opened.url}/echo", content="1").text == "1"
        replace_pod(kubernetes, "worker-1", "worker-2")
        time.sleep(0.2)

        assert client.post(f"{opened.url}/echo", content="2").text == "2"
        assert opened.pod() == "worker-2"


def test_a_request_waits_for_the_pod_that_replaces_one(cluster: Cluster, kubernetes: FakeKubernetes) -> None:
    with forward(cluster) as opened:
        kubernetes.delete("Pod", "worker-1", NAMESPACE, grace_s=0)
        threading.Timer(1.0, add_pod, (kubernetes, "worker-2")).start()

        assert ask(opened.url) == "hello"


def test_a_cut_websocket_breaks_the_stream_visibly_and_the_next_request_gets_through(
    cluster: Cluster, kubernetes: FakeKubernetes
) -> None:
    with forward(cluster) as opened:
        with (
            httpx.Client(trust_env=False) as client,
            pytest.raises(httpx.TransportError),
            client.stream("GET", f"{opened.url}/slow") as answer,
        ):
            for number, _ in enumerate(answer.iter_raw()):
                if number == 1:
                    kubernetes.cut_forwards()

        assert ask(opened.url) == "hello"


def test_an_api_server_that_is_away_for_some_seconds_is_waited_for(
    cluster: Cluster, kubernetes: FakeKubernetes
) -> None:
    with forward(cluster) as opened:
        kubernetes.go_away(2.0)

        assert ask(opened.url) == "hello"


def test_a_port_that_is_not_open_yet_is_tried_again_with_what_nobody_has_heard(
    cluster: Cluster, kubernetes: FakeKubernetes
) -> None:
    kubernetes.listening[NAMESPACE, "worker-1"] = set()
    with forward(cluster) as opened:
        threading.Timer(0.7, kubernetes.listening[NAMESPACE, "worker-1"].add, (PORT,)).start()

        assert ask(opened.url, "once") == "once"


def test_a_port_that_never_opens_ends_the_connection_and_says_why(
    cluster: Cluster, kubernetes: FakeKubernetes
) -> None:
    kubernetes.listening[NAMESPACE, "worker-1"] = set()
    with forward(cluster, patience_s=0.5) as opened:
        with pytest.raises(httpx.TransportError):
            ask(opened.url)
        time.sleep(0.2)

        assert opened.problem and "connection refused" in opened.problem


def test_dropped_and_failing_requests_to_the_api_server_are_tried_again(
    cluster: Cluster, kubernetes: FakeKubernetes
) -> None:
    with forward(cluster) as opened:
        kubernetes.faults.append(Fault("GET", "*/portforward", status=0, times=2))
        kubernetes.faults.append(Fault("GET", "*/portforward", status=503, times=2))

        assert ask(opened.url) == "hello"


def test_a_services_ready_pods_and_its_ports_name_are_followed(
    cluster: Cluster, kubernetes: FakeKubernetes
) -> None:
    add_service(kubernetes)
    add_pod(kubernetes, "worker-0", is_ready=False)

    with Forward(cluster, NAMESPACE, "service/ray-llm-serve-svc", 80) as opened:
        assert opened.pod() == "worker-1"
        assert ask(opened.url) == "hello"


@pytest.mark.report("T5")
def test_before_the_service_is_there_the_head_is_taken_and_later_the_service(
    cluster: Cluster, kubernetes: FakeKubernetes
) -> None:
    add_pod(kubernetes, "head-1", {"ray.io/node-type": "head"})
    where = {"target": "service/ray-llm-serve-svc", "otherwise": "ray.io/node-type=head"}
    with forward(cluster, **where) as opened:
        assert opened.pod() == "head-1"
        add_service(kubernetes)
        kubernetes.delete("Pod", "head-1", NAMESPACE, grace_s=0)
        time.sleep(0.1)

        assert ask(opened.url) == "hello"


def test_no_pod_is_said_in_words(cluster: Cluster) -> None:
    words = "No pod of app=none in namespace inference is up"
    with pytest.raises(ClusterError, match=words), forward(cluster, target="app=none", patience_s=0.2):
        pass


def test_a_port_in_use_is_said_in_words(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ClusterError, match=f"Port {port} of this machine is in use"),
            forward(cluster, local_port=port),
        ):
            pass


def test_it_listens_on_this_machine_only(cluster: Cluster) -> None:
    with forward(cluster) as opened:
        addresses = {
            line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
            if line.split()[1].endswith(f":{opened.local_port:04X}") and line.split()[3] == "0A"
        }  # fmt: skip

    assert addresses == {f"0100007F:{opened.local_port:04X}"}


def test_it_ends_at_once_with_streams_open_and_leaves_nothing(
    cluster: Cluster, kubernetes: FakeKubernetes
) -> None:
    ask_through_one(cluster)
    before = connections(kubernetes)
    opened = forward(cluster).__enter__()
    clients = [socket.create_connection(("127.0.0.1", opened.local_port)) for _ in range(20)]
    for client in clients:
        client.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        client.settimeout(10)
        assert client.recv(10)

    began = time.monotonic()
    opened.close()
    assert time.monotonic() - began < 1.5
    for client in clients:
        with contextlib.suppress(ConnectionResetError):
            while client.recv(65536):
                pass
        client.close()

    assert connections(kubernetes) <= before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", opened.local_port))


def ask_through_one(cluster: Cluster) -> None:
    with forward(cluster) as opened:
        ask(opened.url)


def test_a_hundred_short_connections_leave_no_sockets_and_no_threads(
    cluster: Cluster, kubernetes: FakeKubernetes
) -> None:
    with forward(cluster) as opened:
        ask(opened.url)
        threads = names_of_threads()
        limits = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(trust_env=False, limits=limits) as client:
            for number in range(100):
                assert client.post(f"{opened.url}/echo", content=str(number)).text == str(number)
        time.sleep(0.3)

        assert connections(kubernetes) <= 2
        assert names_of_threads() <= threads


def test_credentials_that_expire_are_renewed_and_open_streams_live_on(
    backend: tuple[str, int], tmp_path: Path
) -> None:
    good = {"first"}
    with FakeKubernetes(token=lambda shown: shown in good) as fake:
        fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        fake.backends[PORT] = backend
        add_pod(fake, "worker-1")
        token = tmp_path / "token"
        token.write_text("first")
        shown = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": {"token": "TOKEN"},
        }
        program = f"print({json.dumps(shown)!r}.replace('TOKEN', open({str(token)!r}).read()))"
        how = {"apiVersion": shown["apiVersion"], "command": sys.executable, "args": ["-c", program]}
        user = {"exec": how | {"interactiveMode": "Never"}}
        config = fake.kubeconfig(tmp_path / "kubeconfig", user=user)
        with (
            connect(Target(config)) as cluster,
            forward(cluster) as opened,
            httpx.Client(trust_env=False) as client,
            client.stream("GET", f"{opened.url}/slow") as answer,
        ):
            pieces = answer.iter_raw()
            next(pieces)
            good.clear()
            good.add("second")
            token.write_text("second")

            assert ask(opened.url) == "hello"
            assert sum(1 for _ in pieces) >= PIECES - 2, "the stream was cut"


def names_of_threads() -> set[str]:
    """Threads of ours: those of the server behind have other names."""
    return {thread.name for thread in threading.enumerate() if "process_request" not in thread.name}


def connections(fake: FakeKubernetes) -> int:
    """Connections from here to the API server."""
    port = f":{httpx.URL(fake.url).port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(port) and row[3] == "01" for row in rows)
