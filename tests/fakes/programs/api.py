"""The Kubernetes API as the stand-ins reach it: by a kubeconfig's words, over HTTP(S)."""

import base64
import json
import os
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml


class ApiError(Exception):
    """An answer that refuses, or none (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """A cluster's API.

    Args:
        authority: certificate authority, PEM; empty where the server speaks plain HTTP.
    """

    def __init__(self, server: str, token: str = "", authority: str = "", agent: str = "fake") -> None:
        self._server, self._token, self._agent = server.rstrip("/"), token, agent
        self._context = ssl.create_default_context(cadata=authority) if authority else None

    @classmethod
    def of_kubeconfig(cls, path: str | None, context: str | None, agent: str) -> Self:
        """As helm finds its cluster: a flag's path, else KUBECONFIG, else the user's own. Raises ApiError."""
        config = _merged(path or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config"))
        if not config:
            message = (
                'Kubernetes cluster unreachable: Get "http://localhost:8080/version": '
                "dial tcp 127.0.0.1:8080: connect: connection refused"
            )
            raise ApiError(0, message)
        name = context or config.get("current-context", "")
        found = _named(config, "contexts", name)
        if found is None:
            raise ApiError(0, f'Kubernetes cluster unreachable: context "{name}" does not exist')
        cluster = (_named(config, "clusters", found["context"]["cluster"]) or {})["cluster"]
        user = (_named(config, "users", found["context"]["user"]) or {"user": {}})["user"]
        authority = base64.b64decode(cluster.get("certificate-authority-data", "")).decode()
        if not authority and "certificate-authority" in cluster:
            authority = Path(cluster["certificate-authority"]).read_text()
        return cls(cluster["server"], _token(user), authority, agent)

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, kind: str = "application/json"
    ) -> Any:
        """The answer's JSON; raises ApiError."""
        headers = {"Content-Type": kind, "Accept": "application/json", "User-Agent": self._agent}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self._server + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20, context=self._context) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, _message(error.read())) from None
        except OSError as error:
            raise ApiError(
                0, f'Kubernetes cluster unreachable: Get "{self._server}/version": {error}'
            ) from None

    def get(self, path: str) -> Any:
        """None where it is not there."""
        try:
            return self.call("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def apply(self, path: str, thing: Mapping[str, Any]) -> Any:
        """Server-side, over everybody else's fields."""
        query = f"?fieldManager={self._agent}&force=true"
        return self.call("PATCH", path + query, thing, "application/apply-patch+yaml")

    def delete(self, path: str) -> bool:
        """False where it was not there."""
        try:
            self.call("DELETE", path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True


def _merged(paths: str) -> dict[str, Any]:
    """One kubeconfig of several files; the first that says something wins. Empty where there is none."""
    merged: dict[str, Any] = {}
    for path in paths.split(os.pathsep):
        if not Path(path).is_file():
            continue
        config = yaml.safe_load(Path(path).read_text()) or {}
        merged.setdefault("current-context", config.get("current-context", ""))
        for kind in ("clusters", "users", "contexts"):
            merged[kind] = [*merged.get(kind, ()), *(config.get(kind) or ())]
    return merged


def _named(config: Mapping[str, Any], kind: str, name: str) -> Any:
    return next((one for one in config.get(kind) or () if one["name"] == name), None)


def _token(user: Mapping[str, Any]) -> str:
    """The user's, from a credential plugin if there is one."""
    plugin = user.get("exec")
    if plugin is None:
        return str(user.get("token", ""))
    variables = {row["name"]: row["value"] for row in plugin.get("env") or ()}
    with tempfile.TemporaryFile("w+") as errors:
        done = subprocess.run(
            [plugin["command"], *(plugin.get("args") or ())],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=60,
        )
        errors.seek(0)
        if done.returncode:
            raise ApiError(
                0,
                f"Kubernetes cluster unreachable: getting credentials: exec: executable {plugin['command']} failed "
                f"with exit code {done.returncode}: {errors.read().strip()}",
            )
    return str(json.loads(done.stdout)["status"]["token"])


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")
