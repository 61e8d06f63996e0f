"""Our Helm release of the KubeRay operator: its values, its installation, its end."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from diptych.errors import ClusterError
from diptych.kube import ours
from diptych.kube.connection import Cluster
from diptych.kube.job import Job
from diptych.kube.kinds import KINDS
from diptych.kube.objects import labels_of, name_of, unix_time
from diptych.kube.programs import HELM, Finished, Tool, find, run
from diptych.kube.versions import numbers
from diptych.kube.waiting import Seen, wait_for
from diptych.remembering import write_private
from diptych.render.helm import KUBERAY
from diptych.render.names import DOMAIN

OWNER_LABEL = f"{DOMAIN}/operator"
"""On the operator that Diptych installed: others' have it not, and are used but never changed."""
VERSION_NOTE = f"{DOMAIN}/kuberay-version"
"""On CRDs: the version of KubeRay that they are of."""

_LOG = "helm"
_HELM_S = 300.0
_CRD_S = 120.0
_UNFINISHED = ("pending", "uninstalling")
_PENDING_S = 300.0
"""Helm writes down that it works on a release; what is so for longer was ended in the middle."""


class Release:
    """The release in one cluster, by helm.

    Raises:
        SetupError: there is no helm, or none that works.
    """

    def __init__(self, job: Job, cluster: Cluster) -> None:
        self._job = job
        self._cluster = cluster
        self._helm: Tool = find(HELM)

    def values(self) -> dict[str, Any] | None:
        """The values that it was installed with; None where there is no release.

        Raises:
            ClusterError: helm can't tell.
        """
        if self._cluster.server == "":
            return None
        done = self._run("get", "values", KUBERAY.name, "--output", "json")
        if done.code:
            if "not found" in done.last(20):
                return None
            raise self._failed("could not tell its values", done)
        found = json.loads(done.output or "null")
        return found if isinstance(found, dict) else {}

    def custom_resources(self, version: str) -> list[dict[str, Any]]:
        """The CRDs of a version of the chart. Helm itself installs them once and never again.

        Raises:
            ClusterError: the chart can't be had.
        """
        done = self._run("show", "crds", KUBERAY.chart, *_chart(version), quiet=True)
        if done.code:
            raise self._failed(f"could not show the CRDs of KubeRay {version}", done)
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # megabytes: seconds against a minute
        return [each for each in yaml.load_all(done.output, Loader=loader) if each]

    def install(self, values: Mapping[str, Any], version: str) -> None:
        """Install it, or make it what `values` say.

        Raises:
            ClusterError: helm failed.
        """
        file = self._job.folder / "kuberay-values.yaml"
        write_private(file, json.dumps(values, indent=1) + "\n")
        with settled(self._job, self._cluster, "operator", KUBERAY.namespace, KUBERAY.name):
            done = self._run(
                "upgrade", KUBERAY.name, KUBERAY.chart, "--install", *_chart(version), "--values", str(file),
                "--skip-crds", "--history-max", "3", changes=True,
            )  # fmt: skip
        if done.code:
            raise self._failed(f"could not install KubeRay {version}", done)

    def uninstall(self) -> None:
        """Remove it; the CRDs stay.

        Raises:
            ClusterError: helm failed.
        """
        done = self._run("uninstall", KUBERAY.name, changes=True)
        if done.code and "not found" not in done.last(20):
            raise self._failed("could not uninstall KubeRay", done)

    def _run(self, *args: str, changes: bool = False, quiet: bool = False) -> Finished:
        source = self._cluster.source
        context = ["--kube-context", source.context] if source.context else []
        files = ":".join(map(str, source.files))
        return helm(
            self._job,
            self._helm,
            [*args, f"--namespace={KUBERAY.namespace}", *context],
            env={"KUBECONFIG": files} if files else {},
            timeout_s=_CRD_S if quiet else None,
            quiet=quiet,
            dry_run=changes and self._cluster.dry_run,
        )

    def _failed(self, what: str, done: Finished) -> ClusterError:
        return ClusterError(f"helm {what}: {done.last(3)}", f"What it printed is in {self._job.log(_LOG)}.")


def helm(
    job: Job,
    tool: Tool,
    args: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float | None = None,
    quiet: bool = False,
    dry_run: bool = False,
) -> Finished:
    """Run helm for a job, into its log.

    Args:
        timeout_s: None: as long as an installation may take.
        quiet, dry_run: as for `programs.run`.

    Raises:
        ClusterError: it did not end in time.
    """
    return run(
        tool,
        args,
        log=job.log(_LOG),
        timeout_s=timeout_s or _HELM_S,
        env=env,
        quiet=quiet,
        dry_run=dry_run,
        view=job.view,
    )


