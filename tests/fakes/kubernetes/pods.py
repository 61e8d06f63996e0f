"""What pods answer besides their objects: logs, port-forwards, evictions."""

import asyncio
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from aiohttp import WSMsgType, web

from fakes.kubernetes.errors import Json, Refusal
from fakes.kubernetes.objects import Writer
from fakes.kubernetes.selectors import matches
from fakes.kubernetes.store import Store

if TYPE_CHECKING:
    from fakes.kubernetes.fake import FakeKubernetes

_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io", "portforward.k8s.io")
_LOOK_EVERY_S = 0.02


@dataclass(frozen=True)
class Line:
    """A line that a container wrote, at `at` (seconds since the epoch)."""

    at: float
    text: str

    def shown(self, *, timestamps: bool) -> bytes:
        if not timestamps:
            return self.text.encode() + b"\n"
        when = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
        return f"{when}000Z {self.text}\n".encode()


async def log(fake: "FakeKubernetes", request: web.Request, namespace: str, name: str) -> web.StreamResponse:
    """A container's log: `container`, `previous`, `tailLines`, `sinceSeconds`, `timestamps`, `follow`."""
    query = request.query
    pod = fake.store.get(fake.store.kind("Pod"), namespace, name)
    container = _container(pod, query)
    _refuse_waiting(pod, container)
    is_previous = query.get("previous") == "true"
    lines = fake.logs.get((namespace, name, container, is_previous))
    if is_previous and lines is None:
        raise Refusal(400, f'previous terminated container "{container}" in pod "{name}" not found')
    lines = lines if lines is not None else []
    if not is_previous:
        fake.logs.setdefault((namespace, name, container, False), lines)
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    since = time.time() - float(query.get("sinceSeconds") or 1e10)
    shown = [line for line in lines if line.at >= since]
    if "tailLines" in query:
        tail = int(query["tailLines"])
        shown = shown[-tail:] if tail else []
    has_times, sent = query.get("timestamps") == "true", len(lines)
    with suppress(ConnectionError):
        for line in shown:
            await response.write(line.shown(timestamps=has_times))
        while query.get("follow") == "true" and not is_previous:
            is_over = _is_over(fake, namespace, name, container)
            for line in lines[sent:]:
                await response.write(line.shown(timestamps=has_times))
                sent += 1
            if is_over:
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        await response.write_eof()
    return response


def _container(pod: Json, query: Mapping[str, str]) -> str:
    name, spec = pod["metadata"]["name"], pod["spec"]
    names = [each["name"] for each in spec["containers"]]
    before = [each["name"] for each in spec.get("initContainers", ())]
    asked = query.get("container")
    if asked is None and len(names) > 1:
        text = f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]"
        raise Refusal(400, text + (f" or one of the init containers: [{' '.join(before)}]" if before else ""))
    if asked is not None and asked not in (*names, *before):
        raise Refusal(400, f"container {asked} is not valid for pod {name}")
    return asked or names[0]


def container_status(pod: Json, container: str) -> Json:
    """A container's status, {} where the kubelet has not seen it yet."""
    status = pod.get("status", {})
    for each in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        if each["name"] == container:
            return dict(each)
    return {}


def _refuse_waiting(pod: Json, container: str) -> None:
    status = container_status(pod, container)
    waiting = status.get("state", {}).get("waiting")
    if waiting and not status.get("restartCount"):
        reason = waiting.get("reason", "ContainerCreating")
        if reason in ("ErrImagePull", "ImagePullBackOff"):
            reason = (
                "trying and failing to pull image"
                if reason == "ImagePullBackOff"
                else "image can't be pulled"
            )
        name = pod["metadata"]["name"]
        raise Refusal(400, f'container "{container}" in pod "{name}" is waiting to start: {reason}')


def _is_over(fake: "FakeKubernetes", namespace: str, name: str, container: str) -> bool:
    pod = fake.store.find(fake.store.kind("Pod"), namespace, name)
    if pod is None or pod["status"].get("phase") in ("Succeeded", "Failed"):
        return True
    return "terminated" in container_status(pod, container).get("state", {})


async def portforward(
    fake: "FakeKubernetes", request: web.Request, namespace: str, name: str
) -> web.StreamResponse:
    """Ports of a pod over a websocket: per port a channel for data and one for errors."""
    pod = fake.store.get(fake.store.kind("Pod"), namespace, name)
    if not pod["spec"].get("nodeName"):
        raise Refusal(400, f"pod {name} does not have a host assigned")
    ports = [int(port) for text in request.query.getall("ports", []) for port in text.split(",")]
    if not ports:
        raise Refusal(400, 'query parameter "ports" is required')
    response = web.WebSocketResponse(protocols=_PROTOCOLS)
    if not response.can_prepare(request).ok:
        raise Refusal(400, "Upgrade request required")
    await response.prepare(request)
    session = _Forward(fake, response, pod, ports)
    for channel, port in enumerate(ports):
        for each in (2 * channel, 2 * channel + 1):
            await response.send_bytes(bytes([each]) + port.to_bytes(2, "little"))
    await session.run()
    return response


