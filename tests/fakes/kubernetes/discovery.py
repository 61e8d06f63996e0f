"""What the fake API says of itself: version, groups, resources, and as much OpenAPI as kubectl and helm ask for."""

from collections.abc import Iterable, Sequence
from typing import Any

from fakes.kubernetes.errors import Json
from fakes.kubernetes.kinds import REVIEWS, SUBRESOURCES, Kind

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def split_path(path: str) -> tuple[str, str, list[str]]:
    """Group, version and the rest of a path below /api or /apis."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 1:
        return "", parts[1], parts[2:]
    if parts[0] == "apis" and len(parts) > 2:
        return parts[1], parts[2], parts[3:]
    return "", "", []


def about(path: str, kinds: Sequence[Kind], kubernetes: str) -> Any:
    """What a path that leads to no object answers; None where it may lead to one."""
    clean = path.rstrip("/")
    if clean in ("/healthz", "/readyz", "/livez"):
        return "ok"
    if clean == "/version":
        return version_of(kubernetes)
    if clean == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if clean == "/apis":
        return groups(kinds)
    if clean == "/openapi/v3":
        return open_api_index(kinds)
    if clean.startswith("/openapi/v3/"):
        group, version, _ = split_path(clean.removeprefix("/openapi/v3"))
        return open_api(kinds, group, version)
    group, version, rest = split_path(clean)
    return resources(kinds, group, version) if version and not rest else None


def version_of(kubernetes: str) -> Json:
    """As EKS answers `/version` for Kubernetes `kubernetes`, like "1.35"."""
    major, minor = kubernetes.split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{kubernetes}.2-eks-fake",
        "gitCommit": "0" * 40,
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
        "goVersion": "go1.25",
        "compiler": "gc",
        "platform": "linux/amd64",
    }


def group_versions(kinds: Iterable[Kind]) -> dict[str, list[str]]:
    """Versions by group; the group of the core API is ""."""
    found: dict[str, dict[str, None]] = {}
    for kind in kinds:
        found.setdefault(kind.group, {}).update(dict.fromkeys(kind.versions))
    for review in REVIEWS:
        group, _, one = review.partition("/")
        found.setdefault(group, {})[one] = None
    return {group: list(versions) for group, versions in found.items()}


def groups(kinds: Iterable[Kind]) -> Json:
    found = []
    for group, versions in group_versions(kinds).items():
        if group:
            named = [{"groupVersion": f"{group}/{each}", "version": each} for each in versions]
            found.append({"name": group, "versions": named, "preferredVersion": named[0]})
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}


def resources(kinds: Iterable[Kind], group: str, version: str) -> Json | None:
    """What one version of a group holds; None where there is none."""
    found: list[Json] = []
    for kind in kinds:
        if kind.group == group and version in kind.versions:
            found += _of_kind(kind)
    group_version = f"{group}/{version}" if group else version
    if group_version in REVIEWS:
        name, plural = REVIEWS[group_version]
        found.append(
            {
                "name": plural,
                "singularName": name.lower(),
                "namespaced": False,
                "kind": name,
                "verbs": ["create"],
            }
        )
    if not found:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": found,
    }


def _of_kind(kind: Kind) -> list[Json]:
    main: Json = {
        "name": kind.plural,
        "singularName": kind.name.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.name,
        "verbs": _VERBS,
        "shortNames": list(kind.short_names),
        "categories": list(kind.categories),
    }
    subresources = [*(["status"] if kind.has_status else []), *SUBRESOURCES.get(kind.plural, ())]
    return [
        main,
        *(
            {
                "name": f"{kind.plural}/{each}",
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": kind.name,
                "verbs": ["get", "patch", "update"] if each == "status" else ["create", "get"],
            }
            for each in subresources
        ),
    ]


def open_api_index(kinds: Iterable[Kind]) -> Json:
    paths = {}
    for group, versions in group_versions(kinds).items():
        for each in versions:
            path = f"apis/{group}/{each}" if group else f"api/{each}"
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}"}
    return {"paths": paths}


def open_api(kinds: Iterable[Kind], group: str, version: str) -> Json:
    """The paths of one version of a group: kubectl looks there for which parameters a PATCH takes."""
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    names = ("dryRun", "fieldManager", "fieldValidation", "force")
    parameters = [{"name": each, "in": "query", "schema": {"type": "string"}} for each in names]
    paths = {}
    for kind in kinds:
        if kind.group == group and version in kind.versions:
            place = (
                f"{base}/namespaces/{{namespace}}/{kind.plural}"
                if kind.namespaced
                else f"{base}/{kind.plural}"
            )
            paths[f"{place}/{{name}}"] = {
                "patch": {
                    "operationId": f"patch{kind.name}",
                    "parameters": parameters,
                    "responses": {"200": {"description": "OK"}},
                    "x-kubernetes-action": "patch",
                    "x-kubernetes-group-version-kind": {
                        "group": group,
                        "version": version,
                        "kind": kind.name,
                    },
                }
            }
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": version}, "paths": paths}
