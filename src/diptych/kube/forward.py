"""A port of this machine that leads to a pod, for as long as it is wanted: whatever becomes of the pod or the network.

Each connection gets a websocket of its own. One that is open ends with its pod; the next one finds another pod, and
waits for it a while. What was asked and not answered is asked again only where the pod had no open port: then nobody
has heard it.
"""

import asyncio
import contextlib
import errno
from collections.abc import Coroutine
from typing import Any, Self

from diptych.errors import ClusterError
from diptych.kube.connection import Cluster
from diptych.kube.tunnel import Goal, NoWayError, Tunnels

PATIENCE_S = 30.0
"""For how long a connection waits for a way in."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_DATA, _ERROR = 0, 1
_PIECE = 2**16
_MOST_KEPT = 2**20
_END_S = 2.0
_NOBODY_HEARD = "connection refused"


class Forward:
    """A port on 127.0.0.1 that leads into the cluster; open within `with`.

    Args:
        cluster: whose connection and credentials are used.
        namespace, target, port, otherwise: see `Goal`.
        local_port: 0: any that is free.
        patience_s: for how long a pod is waited for, at first and by each connection.

    Raises:
        ClusterError: on entering: there is no pod, or the port is in use.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        target: str,
        port: int,
        local_port: int = 0,
        *,
        otherwise: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.local_port = local_port
        self.problem: str | None = None
        self._requests = cluster.requests
        self._goal = Goal(namespace, target, port, otherwise)
        self._patience_s = patience_s
        self._tunnels: Tunnels | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it is on this machine."""
        return f"http://127.0.0.1:{self.local_port}"

    def __enter__(self) -> Self:
        try:
            self._run(self._start())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, and the connections through it, at once."""
        self._run(self._stop())

    def pod(self) -> str:
        """The pod that new connections lead to.

        Raises:
            ClusterError: there is none.
        """
        name: str = self._run(self._place())
        return name

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._requests.run(work)

    async def _place(self) -> str:
        assert self._tunnels is not None, "it is not open"
        return (await self._tunnels.place())[0]

    async def _start(self) -> None:
        self._tunnels = Tunnels(self._requests, self._goal)
        try:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.local_port)
        except OSError as error:
            in_use = error.errno in (errno.EADDRINUSE, errno.EACCES)
            why = "is in use" if in_use else f"can't be opened: {error.strerror}"
            raise ClusterError(
                f"Port {self.local_port} of this machine {why}.",
                "Name another one, or none: one is found then.",
            ) from error
        self.local_port = self._server.sockets[0].getsockname()[1]
        await self._wait_for_a_pod()

    async def _wait_for_a_pod(self) -> None:
        waits = _Waits(self._patience_s)
        while True:
            try:
                await self._tunnels_of().place()
                return
            except NoWayError:
                if not await waits.again():
                    raise

    async def _stop(self) -> None:
        if self._server:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=_END_S)
        self._server = None

    def _tunnels_of(self) -> Tunnels:
        assert self._tunnels is not None
        return self._tunnels

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        connection = _Connection(reader, writer)
        try:
            await self._serve(connection)
            self.problem = connection.problem
        except NoWayError as error:
            self.problem = error.message
        except asyncio.CancelledError:
            connection.is_broken = True
        finally:
            self._connections.discard(task)
            await connection.end()

    async def _serve(self, connection: "_Connection") -> None:
        """Carry one connection; from the start again while nobody has heard it.

        Raises:
            NoWayError: no way in was found in time.
        """
        waits = _Waits(self._patience_s)
        connection.is_broken = True
        while True:
            try:
                async with self._tunnels_of().open() as socket:
                    await connection.carry(socket)
            except NoWayError:
                if connection.was_answered or not await waits.again():
                    raise
                continue
            if connection.problem or connection.is_broken:
                self._tunnels_of().forget_place()
            if not connection.was_refused or not await waits.again():
                return


class _Connection:
    """One client's connection, and what became of it.

    Attributes:
        problem: what the pod's side said went wrong.
        is_broken: it did not come to its own end, which the client must see.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._unanswered = bytearray()
        self.was_answered = False
        self.is_broken = False
        self.problem: str | None = None

    @property
    def was_refused(self) -> bool:
        """Whether nobody has heard it, so that it may be tried again."""
        return bool(self.problem and _NOBODY_HEARD in self.problem and not self.was_answered) and (
            len(self._unanswered) <= _MOST_KEPT
        )

    async def carry(self, socket: Any) -> None:
        """Carry bytes both ways until one side ends."""
        self.problem, self.is_broken = None, True
        ways = [asyncio.create_task(self._up(socket)), asyncio.create_task(self._down(socket))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def end(self) -> None:
        """Close it towards the client; hard where it is broken, so that half an answer isn't taken for a whole one."""
        if self.is_broken:
            self._writer.transport.abort()
        else:
            self._writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.wait_for(self._writer.wait_closed(), _END_S)

    async def _up(self, socket: Any) -> None:
        import httpx_ws

        with contextlib.suppress(httpx_ws.HTTPXWSException, OSError, EOFError):
            if self._unanswered:
                await socket.send_bytes(bytes([_DATA]) + self._unanswered)
            while data := await self._reader.read(_PIECE):
                if not self.was_answered and len(self._unanswered) <= _MOST_KEPT:
                    self._unanswered += data
                await socket.send_bytes(bytes([_DATA]) + data)

    async def _down(self, socket: Any) -> None:
        import httpx_ws

        begun: set[int] = set()
        try:
            while True:
                frame = await socket.receive_bytes()
                channel, data = frame[0], frame[1:]
                if channel not in begun and len(data) == 2:  # each channel begins with the port's number
                    begun.add(channel)
                elif channel == _ERROR:
                    self.problem = data.decode(errors="replace").strip()
                    return
                elif channel == _DATA:
                    begun.add(channel)
                    await self._to_client(data)
        except httpx_ws.WebSocketDisconnect as error:
            self.is_broken = error.code not in (None, 1000, 1001, 1005)
        except (httpx_ws.HTTPXWSException, OSError):
            self.is_broken = True

    async def _to_client(self, data: bytes) -> None:
        if not self.was_answered:
            self.was_answered = True
            self._unanswered.clear()
        self._writer.write(data)
        await self._writer.drain()


class _Waits:
    """Pauses that grow, until patience ends."""

    def __init__(self, patience_s: float) -> None:
        self._until = asyncio.get_running_loop().time() + patience_s
        self._pause_s = _FIRST_PAUSE_S

    async def again(self) -> bool:
        """Pause; False where there is no patience left."""
        left = self._until - asyncio.get_running_loop().time()
        if left <= 0:
            return False
        await asyncio.sleep(min(self._pause_s, left))
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return True
