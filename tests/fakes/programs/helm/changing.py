"""`helm install`, `upgrade` and `uninstall`."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fakes.programs.api import Api, ApiError
from fakes.programs.flags import Flags, RefusedError, seconds
from fakes.programs.helm.asked import api_of, chart_of, namespace_of, tell
from fakes.programs.helm.charts import CHARTS, custom_resources, find
from fakes.programs.helm.releases import Release, Releases


def _given_values(flags: Flags) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for file in flags.lists.get("values", ()):
        try:
            text = sys.stdin.read() if file == "-" else Path(file).read_text()
        except OSError as error:
            raise RefusedError(f"open {file}: {(error.strerror or '').lower()}") from None
        merged |= yaml.safe_load(text) or {}
    for setting in flags.all("set"):
        name, _, value = setting.partition("=")
        place = merged
        *parents, last = name.split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = yaml.safe_load(value)
    return merged


def install(flags: Flags) -> None:
    _put(flags, upgrade=False)


def upgrade(flags: Flags) -> None:
    _put(flags, upgrade=True)


def _put(flags: Flags, *, upgrade: bool) -> None:
    if len(flags.arguments) != 2:
        raise RefusedError(f'"helm {"upgrade" if upgrade else "install"}" requires 2 arguments')
    name, chart = flags.arguments[0], chart_of(flags, 1)
    api, namespace = api_of(flags), namespace_of(flags)
    _check_namespace(api, namespace, flags)
    releases = Releases(api, namespace)
    before, given = releases.latest(name), _given_values(flags)
    if before is not None and before.status.startswith("pending"):
        raise RefusedError("UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress")
    if before is not None and before.status == "uninstalling":
        raise RefusedError(f'UPGRADE FAILED: "{name}" has no deployed releases')
    there = releases.deployed(name)
    if there is None and upgrade and not flags.on("install"):
        raise RefusedError(f'UPGRADE FAILED: "{name}" has no deployed releases')
    if not upgrade and there is not None:
        raise RefusedError("INSTALLATION FAILED: cannot re-use a name that is still in use")
    if there is None and upgrade:
        print(f'Release "{name}" does not exist. Installing it now.', flush=True)
    version = chart.version(flags.text("version"))
    release = Release(
        name,
        namespace,
        before.revision + 1 if before else 1,
        "pending-upgrade" if there else "pending-install",
        chart.name,
        version,
        version,
        given,
        chart.make(name, namespace, version, chart.values(given)),
    )
    _work(api, releases, release, there, flags)
    tell(release, upgraded=there is not None)


def _check_namespace(api: Api, namespace: str, flags: Flags) -> None:
    if api.get(f"/api/v1/namespaces/{namespace}") is not None:
        return
    if not flags.on("create-namespace"):
        raise RefusedError(f'create: failed to create: namespaces "{namespace}" not found')
    about = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    api.apply(f"/api/v1/namespaces/{namespace}", about)


def _work(api: Api, releases: Releases, release: Release, before: Release | None, flags: Flags) -> None:
    """From pending to deployed, or failed."""
    try:
        releases.save(release)
        time.sleep(float(os.environ.get("FAKE_HELM_PAUSE_S", "0")))
        if before is None and not flags.on("skip-crds"):
            _install_custom_resources(api, release)
        releases.take(release)
        if before is not None:
            kept = {_key(thing) for thing in release.things}
            releases.drop([thing for thing in before.things if _key(thing) not in kept])
        if flags.on("wait"):
            _wait(api, release, seconds(flags.text("timeout", "5m0s")))
    except (RefusedError, ApiError, KeyboardInterrupt) as error:
        release.status = "failed"
        releases.save(release)
        if isinstance(error, KeyboardInterrupt):
            print(f"Release {release.name} has been cancelled.", flush=True)
            raise RefusedError("context canceled") from None
        raise
    if before is not None and before.status == "deployed":
        before.status = "superseded"
        releases.save(before)
    release.status = "deployed"
    releases.save(release)
    _forget_old(releases, release.name, int(flags.text("history-max", "10")))


def _forget_old(releases: Releases, name: str, most: int) -> None:
    history = [one for one in releases.all() if one.name == name]
    for old in history[: max(0, len(history) - most)] if most else []:
        releases.forget(old)


def _install_custom_resources(api: Api, release: Release) -> None:
    """Only those that aren't there: Helm never changes one."""
    text = custom_resources(find(release.chart, _repository(release.chart)))
    for definition in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"
        if api.get(path) is None:
            api.apply(path, definition)


def _repository(chart: str) -> str:

    return next(one.repository for one in CHARTS if one.name == chart)


def _key(thing: Mapping[str, Any]) -> tuple[str, str, str]:
    return thing["kind"], thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


def _wait(api: Api, release: Release, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    deployments = [thing for thing in release.things if thing["kind"] == "Deployment"]
    for thing in deployments:
        about = thing["metadata"]
        path = f"/apis/apps/v1/namespaces/{about['namespace']}/deployments/{about['name']}"
        while not (api.get(path) or {}).get("status", {}).get("readyReplicas"):
            if time.monotonic() > end:
                raise RefusedError("context deadline exceeded")
            time.sleep(0.1)


def uninstall(flags: Flags) -> None:
    api, name = api_of(flags), flags.arguments[0] if flags.arguments else ""
    releases = Releases(api, namespace_of(flags))
    history = [one for one in releases.all() if one.name == name]
    if not history:
        if flags.on("ignore-not-found"):
            print(f'release "{name}" uninstalled')
            return
        raise RefusedError(f"uninstall: Release not loaded: {name}: release: not found")
    for release in history:
        releases.drop(release.things)
    for release in history:
        releases.forget(release)
    print(f'release "{name}" uninstalled')
