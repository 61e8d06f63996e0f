"""A Kubernetes cluster, plainly: read, apply, patch, delete, logs. Server-side apply, in our name.

In a dry run reading works, and what would be changed is noted and told instead.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from diptych.errors import ClusterError
from diptych.kube.kinds import KINDS, kind_of
from diptych.kube.kubeconfig import Source, Target, resolve
from diptych.kube.refusals import RefusedError, UnreachableError, conflict
from diptych.kube.requests import PATIENCE_S, Requests
from diptych.progress import View

__all__ = ["Cluster", "RefusedError", "Target", "UnreachableError", "connect"]

FIELD_MANAGER = "diptych"
_PAGE = 500
_EXPIRED = 410
_BRINGERS = {
    "ray.io": "The KubeRay operator brings it: `diptych up --step operator`.",
    "gateway.networking.k8s.io": "Install the Gateway API and a controller for it, or set access.expose otherwise.",
}
"""What to do where a cluster lacks the kinds of an API group."""
_AUTHORIZATION = "authorization.k8s.io/v1"


def connect(
    target: Target, *, dry_run: bool = False, view: View | None = None, patience_s: float = PATIENCE_S
) -> "Cluster":
    """Connect to a cluster that exists.

    Args:
        dry_run: nothing is changed.
        view: is told what a dry run would change.
        patience_s: for how long an API server that is away is asked again.

    Raises:
        ClusterError: no kubeconfig, no such context, no answer, a wrong certificate, or refused credentials.
        SetupError: kr8s is missing.
    """
    source = resolve(target)
    requests = Requests(source, patience_s=patience_s)
    return Cluster(source.context or "in-cluster", requests, dry_run=dry_run, view=view, source=source)


class Cluster:
    """One cluster. `calls` lists what was changed, or in a dry run would have been.

    Args:
        context: its name in the kubeconfig.
        requests: None: there is no cluster yet, and reading finds nothing.
        source: its kubeconfig, for programs that need one.
    """

    def __init__(
        self,
        context: str,
        requests: Requests | None,
        *,
        dry_run: bool = False,
        view: View | None = None,
        source: Source | None = None,
    ) -> None:
        self.context = context
        self.source = source or Source((), None)
        self.server = requests.server if requests else ""
        self.dry_run = dry_run or requests is None
        self.calls: list[str] = []
        self._requests = requests
        self._view = view or View()
        self._gone: set[str] = set()  # uids that a dry run would have deleted

    @classmethod
    def absent(cls, context: str, view: View | None = None) -> "Cluster":
        """A cluster that is not there yet, for dry runs: reading finds nothing."""
        return cls(context, None, view=view)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        if self._requests:
            self._requests.close()

    @property
    def requests(self) -> Requests:
        """The connection itself: for what has no method here, as a websocket.

        Raises:
            ClusterError: there is no cluster yet.
        """
        if self._requests is None:
            raise ClusterError(f"There is no cluster {self.context} yet.")
        return self._requests

    def version(self) -> str:
        """The server's version, as in "1.35"; empty where there is no cluster yet."""
        if self._requests is None:
            return ""
        told = self._requests.send("GET", "/version")
        return f"{told['major']}.{str(told['minor']).rstrip('+')}"

    def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One object; None where it, its namespace or its kind is not there."""
        if self._requests is None:
            return None
        try:
            found: dict[str, Any] = self._requests.send("GET", kind_of(kind).path(namespace, name))
        except RefusedError as error:
            if error.status == 404:
                return None
            raise
        return None if self._would_be_gone(found) else found

    def list(
        self,
        kind: str,
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """All objects of a kind; none where the cluster does not know the kind.

        Args:
            namespace: None: of all namespaces.
            labels, fields: that they must have, exactly.
        """
        if self._requests is None:
            return []
        params: dict[str, Any] = {"limit": _PAGE}
        params |= {"labelSelector": _selector(labels)} if labels else {}
        params |= {"fieldSelector": _selector(fields)} if fields else {}
        while True:
            try:
                found = _pages(self._requests, kind, namespace, params)
                return [each for each in found if not self._would_be_gone(each)]
            except RefusedError as error:
                if error.status == 404:
                    return []
                if error.status != _EXPIRED:  # the pages are of a time that is gone: from the first again
                    raise

    def knows(self, kind: str) -> bool:
        """Whether the cluster has this kind; custom ones come with their operators."""
        if self._requests is None:
            return False
        known = kind_of(kind)
        try:
            told = self._requests.send("GET", known.root)
        except RefusedError as error:
            if error.status == 404:
                return False
            raise
        return any(each.get("name") == known.plural for each in told.get("resources") or [])

    def apply(self, obj: Mapping[str, Any], *, force: bool = False, dry_run: bool = False) -> dict[str, Any]:
        """Make an object what `obj` says, as far as it says something (server-side apply).

        Args:
            force: take over fields that another manager set.
            dry_run: have the server tell only what would come of it.

        Returns:
            The object as it is then, or would be; where nothing is sent, `obj`.

        Raises:
            ClusterError: another manager set one of its fields otherwise; the message names both.
            RefusedError: the server does not take it.
        """
        kind, meta = kind_of(str(obj["kind"])), obj["metadata"]
        path = kind.path(meta.get("namespace"), meta["name"])
        if not dry_run:
            self._note("apply", obj["kind"], meta["name"], meta.get("namespace"))
        if self._requests is None or (self.dry_run and not dry_run):
            return dict(obj)
        params = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        params |= {"force": "true"} if force else {}
        params |= {"dryRun": "All"} if dry_run else {}
        headers = {"Content-Type": "application/apply-patch+yaml"}
        try:
            found: dict[str, Any] = self.requests.send(
                "PATCH", path, params=params, headers=headers, body=dict(obj)
            )
        except RefusedError as error:
            if error.status == 409 and error.causes:
                raise conflict(obj, error) from error
            if error.status == 404 and not self.knows(str(obj["kind"])):
                raise ClusterError(
                    f"The cluster does not know objects of the kind {obj['kind']} ({obj['apiVersion']}).",
                    _BRINGERS.get(obj["apiVersion"].partition("/")[0], ""),
                ) from error
            raise
        return found

    def patch(self, kind: str, name: str, namespace: str | None, patch: Mapping[str, Any]) -> None:
        """Merge `patch` into an object (JSON merge patch: None removes a field)."""
        self._note("patch", kind, name, namespace)
        if self.dry_run:
            return
        headers = {"Content-Type": "application/merge-patch+json"}
        self.requests.send(
            "PATCH",
            kind_of(kind).path(namespace, name),
            params={"fieldManager": FIELD_MANAGER},
            headers=headers,
            body=dict(patch),
        )

    def delete(self, kind: str, name: str, namespace: str | None = None) -> bool:
        """Delete an object, and what it owns; what has a finalizer goes later.

        Returns:
            False where it was not there. A dry run says so, too; what it would have deleted, and what that owns, is
            not found any more.
        """
        if self.dry_run:
            there = self.get(kind, name, namespace)
            if there is None:
                return False
            self._note("delete", kind, name, namespace)
            self._gone.add(there["metadata"]["uid"])
            return True
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        try:
            self.requests.send("DELETE", kind_of(kind).path(namespace, name), body=body)
        except RefusedError as error:
            if error.status == 404:
                return False
            raise
        self._note("delete", kind, name, namespace)
        return True

    def log(
        self,
        pod: str,
        namespace: str,
        container: str,
        *,
        tail: int | None = None,
        since_s: int | None = None,
        follow: bool = False,
        previous: bool = False,
        timestamps: bool = False,
    ) -> Iterator[str]:
        """The lines of a container's log.

        Args:
            tail: the last so many only.
            since_s: of the last so many seconds only.
            follow: go on with lines as they come, until the container ends or the caller stops.
            previous: of the container before its last restart.
            timestamps: each line begins with its time (RFC 3339).

        Raises:
            RefusedError: there is no such pod or container, or it has not started.
        """
        asked = {
            "container": container,
            "tailLines": tail,
            "sinceSeconds": since_s,
            "follow": "true" if follow else None,
            "previous": "true" if previous else None,
            "timestamps": "true" if timestamps else None,
        }
        params = {name: value for name, value in asked.items() if value is not None}
        return self.requests.lines(kind_of("Pod").path(namespace, pod) + "/log", params)

    def allowed(self, verb: str, resource: str, group: str = "", namespace: str | None = None) -> bool:
        """Whether these credentials may do that; `resource` as in "pods" or "pods/log"."""
        if self._requests is None:
            return True
        name, _, sub = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": name, "subresource": sub, "namespace": namespace}
        review = {
            "apiVersion": _AUTHORIZATION,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in asked.items() if value}},
        }
        told = self._requests.send("POST", f"/apis/{_AUTHORIZATION}/selfsubjectaccessreviews", body=review)
        return bool((told.get("status") or {}).get("allowed"))

    def raw(self, method: str, path: str, **options: Any) -> Any:
        """Any request; `options` as `Requests.send` takes them. In a dry run only GET is sent."""
        if method != "GET":
            self._tell(f"{method} {path}")
            if self.dry_run:
                return {}
        return self.requests.send(method, path, **{"again": method in ("GET", "PUT", "DELETE")} | options)

    def _would_be_gone(self, obj: Mapping[str, Any]) -> bool:
        """Whether a dry run would have deleted an object by now, or what owns it."""
        meta = obj["metadata"]
        if not self._gone or meta.get("uid") in self._gone:
            return bool(self._gone)
        owners = (each for each in meta.get("ownerReferences") or [] if each["kind"] in KINDS)
        return any(self.get(each["kind"], each["name"], meta.get("namespace")) is None for each in owners)

    def _note(self, verb: str, kind: str, name: str, namespace: str | None) -> None:
        self._tell(f"{verb} {kind} {namespace}/{name}" if namespace else f"{verb} {kind} {name}")

    def _tell(self, call: str) -> None:
        self.calls.append(call)
        if self.dry_run:
            self._view.say(f"would {call}")


def _pages(
    requests: Requests, kind: str, namespace: str | None, params: Mapping[str, Any]
) -> list[dict[str, Any]]:
    known = kind_of(kind)
    found: list[dict[str, Any]] = []
    rest = ""
    while True:
        page = requests.send(
            "GET", known.path(namespace), params={**params, "continue": rest} if rest else params
        )
        # The items of a list come without their kind.
        found += [{"apiVersion": known.api_version, "kind": kind} | item for item in page.get("items") or []]
        rest = (page.get("metadata") or {}).get("continue") or ""
        if not rest:
            return found


def _selector(wanted: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in wanted.items())
