"""Releases as Helm keeps them: one Secret per revision, "pending" while it works, and then what it came to."""

import base64
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fakes.programs.api import Api
from fakes.programs.flags import RefusedError

_PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/{namespace}/daemonsets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


@dataclass
class Release:
    """One revision of a release."""

    name: str
    namespace: str
    revision: int
    status: str
    chart: str
    chart_version: str
    app_version: str
    values: Mapping[str, Any]
    things: list[dict[str, Any]] = field(default_factory=list)
    updated: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f +0000 UTC"))


def path_of(thing: Mapping[str, Any]) -> str:
    """Where an object is in the API."""
    about = thing["metadata"]
    return f"{_PATHS[thing['kind']].format(namespace=about.get('namespace', ''))}/{about['name']}"


class Releases:
    """All releases of a namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace

    def all(self) -> list[Release]:
        """Every revision, the oldest first."""
        selector = "?labelSelector=owner%3Dhelm"
        secrets = self._api.call("GET", f"/api/v1/namespaces/{self._namespace}/secrets{selector}")["items"]
        return sorted((_read(secret) for secret in secrets), key=lambda release: release.revision)

    def latest(self, name: str) -> Release | None:
        """The newest revision, whatever its status."""
        found = [release for release in self.all() if release.name == name]
        return found[-1] if found else None

    def deployed(self, name: str) -> Release | None:
        """What is there: the newest revision that was deployed."""
        found = [one for one in self.all() if one.name == name and one.status in {"deployed", "superseded"}]
        return found[-1] if found else None

    def save(self, release: Release) -> None:
        """Write the revision's Secret."""
        name = _secret_name(release)
        labels = {
            "name": release.name,
            "owner": "helm",
            "status": release.status,
            "version": str(release.revision),
        }
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "helm.sh/release.v1",
            "metadata": {"name": name, "namespace": self._namespace, "labels": labels},
            "data": {"release": _packed(release)},
        }
        self._api.apply(f"/api/v1/namespaces/{self._namespace}/secrets/{name}", secret)

    def forget(self, release: Release) -> None:
        """Delete the revision's Secret."""
        self._api.delete(f"/api/v1/namespaces/{self._namespace}/secrets/{_secret_name(release)}")

    def take(self, release: Release) -> None:
        """Make its objects, marked as the release's; raises RefusedError where one is somebody else's."""
        for thing in release.things:
            path = path_of(thing)
            there = self._api.get(path)
            if there is not None:
                _check_owner(thing, there, release)
            annotations = {
                "meta.helm.sh/release-name": release.name,
                "meta.helm.sh/release-namespace": release.namespace,
            }
            about = {**thing["metadata"], "annotations": annotations}
            self._api.apply(path, {**thing, "metadata": about})

    def drop(self, things: list[dict[str, Any]]) -> None:
        """Delete objects; what is gone is fine."""
        for thing in reversed(things):
            self._api.delete(path_of(thing))


def _check_owner(thing: Mapping[str, Any], there: Mapping[str, Any], release: Release) -> None:
    labels = there["metadata"].get("labels") or {}
    notes = there["metadata"].get("annotations") or {}
    problems = []
    if labels.get("app.kubernetes.io/managed-by") != "Helm":
        problems.append(
            'label validation error: missing key "app.kubernetes.io/managed-by": must be set to "Helm"'
        )
    for key, value in (("name", release.name), ("namespace", release.namespace)):
        if notes.get(f"meta.helm.sh/release-{key}") != value:
            problems.append(
                f'annotation validation error: missing key "meta.helm.sh/release-{key}": must be set to "{value}"'
            )
    if problems:
        about = thing["metadata"]
        raise RefusedError(
            f'unable to continue with install: {thing["kind"]} "{about["name"]}" in namespace '
            f'"{about.get("namespace", "")}" exists and cannot be imported into the current release: invalid ownership '
            f"metadata; {'; '.join(problems)}"
        )


def _secret_name(release: Release) -> str:
    return f"sh.helm.release.v1.{release.name}.v{release.revision}"


def _packed(release: Release) -> str:
    """As helm packs it, so that the real one can read it: JSON, gzip, base64, and base64 again for the Secret."""
    about = {
        "name": release.name,
        "namespace": release.namespace,
        "version": release.revision,
        "info": {
            "status": release.status,
            "last_deployed": datetime.now(UTC).isoformat(),
            "first_deployed": datetime.now(UTC).isoformat(),
        },
        "config": release.values,
        "manifest": "".join(f"---\n{json.dumps(thing)}\n" for thing in release.things),
        "chart": {
            "metadata": {
                "name": release.chart,
                "version": release.chart_version,
                "appVersion": release.app_version,
                "apiVersion": "v2",
            }
        },
    }
    inner = base64.b64encode(gzip.compress(json.dumps(about).encode()))
    return base64.b64encode(inner).decode()


def _read(secret: Mapping[str, Any]) -> Release:
    about = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(secret["data"]["release"]))))
    chart = about["chart"]["metadata"]
    return Release(
        about["name"],
        about["namespace"],
        about["version"],
        secret["metadata"]["labels"]["status"],
        chart["name"],
        chart["version"],
        chart.get("appVersion", chart["version"]),
        about.get("config") or {},
        [json.loads(part) for part in about["manifest"].split("---\n") if part.strip()],
    )
