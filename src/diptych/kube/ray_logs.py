"""Logs that Ray keeps in files: what replicas and engines write is in no container's output under KubeRay.

`ray start --block`, which is what the containers run, prints of itself alone. The head's dashboard hands the files out,
of all nodes; it is reached through a port-forward, with the token that KubeRay made for the Ray cluster.
"""

import base64
import contextlib
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any, Self

import httpx

from diptych.engine_log import clean
from diptych.errors import ClusterError
from diptych.kube.connection import Cluster
from diptych.kube.endpoint import head_labels
from diptych.kube.forward import Forward
from diptych.kube.objects import Object, labels_of, name_of, status_of
from diptych.render.pods import DASHBOARD_PORT
from diptych.spec import Document

_WORKER_FILE = re.compile(r"worker-[0-9a-f]+-[0-9a-f]+-(?P<pid>\d+)\.(?P<stream>out|err)")
_REPLICA_FILE = re.compile(r"(?:serve/)?replica_.*\.log")
_RAY_FILES = re.compile(
    r"gcs_server\.(?:out|err)|raylet\.(?:out|err)|dashboard\.log|(?:serve/)?(?:controller|proxy)_.*\.log"
)
_ENGINE = re.compile(
    r"EngineCore|Loading .*shards|\b(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d|\[diptych\]"
)
_TIMEOUT_S = 10.0
_PATIENCE_S = 3.0
_KEPT_S = 5.0
_SILENT_S = 15.0
"""After a failure the head is not asked for so long: who waits for the service looks every other second."""
_LINES = 80


class NoFilesError(ClusterError):
    """The dashboard answers, and has no such files for us: the node is new or gone, or the token is not good."""


class RayLogs:
    """The files of one service's Ray nodes; open within `with`.

    Args:
        cluster: where it is.

    Raises:
        ClusterError: on entering: there is no head to ask.
    """

    def __init__(self, cluster: Cluster, document: Document) -> None:
        self._cluster, self._document = cluster, document
        self._stack = contextlib.ExitStack()
        self._client: httpx.Client | None = None

    def __enter__(self) -> Self:
        namespace = self._document.kubernetes.namespace
        with contextlib.ExitStack() as stack:
            forward = Forward(
                self._cluster, namespace, head_labels(self._document), DASHBOARD_PORT, patience_s=_PATIENCE_S
            )
            stack.enter_context(forward)
            headers = self._token(forward.pod(), namespace)
            client = httpx.Client(base_url=forward.url, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
            self._client = stack.enter_context(client)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def files(self, pod: Object) -> list[str]:
        """The names of the files on a pod's Ray node.

        Raises:
            ClusterError: the dashboard does not answer, or does not tell (`NoFilesError`).
        """
        found: list[str] = []
        for pattern in ("*", "serve/*"):
            told = self._get("/api/v0/logs", {"node_ip": _address(pod), "glob": pattern}).json()
            groups = ((told.get("data") or {}).get("result") or {}).values()
            found += [name for group in groups for name in group]
        return sorted(set(found))

    def tail(self, pod: Object, file: str, lines: int) -> list[str]:
        """The last lines of a file on a pod's Ray node.

        Raises:
            ClusterError: as for `files`.
        """
        asked = {"node_ip": _address(pod), "filename": file, "lines": str(lines)}
        return self._get("/api/v0/logs/file", asked).text.splitlines()

    def _get(self, path: str, params: dict[str, str]) -> httpx.Response:
        assert self._client is not None, "it is not open"
        try:
            response = self._client.get(path, params=params)
        except httpx.HTTPError as error:
            raise ClusterError(
                f"Ray's dashboard on the head does not answer: {error or type(error).__name__}."
            ) from error
        if response.status_code >= 400:
            said = response.text.strip()[:200]
            raise NoFilesError(f"Ray's dashboard on the head refuses {path} ({response.status_code}): {said}")
        return response

    def _token(self, head: str, namespace: str) -> dict[str, str]:
        """What opens the dashboard: KubeRay keeps it in a secret that is called as the Ray cluster is."""
        pod: dict[str, Any] = self._cluster.get("Pod", head, namespace) or {"metadata": {}}
        secret = self._cluster.get("Secret", labels_of(pod).get("ray.io/cluster", ""), namespace) or {}
        encoded = (secret.get("data") or {}).get("auth_token")
        return {"Authorization": f"Bearer {base64.b64decode(encoded).decode()}"} if encoded else {}


class EngineLines:
    """The last lines of the engine in a pod, asked for every few seconds at most; none where they can't be had.

    For `snapshot.take`. Open within `with`; the head is asked once there is one.
    """

    def __init__(self, cluster: Cluster, document: Document) -> None:
        self._cluster, self._document = cluster, document
        self._logs: RayLogs | None = None
        self._kept: dict[str, tuple[float, Sequence[str]]] = {}
        self._silent_until = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._logs is not None:
            self._logs.__exit__()

    def __call__(self, pod: Object) -> Sequence[str]:
        """The lines, oldest first."""
        now = time.monotonic()
        asked_at, lines = self._kept.get(name_of(pod), (0.0, ()))
        if now < self._silent_until or (asked_at and now - asked_at < _KEPT_S):
            return lines
        try:
            lines = self._ask(pod)
        except NoFilesError:
            lines = ()
        except ClusterError:
            self._silent_until = time.monotonic() + _SILENT_S
        self._kept[name_of(pod)] = now, lines
        return lines

    def _ask(self, pod: Object) -> Sequence[str]:
        if self._logs is None:
            self._logs = RayLogs(self._cluster, self._document).__enter__()
        return engine_lines(self._logs, pod)


def engine_lines(logs: RayLogs, pod: Object) -> list[str]:
    """What the newest engine in a pod wrote last: its process is the youngest that writes as engines do.

    Raises:
        ClusterError: the files can't be had.
    """
    processes: dict[int, list[str]] = {}
    for file in logs.files(pod):
        if found := _WORKER_FILE.fullmatch(file):
            processes.setdefault(int(found["pid"]), []).append(file)
    for pid in sorted(processes, reverse=True):
        # The stream of errors has the progress bars only: the other one comes last.
        told = [line for file in sorted(processes[pid]) for line in logs.tail(pod, file, _LINES)]
        if any(_ENGINE.search(line) for line in told):
            return [text for line in told if (text := clean(line))]
    return []


def files_of_engines(files: Iterable[str]) -> list[str]:
    """Of the files of a worker's node, those in which replicas and engines write."""
    return [file for file in files if _WORKER_FILE.fullmatch(file) or _REPLICA_FILE.fullmatch(file)]


def files_of_ray(files: Iterable[str]) -> list[str]:
    """Of the files of a node, Ray's own that matter when Ray fails."""
    return [file for file in files if _RAY_FILES.fullmatch(file)]


def _address(pod: Object) -> str:
    return str(status_of(pod).get("podIP") or "")
