"""A way from here into a pod: Kubernetes' port-forward, a websocket to the API server for each connection.

Whoever opens one gives the credentials of the cluster's connection; they are fetched again when the server does not
take them any more (on EKS they last a quarter of an hour). Websockets that are open don't mind.
"""

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx

from diptych.errors import ClusterError
from diptych.kube.kinds import kind_of
from diptych.kube.objects import Object, is_going, is_ready, name_of, status_of
from diptych.kube.requests import Requests, forget_copies

_TIMEOUT_S = 15.0
_PROTOCOL = "v4.channel.k8s.io"
_REFUSED = (401, 403)


class NoWayError(ClusterError):
    """There is no way in at present; there may be one in a moment."""


@dataclass(frozen=True)
class Goal:
    """Where connections lead.

    Args:
        namespace: of the pods.
        target: `pod/NAME`, `service/NAME` (one of its ready pods), or labels as in `a=b,c=d`.
        port: of the pod; that of a service leads to the pods' port that it stands for.
        otherwise: another target where this one has no pod.
    """

    namespace: str
    target: str
    port: int
    otherwise: str | None = None


@dataclass(frozen=True)
class Credentials:
    """How requests to the API server are made."""

    server: str
    headers: dict[str, str]
    trust: ssl.SSLContext
    proxy: str | None
    server_name: str | None

    def client(self) -> httpx.AsyncClient:
        """A client for one connection."""
        timeout = httpx.Timeout(_TIMEOUT_S)
        return httpx.AsyncClient(
            base_url=self.server, headers=self.headers, verify=self.trust, proxy=self.proxy, timeout=timeout
        )

    @property
    def extensions(self) -> dict[str, Any]:
        """What each request needs beside."""
        return {"sni_hostname": self.server_name} if self.server_name else {}


class Tunnels:
    """Opens websockets to a goal; to be used in the loop of `requests`.

    Args:
        requests: the connection to the cluster.
    """

    def __init__(self, requests: Requests, goal: Goal) -> None:
        self._auth = requests.api.auth
        self._goal = goal
        self._credentials: Credentials | None = None
        self._signing_in = asyncio.Lock()
        self._place: tuple[str, int] | None = None

    def forget_place(self) -> None:
        """The pod that was chosen does not answer any more: choose again."""
        self._place = None

    async def place(self) -> tuple[str, int]:
        """The pod and its port that connections lead to now.

        Raises:
            NoWayError: there is none, or nobody can be asked.
        """
        if self._place is None:
            self._place = await self._choose()
        return self._place

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        """A websocket to the goal: data on channel 0, errors on channel 1.

        Raises:
            NoWayError: it can't be opened.
        """
        import httpx_ws

        pod, port = await self.place()
        path = f"{kind_of('Pod').path(self._goal.namespace, pod)}/portforward"
        async with contextlib.AsyncExitStack() as stack:
            try:
                credentials = await self._current()
                client = await stack.enter_async_context(credentials.client())
                socket: Any = await stack.enter_async_context(
                    httpx_ws.aconnect_ws(
                        f"{credentials.server}{path}",
                        client,
                        params={"ports": str(port)},
                        subprotocols=[_PROTOCOL],
                        extensions=credentials.extensions,
                        timeout=httpx.Timeout(_TIMEOUT_S, read=None),
                    )
                )
            except (httpx.HTTPError, httpx_ws.HTTPXWSException, OSError) as error:
                self.forget_place()
                response = getattr(error, "response", None)
                if response is not None and response.status_code in _REFUSED:
                    self._credentials = None
                raise NoWayError(f"Pod {pod} can't be reached: {_why(error)}") from error
            yield socket

    async def _choose(self) -> tuple[str, int]:
        targets = [self._goal.target, *([self._goal.otherwise] if self._goal.otherwise else [])]
        for target in targets:
            kind, _, name = target.rpartition("/")
            port = self._goal.port
            if kind == "pod":
                found = await self._get(kind_of("Pod").path(self._goal.namespace, name))
                pods = [found] if found else []
            elif kind == "service":
                service = await self._get(kind_of("Service").path(self._goal.namespace, name))
                pods = await self._pods(_selector(service)) if service else []
                pods = [pod for pod in pods if is_ready(pod)]
            else:
                service, pods = None, await self._pods(target)
            usable = [pod for pod in pods if _is_usable(pod)]
            if usable:
                pod = random.choice([pod for pod in usable if is_ready(pod)] or usable)
                return name_of(pod), _pod_port(pod, service, port) if kind == "service" else port
        raise NoWayError(f"No pod of {' or '.join(targets)} in namespace {self._goal.namespace} is up.")

    async def _pods(self, selector: str) -> list[Object]:
        found = await self._get(kind_of("Pod").path(self._goal.namespace), {"labelSelector": selector})
        return list((found or {}).get("items") or [])

    async def _get(self, path: str, params: dict[str, str] | None = None) -> Object | None:
        """One answer; None for 404. Signs in again once where the credentials are not taken any more."""
        for attempt in range(2):
            credentials = await self._current()
            try:
                async with credentials.client() as client:
                    response = await client.get(path, params=params or {}, extensions=credentials.extensions)
            except (httpx.HTTPError, OSError) as error:
                raise NoWayError(f"The Kubernetes API does not answer: {_why(error)}") from error
            if response.status_code != 401 or attempt:
                break
            self._credentials = None
        if response.status_code == 404:
            return None
        if response.status_code >= 400:
            raise NoWayError(f"Kubernetes refused GET {path}: {response.text.strip()[:300]}")
        answer: Object = response.json()
        return answer

    async def _current(self) -> Credentials:
        async with self._signing_in:
            if self._credentials is None:
                self._credentials = await _sign_in(self._auth)
            return self._credentials


async def _sign_in(auth: Any) -> Credentials:
    """Read the kubeconfig's credentials, and run its program for them, again.

    Raises:
        NoWayError: there are none at present.
    """
    try:
        await auth.reauthenticate()
        own = await auth.ssl_context()
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise NoWayError(f"The kubeconfig's credentials could not be had: {_why(error)}") from error
    finally:
        forget_copies(auth)
    trust = own if isinstance(own, ssl.SSLContext) else httpx.create_ssl_context()
    headers = {"Authorization": f"Bearer {auth.token}"} if auth.token else {}
    return Credentials(str(auth.server), headers, trust, auth.proxy, auth.tls_server_name)


def _selector(service: Object) -> str:
    return ",".join(f"{name}={value}" for name, value in (service["spec"].get("selector") or {}).items())


def _is_usable(pod: Object) -> bool:
    return status_of(pod).get("phase") == "Running" and not is_going(pod)


def _pod_port(pod: Object, service: Object | None, port: int) -> int:
    """The pod's port that a service's port stands for."""
    ports = ((service or {}).get("spec") or {}).get("ports") or []
    target = next((each.get("targetPort", port) for each in ports if each.get("port") == port), port)
    if isinstance(target, int) or str(target).isdecimal():
        return int(target)
    named = (each for container in pod["spec"]["containers"] for each in container.get("ports") or [])
    return next((int(each["containerPort"]) for each in named if each.get("name") == target), port)


def _why(error: BaseException) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"the API server answers {response.status_code}"
    text = str(error).strip().splitlines()
    return text[-1] if text else type(error).__name__
