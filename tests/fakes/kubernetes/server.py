"""An HTTP server in a thread, on a port of 127.0.0.1 that it keeps when it goes away for a while."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from aiohttp import web

from fakes.kubernetes.certificates import Authority

MAX_BODY_BYTES = 3 * 2**20


class Server:
    """Serves every path by `answer`.

    Args:
        authority: what its certificate is of; None: plain HTTP.
    """

    def __init__(
        self, answer: Callable[[web.Request], Awaitable[web.StreamResponse]], authority: Authority | None
    ) -> None:
        self.port = 0
        self._answer, self._authority = answer, authority
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._in_loop(self._start())

    def stop(self) -> None:
        self._in_loop(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def go_away(self, seconds: float) -> None:
        """Drop all connections and refuse new ones for so long."""
        self._in_loop(self._close())
        self._loop.call_soon_threadsafe(
            self._loop.call_later, seconds, lambda: self._loop.create_task(self._open())
        )

    def _in_loop(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self) -> None:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        await self._open()

    async def _open(self) -> None:
        assert self._runner
        context = self._authority.context() if self._authority else None
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=context, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _close(self) -> None:
        assert self._runner and self._runner.server
        for site in list(self._runner.sites):
            await site.stop()
        for connection in list(self._runner.server.connections):
            if connection.transport:
                connection.transport.abort()

    async def _stop(self) -> None:
        with suppress(Exception):
            await self._close()
        if self._runner:
            await self._runner.cleanup()
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
