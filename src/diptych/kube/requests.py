"""Requests to a cluster's API server: kr8s reads the kubeconfig and signs them; refusals and outages come in words.

kr8s is asynchronous. It runs in a thread of its own, so that commands, a port-forward and Ctrl-C don't meet in it.
"""

import asyncio
import contextlib
import json
import queue
import threading
import time
import warnings
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx

from diptych.errors import ClusterError, SetupError
from diptych.kube.kubeconfig import Source
from diptych.kube.refusals import first_line, no_entry, refused, require_trust, unreachable

PATIENCE_S = 60.0
"""For how long an API server that is away, or has too much to do, is asked again."""

_REQUEST_TIMEOUT_S = 30.0
_LONGEST_PAUSE_S = 5.0
_CLOSE_S = 5.0
_FAILED_ATTEMPTS = 3
"""An error within the server (500) may pass: it is asked so often."""
_AWAY = frozenset({502, 503, 504})

T = TypeVar("T")


class Requests:
    """One cluster's API server.

    Args:
        source: the kubeconfig and the context.

    Raises:
        ClusterError: it can't be reached, or does not let us in.
        SetupError: kr8s is missing.
    """

    def __init__(self, source: Source, *, patience_s: float = PATIENCE_S) -> None:
        self._kr8s = _import_kr8s()
        self._patience_s = patience_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubernetes", daemon=True)
        self._thread.start()
        try:
            self.api = self._connect(source)
        except BaseException:
            self.close()
            raise
        self.server = str(self.api.auth.server)

    def close(self) -> None:
        """End the thread; nothing can be asked any more."""
        if not self._thread.is_alive():
            return
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of kr8s (`self.api`) in its thread and wait for it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        again: bool = True,
    ) -> Any:
        """Send a request and return the answer: decoded where it is JSON, else text.

        Args:
            body: is sent as JSON.
            again: whether sending it twice does no harm, so that one whose answer was lost is repeated.

        Raises:
            UnreachableError: there was no answer within `patience_s` seconds.
            RefusedError: the answer is an error.
            ClusterError: the credentials or the server's certificate are no good.
        """
        content = None if body is None else json.dumps(body)
        arguments = {"params": dict(params or {}), "headers": dict(headers or {}), "content": content}
        deadline = time.monotonic() + self._patience_s
        attempt = 0
        while True:
            attempt += 1
            pause_s = min(0.2 * 2**attempt, _LONGEST_PAUSE_S)
            try:
                response = self.run(self._once(method, path, arguments))
            except (httpx.HTTPError, OSError, self._kr8s.APITimeoutError) as error:
                require_trust(error, self.server)
                unsent = isinstance(error, httpx.ConnectError)
                if not (again or unsent) or time.monotonic() + pause_s > deadline:
                    raise unreachable(self.server, error) from error
            else:
                if response.status_code < 400:
                    return _decoded(response)
                pause_s = _retry_after(response) or pause_s
                late = time.monotonic() + pause_s > deadline
                if late or not _may_pass(response.status_code, again, attempt):
                    raise refused(method, path, response)
            time.sleep(pause_s)

    def lines(self, path: str, params: Mapping[str, Any]) -> Iterator[str]:
        """The lines of an answer as they come, until it ends or the caller stops.

        Raises:
            RefusedError, UnreachableError: as `send`; an answer that breaks off just ends.
        """
        found: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=1000)
        future = asyncio.run_coroutine_threadsafe(self._stream(path, dict(params), found), self._loop)
        try:
            while (line := found.get()) is not None:
                if isinstance(line, BaseException):
                    raise line
                yield line
        finally:
            future.cancel()

    async def _stream(
        self, path: str, params: dict[str, Any], found: queue.Queue[str | BaseException | None]
    ) -> None:
        async def put(item: str | BaseException | None) -> None:
            while True:
                try:
                    return found.put_nowait(item)
                except queue.Full:
                    await asyncio.sleep(0.05)

        timeout = httpx.Timeout(_REQUEST_TIMEOUT_S, read=None)
        try:
            async with self.api.call_api(
                "GET", **_parts(path), params=params, stream=True, timeout=timeout,
                raise_for_status=False,
            ) as response:  # fmt: skip
                if response.status_code >= 400:
                    await response.aread()
                    await put(refused("GET", path, response))
                    return
                async for line in response.aiter_lines():
                    await put(line)
            await put(None)
        except httpx.ConnectError as error:
            await put(unreachable(self.server, error))
        except (httpx.HTTPError, self._kr8s.APITimeoutError):
            await put(None)
        except Exception as error:  # whatever it is: who waits for lines must hear of it
            await put(error)

    async def _once(self, method: str, path: str, arguments: dict[str, Any]) -> httpx.Response:
        for attempt in range(2):
            async with self.api.call_api(
                method, **_parts(path), raise_for_status=False,
                timeout=_REQUEST_TIMEOUT_S, **arguments,
            ) as response:  # fmt: skip
                found: httpx.Response = response
            if found.status_code != 401 or attempt:
                break
            await self._sign_in_again()
        return found

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        session = getattr(self.api, "_session", None) if hasattr(self, "api") else None
        if session is not None:
            await session.aclose()

    async def _sign_in_again(self) -> None:
        """Have kr8s ask for fresh credentials, which it does for a request of its own that is refused."""
        with contextlib.suppress(self._kr8s.ServerError):
            async with self.api.call_api("GET", **_parts("/version")):
                pass
        forget_copies(self.api.auth)

    def _connect(self, source: Source) -> Any:
        deadline = time.monotonic() + self._patience_s
        files = ":".join(map(str, source.files)) or None
        server = f"the cluster of context {source.context}" if source.context else "the cluster"
        pause_s = 0.2
        while True:
            try:
                return self.run(self._signed_in(files, source.context))
            except (httpx.HTTPError, OSError, self._kr8s.APITimeoutError) as error:
                require_trust(error, server)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                if isinstance(error, FileNotFoundError) or time.monotonic() + pause_s > deadline:
                    raise unreachable(server, error) from error
                time.sleep(pause_s)
            except self._kr8s.ServerError as error:
                raise no_entry(server, str(error)) from error
            except (RuntimeError, ValueError, KeyError) as error:
                raise ClusterError(
                    f"The kubeconfig's credentials for {server} could not be had: {first_line(error)}",
                    "Run the command that the kubeconfig names under `users` (`exec`) by hand, or sign in again.",
                ) from error

    async def _signed_in(self, files: str | None, context: str | None) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of versions that kr8s was not tested with
            # kr8s would take the namespace from the current context even where another one is asked for.
            api = await self._kr8s.asyncio.api(kubeconfig=files, context=context, namespace="default")
        forget_copies(api.auth)
        return api