class _Forward:
    """One websocket's connections to what stands for the pod's ports."""

    def __init__(
        self, fake: "FakeKubernetes", socket: web.WebSocketResponse, pod: Json, ports: list[int]
    ) -> None:
        self._fake, self._socket, self._pod, self._ports = fake, socket, pod, ports
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._cut = fake.forwards_cut

    async def run(self) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            readers = [await self._connect(channel, port) for channel, port in enumerate(self._ports)]
            tasks = [
                asyncio.create_task(self._from_pod(channel, reader))
                for channel, reader in enumerate(readers)
                if reader is not None
            ]
            if tasks:
                ends = (self._to_pod(), self._pod_ends(), _all(tuple(tasks)))
                others = [asyncio.create_task(each) for each in ends]
                tasks += others
                await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        finally:  # a client that leaves cancels this
            for writer in self._writers.values():
                writer.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._socket.close()

    async def _connect(self, channel: int, port: int) -> asyncio.StreamReader | None:
        metadata = self._pod["metadata"]
        address = self._fake.address_of(metadata["namespace"], metadata["name"], port)
        try:
            if address is None:
                raise ConnectionRefusedError("connect: connection refused")
            reader, self._writers[channel] = await asyncio.open_connection(*address)
        except OSError as error:
            words = (
                f"error forwarding port {port} to pod {metadata['name']}, uid : {metadata['uid']}: {error}"
            )
            await self._socket.send_bytes(bytes([2 * channel + 1]) + words.encode())
            return None
        return reader

    async def _from_pod(self, channel: int, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(2**16):
                await self._socket.send_bytes(bytes([2 * channel]) + data)

    async def _to_pod(self) -> None:
        async for message in self._socket:
            if message.type != WSMsgType.BINARY:
                return
            channel, data = message.data[0], message.data[1:]
            if channel == 255:  # v5: that channel is closed
                channel, data = data[0], b""
            writer = self._writers.get(channel // 2)
            if writer is None or channel % 2:
                continue
            if not data and message.data[0] == 255:
                writer.write_eof()
            writer.write(data)
            await writer.drain()

    async def _pod_ends(self) -> None:
        metadata, kind = self._pod["metadata"], self._fake.store.kind("Pod")
        while self._fake.forwards_cut == self._cut:
            found = self._fake.store.find(kind, metadata["namespace"], metadata["name"])
            if found is None or found["metadata"]["uid"] != metadata["uid"]:
                break
            if found["status"].get("phase") in ("Failed", "Succeeded"):
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        transport = self._socket._req.transport if self._socket._req else None
        if transport:
            transport.abort()


async def _all(tasks: Collection[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


def evict(store: Store, namespace: str, name: str, writer: Writer) -> tuple[int, Json]:
    """Delete a pod unless a disruption budget forbids it: then 429."""
    kind = store.kind("Pod")
    pod = store.get(kind, namespace, name)
    for budget in store.all(store.kind("PodDisruptionBudget"), namespace):
        if matches(budget["spec"].get("selector"), pod["metadata"].get("labels", {})) and not _allows(
            store, budget
        ):
            budget_name = budget["metadata"]["name"]
            words = "Cannot evict pod as it would violate the pod's disruption budget."
            cause = f"The disruption budget {budget_name} needs more healthy pods than there are"
            raise Refusal(429, words, causes=[{"reason": "DisruptionBudget", "message": cause}])
    store.delete(kind, pod, writer)
    success = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    return 201, success


def _allows(store: Store, budget: Json) -> bool:
    namespace, spec = budget["metadata"]["namespace"], budget["spec"]
    covered = [
        pod
        for pod in store.all(store.kind("Pod"), namespace)
        if matches(spec.get("selector"), pod["metadata"].get("labels", {}))
    ]
    healthy = sum(
        any(
            each["type"] == "Ready" and each["status"] == "True"
            for each in pod["status"].get("conditions", ())
        )
        for pod in covered
    )
    return healthy - 1 >= _needed(spec, len(covered))


def _needed(spec: Json, count: int) -> float:
    if "minAvailable" in spec:
        return _share(spec["minAvailable"], count)
    return count - _share(spec.get("maxUnavailable", 1), count)


def _share(value: int | str, count: int) -> float:
    return count * float(value.removesuffix("%")) / 100 if isinstance(value, str) else value