@contextlib.contextmanager
def settled(job: Job, cluster: Cluster, stage: str, namespace: str, name: str) -> Iterator[None]:
    """Have a release that no helm is at work on, for one of ours that is run inside.

    Waits while another is at work; clears what one left that was killed in the middle, our own included.

    Raises:
        ClusterError: another helm has not come to its end.
    """
    if cluster.dry_run:
        yield
        return

    def look() -> Seen:
        young = [
            each
            for each in _unfinished(cluster, namespace, name)
            if time.time() - _changed_at(each) < _PENDING_S
        ]
        return Seen(done=not young, blocker=f"Another helm is at work on {name}, or was killed.")

    wait_for(look, stage=stage, view=job.view, deadline_s=_PENDING_S + 60)
    _forget_unfinished(cluster, namespace, name)
    try:
        yield
    except BaseException:
        with contextlib.suppress(ClusterError):
            _forget_unfinished(cluster, namespace, name)  # our own, whose helm is gone
        raise


def _forget_unfinished(cluster: Cluster, namespace: str, name: str) -> None:
    for record in _unfinished(cluster, namespace, name):
        cluster.delete("Secret", name_of(record), namespace)


def _unfinished(cluster: Cluster, namespace: str, name: str) -> Sequence[Mapping[str, Any]]:
    """The records of a release that no helm goes on from: of an installation or a removal on its way."""
    records = cluster.list("Secret", namespace=namespace, labels={"owner": "helm", "name": name})
    return [each for each in records if labels_of(each).get("status", "").startswith(_UNFINISHED)]


def apply_custom_resources(job: Job, cluster: Cluster, release: Release, version: str) -> None:
    """Have the CRDs of at least this version; newer ones stay, and are told.

    They go on record by server-side apply only: they are larger than an annotation may be.
    """
    there = {name_of(each): each for each in custom_resources(cluster)}
    noted = {name: _noted(each) for name, each in there.items()}
    newer = {note for note in noted.values() if numbers(note) > numbers(version)}
    if newer:
        job.view.say(
            f"KubeRay's CRDs are of {max(newer)} already, newer than {version}, and are used as they are."
        )
        return
    if noted and all(note == version for note in noted.values()):
        return
    if cluster.dry_run:
        job.view.say(f"would apply KubeRay's CRDs of {version}")
        return
    job.tell("detail", "operator", f"applying KubeRay's CRDs of {version}")
    for definition in release.custom_resources(version):
        meta = definition["metadata"]
        meta.setdefault("annotations", {})[VERSION_NOTE] = version
        before = there.get(meta["name"])
        if before is None or ours.is_ours(before):
            meta.setdefault("labels", {})[ours.MANAGED_BY] = ours.OURS
        cluster.apply(definition, force=True)  # Helm or kubectl may have made them


def remove_custom_resources(cluster: Cluster) -> None:
    """Remove KubeRay's CRDs where Diptych made them and nothing in the cluster is of their kinds."""
    mine = [each for each in custom_resources(cluster) if ours.is_ours(each)]
    kinds = [str(each["spec"]["names"]["kind"]) for each in mine]
    if any(kind not in KINDS or cluster.list(kind) for kind in kinds):
        return
    for definition in mine:
        cluster.delete("CustomResourceDefinition", name_of(definition))


def custom_resources(cluster: Cluster) -> list[dict[str, Any]]:
    """KubeRay's CRDs in the cluster."""
    found = cluster.list("CustomResourceDefinition")
    return [each for each in found if (each.get("spec") or {}).get("group") == "ray.io"]


def _noted(definition: Mapping[str, Any]) -> str:
    return str((definition["metadata"].get("annotations") or {}).get(VERSION_NOTE, ""))


def _chart(version: str) -> list[str]:
    return ["--repo", KUBERAY.repository, "--version", version]


def _changed_at(record: Mapping[str, Any]) -> float:
    """When helm wrote a record last, in Unix seconds: a removal changes the record of the installation."""
    made_at = unix_time(record["metadata"].get("creationTimestamp")) or 0.0
    said = labels_of(record).get("modifiedAt", "")
    return max(made_at, float(said)) if said.isdecimal() else made_at
