"""`FakeKubernetes`: the API server in a thread, and what a test sets and reads."""

import asyncio
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from aiohttp import web

from fakes.kubernetes import certificates, handler
from fakes.kubernetes.errors import Json, Refusal
from fakes.kubernetes.faults import Fault
from fakes.kubernetes.objects import Writer, copied
from fakes.kubernetes.pods import Line
from fakes.kubernetes.server import MAX_BODY_BYTES, Server
from fakes.kubernetes.store import Store

_NODE_INFO = {
    "architecture": "amd64",
    "bootID": "-",
    "containerRuntimeVersion": "containerd://2.1.5",
    "kernelVersion": "6.12",
    "kubeProxyVersion": "",
    "machineID": "-",
    "operatingSystem": "linux",
    "osImage": "Amazon Linux 2023",
    "systemUUID": "-",
}


_DROPPED = 499


@dataclass(frozen=True)
class Request:
    """One request that came in, with its answer's status (0: the connection was dropped)."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    agent: str
    content_type: str
    status: int


class FakeKubernetes:
    """The API server, up within `with`. See the package for its use.

    Args:
        version: of Kubernetes, like "1.35".
        token: what clients must show as bearer token, or what tells whether one is good. None: no one is asked.
        tls: whether it speaks HTTPS, with a certificate of its own authority. None: where there is a token, since
            clients don't show one over HTTP.

    Attributes:
        url: where it listens.
        requests: what came in, in order.
        faults: what goes wrong on the way.
        denied: pairs of verb and resource ("create", "secrets"; "*" is any) that RBAC refuses.
        user: who clients are to it.
        logs: lines by namespace, pod, container and whether of its previous run.
        backends: where a pod's port leads, by port.
        listening: ports that are open, by namespace and pod; a pod that is not there has all that `backends` names.
    """

    def __init__(
        self,
        version: str = "1.35",
        token: str | Callable[[str], bool] | None = None,
        *,
        tls: bool | None = None,
    ) -> None:
        self.version, self.token, self.user = version, token, "arn:aws:iam::111122223333:user/tester"
        self.store = Store(version)
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.denied: set[tuple[str, str]] = set()
        self.logs: dict[tuple[str, str, str, bool], list[Line]] = {}
        self.backends: dict[int, tuple[str, int]] = {}
        self.listening: dict[tuple[str, str], set[int]] = {}
        self.forwards_cut = 0
        self._authority = certificates.make() if (token is not None if tls is None else tls) else None
        self._server = Server(self._answer, self._authority)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @property
    def url(self) -> str:
        return f"http{'s' if self._authority else ''}://127.0.0.1:{self._server.port}"

    def kubeconfig(
        self, path: Path, *, context: str = "fake", user: Json | None = None, trusted: bool = True
    ) -> Path:
        """Write a kubeconfig that leads here, and return its path.

        Args:
            user: its user's section, like `{"exec": …}`; by default the token, if it is a text.
            trusted: whether it holds the authority that signed the server's certificate.
        """
        cluster: Json = {"server": self.url}
        if self._authority and trusted:
            cluster["certificate-authority-data"] = self._authority.encoded
        if user is None:
            user = {"token": self.token} if isinstance(self.token, str) else {}
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": context, "cluster": cluster}],
                    "users": [{"name": context, "user": user}],
                    "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
                    "current-context": context,
                }
            )
        )
        return path

    def get(self, kind: str, name: str, namespace: str = "") -> Json | None:
        """An object as it is now; None where it is not there (or its kind)."""
        try:
            found = self.store.find(self.store.kind(kind), namespace, name)
        except KeyError:
            return None
        return copied(found)

    def all(self, kind: str, namespace: str = "") -> list[Json]:
        """All objects of a kind, in one namespace or in all."""
        try:
            return copied(self.store.all(self.store.kind(kind), namespace))
        except KeyError:
            return []

    @property
    def objects(self) -> dict[tuple[str, str, str], Json]:
        """All objects, by kind, namespace and name."""
        with self.store.lock:
            return {
                (kind.name, thing["metadata"].get("namespace", ""), thing["metadata"]["name"]): copied(thing)
                for kind, thing in self.store.everything()
            }

    def put(self, thing: Json, manager: str = "test") -> Json:
        """Make an object what `thing` says, its status too, without asking who may. It is validated all the same."""
        store = self.store
        group, _, _ = thing["apiVersion"].rpartition("/")
        kind, metadata = store.kind(thing["kind"], group), thing["metadata"]
        namespace = metadata.get("namespace", "default") if kind.namespaced else ""
        with store.lock:
            before = store.find(kind, namespace, metadata["name"])
            if before is None:
                kept = store.create(kind, thing, namespace, Writer(manager), status=True)
            else:
                kept = store.replace(kind, before, {**thing, "metadata": dict(metadata)}, Writer(manager))
                if "status" in thing:
                    status = {**kept, "status": thing["status"]}
                    kept = store.replace(kind, kept, status, Writer(manager), "status")
        return copied(kept)

    def delete(self, kind: str, name: str, namespace: str = "", *, grace_s: float | None = None) -> None:
        """Delete an object as a client would; nothing happens where it is not there."""
        found = self.store.kind(kind)
        with self.store.lock:
            thing = self.store.find(found, namespace, name)
            if thing is not None:
                self.store.delete(found, thing, Writer("test"), grace_s=grace_s)

    def add_node(
        self,
        name: str,
        allocatable: Mapping[str, str],
        *,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Json] = (),
        instance_type: str = "m7i.xlarge",
        zone: str = "us-east-1a",
    ) -> Json:
        """A node that is ready.

        Args:
            allocatable: like `{"cpu": "31850m", "memory": "118312Mi", "nvidia.com/gpu": "1"}`; 100 pods if not said.
        """
        found = {"pods": "100", **allocatable}
        region = zone.rstrip("abcdef")
        known = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": instance_type,
            "topology.kubernetes.io/zone": zone,
            "topology.kubernetes.io/region": region,
        }
        status = {
            "allocatable": found,
            "capacity": found,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
            "nodeInfo": _NODE_INFO | {"kubeletVersion": f"v{self.version}.2-eks-fake"},
        }
        node: Json = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {**known, **(labels or {})}},
            "spec": {"providerID": f"aws:///{zone}/i-{zlib.crc32(name.encode()):017x}"},
            "status": status,
        }
        if taints:
            node["spec"]["taints"] = list(taints)
        return self.put(node)

    @property
    def nodes(self) -> list[Json]:
        return self.all("Node")

    def write_log(
        self,
        pod: str,
        namespace: str,
        container: str,
        *lines: str,
        previous: bool = False,
        at: float | None = None,
    ) -> None:
        """Lines that a container writes now (or at `at`, seconds since the epoch)."""
        key = (namespace, pod, container, previous)
        self.logs.setdefault(key, []).extend(Line(at or time.time(), line) for line in lines)

    def allows(self, verb: str, resource: str) -> bool:
        """Whether RBAC lets the user do that."""
        return not any((v, r) in self.denied for v in (verb, "*") for r in (resource, "*"))

    def address_of(self, namespace: str, pod: str, port: int) -> tuple[str, int] | None:
        """Where a pod's port leads; None where nothing listens on it."""
        open_ports = self.listening.get((namespace, pod))
        return self.backends.get(port) if open_ports is None or port in open_ports else None

    def cut_forwards(self) -> None:
        """Every port-forward ends, as when a kubelet restarts."""
        self.forwards_cut += 1

    def forget_history(self) -> None:
        """Watches that go on from a version before now get 410."""
        self.store.forget_history()

    def go_away(self, seconds: float) -> None:
        """Refuse connections and drop all that are open; back after `seconds`, on the same port."""
        self._server.go_away(seconds)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body, status = None, 0
        try:
            body = await handler.read_body(request)
            response = await self._answer_or_fail(request, body)
            status = 0 if response.status == _DROPPED else response.status
        except Refusal as refusal:
            status = refusal.code
            response = web.json_response(refusal.status, status=status)
        except web.HTTPRequestEntityTooLarge:
            status = 413
            refused = Refusal(status, f"Request entity too large: limit is {MAX_BODY_BYTES}")
            response = web.json_response(refused.status, status=status)
        finally:  # a client may go while it watches
            self._note(request, body, status)
        return response

    async def _answer_or_fail(self, request: web.Request, body: Any) -> web.StreamResponse:
        fault = next((each for each in self.faults if each.hits(request.method, request.path)), None)
        if fault:
            return await self._fail(fault, request, body)
        self._authenticate(request)
        return await handler.answer(self, request, body)

    async def _fail(self, fault: Fault, request: web.Request, body: Any) -> web.StreamResponse:
        await asyncio.sleep(fault.delay_s)
        response: web.StreamResponse | None = None
        if fault.after or fault.status is None:
            self._authenticate(request)
            response = await handler.answer(self, request, body)
        if fault.status is None and response is not None:
            return response
        if fault.status == 0:
            if request.transport:
                request.transport.abort()
            return web.Response(status=_DROPPED)
        assert fault.status is not None
        refusal = Refusal(fault.status, "the fake API was told to fail")
        headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
        return web.json_response(refusal.status, status=fault.status, headers=headers)

    def _authenticate(self, request: web.Request) -> None:
        if self.token is None:
            return
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
        is_good = shown == self.token if isinstance(self.token, str) else self.token(shown)
        if scheme.lower() != "bearer" or not is_good:
            raise Refusal(401, "Unauthorized")

    def _note(self, request: web.Request, body: Any, status: int) -> None:
        self.requests.append(
            Request(
                request.method,
                request.path,
                dict(request.query),
                body,
                request.headers.get("User-Agent", ""),
                request.content_type,
                status,
            )
        )