def _import_kr8s() -> Any:
    try:
        import kr8s.asyncio
    except ImportError:
        raise SetupError(
            "Clusters need a package that is not installed here: diptych[kube].",
            "pip install 'diptych[kube]'",
        ) from None
    return kr8s


def _parts(path: str) -> dict[str, str]:
    """A path as kr8s takes it, which joins parts by slashes and insists on a first.

    >>> _parts("/api/v1/pods"), _parts("/version")
    ({'base': '/api/v1', 'version': '', 'url': 'pods'}, {'base': '/version', 'version': '', 'url': ''})
    """
    base, _, last = path.rpartition("/")
    return {"base": base or path, "version": "", "url": last if base else ""}


def _decoded(response: httpx.Response) -> Any:
    is_json = "json" in response.headers.get("content-type", "")
    return response.json() if is_json else response.text


def _may_pass(status: int, again: bool, attempt: int) -> bool:
    """Whether the same request may fare better soon. One that was turned away (429) did nothing yet."""
    if status == 429:
        return True
    return again and (status in _AWAY or (status == 500 and attempt < _FAILED_ATTEMPTS))


def _retry_after(response: httpx.Response) -> float:
    told = response.headers.get("retry-after", "")
    return min(float(told), 10 * _LONGEST_PAUSE_S) if told.isdigit() else 0.0


def forget_copies(auth: Any) -> None:
    """Remove the files into which kr8s copies keys and certificates: they are loaded, and it leaves them behind."""
    copied = (
        (auth._user, "client-key-data", auth.client_key_file),
        (auth._user, "client-certificate-data", auth.client_cert_file),
        (auth._cluster, "certificate-authority-data", auth.server_ca_file),
    )
    for section, key, path in copied:
        if key in section and path:
            with contextlib.suppress(OSError):
                Path(str(path)).unlink(missing_ok=True)
