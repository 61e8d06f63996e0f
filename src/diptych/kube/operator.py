"""The step `operator`: KubeRay on the system nodes, at the document's version; one of others is used as it is.

Documents in one cluster share it: its release watches the namespaces of all of them, and it goes with the last.
"""

from collections.abc import Mapping
from typing import Any

from diptych.errors import ClusterError
from diptych.kube import ours
from diptych.kube.connection import Cluster
from diptych.kube.job import Job, StepStatus
from diptych.kube.objects import is_going, name_of
from diptych.kube.operators import Operator, find, is_ready
from diptych.kube.pods import living, pods_blocker
from diptych.kube.release import (
    OWNER_LABEL,
    Release,
    apply_custom_resources,
    remove_custom_resources,
)
from diptych.kube.snapshot import OPERATOR_LABELS
from diptych.kube.versions import numbers
from diptych.kube.waiting import Seen, wait_for
from diptych.render.helm import KUBERAY, kuberay_values
from diptych.spec import Document

STAGE = "operator"
LEAST = (1, 6)
"""The oldest KubeRay that understands the RayService that is rendered."""

_READY_S = 600.0
"""For the operator's image, 60 MB, on a node that may still be joining."""
_GONE_S = 180.0


def up(job: Job, cluster: Cluster) -> str:
    """Have an operator that watches the document's namespace.

    Returns:
        Which one it is, in words.

    Raises:
        ClusterError: it does not come up, or one that others installed is in the way.
        SetupError: there is no helm that works.
    """
    namespace = job.document.kubernetes.namespace
    foreign = next((each for each in find(cluster) if each.watches(namespace) and not each.is_ours), None)
    if foreign is not None:
        _require_fit(foreign)
        _wait_ready(job, cluster, foreign.namespace, foreign.name)
        return f"{foreign.title}, which others installed, is used"
    ours.make_namespace(job, cluster, namespace, STAGE)  # the chart makes a Role in it
    ours.make_namespace(job, cluster, KUBERAY.namespace, STAGE)
    release = Release(job, cluster)
    there = release.values()
    _require_ours(there)
    version = _wanted_version(job, there)
    apply_custom_resources(job, cluster, release, version)
    wanted = _values(cluster, job.document, there, version)
    if there != wanted or not any(each.is_ours for each in find(cluster)):
        job.tell("detail", STAGE, f"helm installs KubeRay {version}")
        release.install(wanted, version)
    _wait_ready(job, cluster, KUBERAY.namespace, KUBERAY.name)
    return f"KubeRay {version} watches {', '.join(wanted['watchNamespace'])}"


def down(job: Job, cluster: Cluster) -> str:
    """Remove the operator, unless others' services need it; then it leaves the document's namespace only.

    Returns:
        What became of it, in words.

    Raises:
        ClusterError: something in the document's namespace would be left without one.
    """
    namespace = job.document.kubernetes.namespace
    if (
        not any(each.is_ours for each in find(cluster))
        and cluster.get("Namespace", KUBERAY.namespace) is None
    ):
        ours.remove_namespace(job, cluster, namespace, STAGE)
        return "none of ours is there"
    release = Release(job, cluster)
    there = release.values()
    if there is not None and OWNER_LABEL not in (there.get("labels") or {}):
        return "left alone: others installed it"
    if cluster.get("RayService", job.document.name, namespace) and not _others_watch(cluster, namespace):
        raise ClusterError(
            f"Without the operator nobody would take care of RayService {namespace}/{job.document.name}.",
            "Take it down first: `diptych down --step service`.",
        )
    watched = list((there or {}).get("watchNamespace") or ())
    needed = {each: found for each in watched if (found := _resources(cluster, each))}
    if needed:
        if there and sorted(needed) != sorted(watched):
            release.install({**there, "watchNamespace": sorted(needed)}, _version_of(there))
        text = f"stays: {ours.few(each for found in needed.values() for each in found)} need it"
    else:
        _remove(job, cluster, release, present=there is not None)
        text = "gone"
    ours.remove_namespace(job, cluster, namespace, STAGE, release=KUBERAY.name)
    return text


def look(job: Job, cluster: Cluster) -> StepStatus:
    """How the operator is that takes care of the document's namespace."""
    namespace = job.document.kubernetes.namespace
    found = next((each for each in find(cluster) if each.watches(namespace)), None)
    if found is None:
        return StepStatus(STAGE, "absent", f"No KubeRay operator watches the namespace {namespace}.")
    details = {"version": found.version, "namespace": found.namespace, "ours": found.is_ours}
    if found.is_ready:
        return StepStatus(STAGE, "ready" if found.is_ours else "foreign", f"{found.title} runs.", details)
    seen = _seen(cluster, found.namespace, found.name)
    return StepStatus(STAGE, "coming", seen.blocker, details)


def _require_fit(foreign: Operator) -> None:
    version = numbers(foreign.version)
    if version and version[:2] < LEAST:
        raise ClusterError(
            f"{foreign.title}, which others installed, is too old: "
            f"{'.'.join(map(str, LEAST))} or newer is needed.",
            "Have whoever installed it upgrade it, its CRDs included, or have it leave this namespace alone.",
        )


def _require_ours(values: Mapping[str, Any] | None) -> None:
    """A release of that name that does not watch our namespace, and is not ours, can't be changed."""
    if values is not None and OWNER_LABEL not in (values.get("labels") or {}):
        raise ClusterError(
            f"The Helm release {KUBERAY.namespace}/{KUBERAY.name} is somebody else's and does not watch "
            "this document's namespace.",
            "Have it watch that namespace too (its value watchNamespace), or use a namespace that it watches.",
        )


def _wanted_version(job: Job, there: Mapping[str, Any] | None) -> str:
    """The document's; a newer one that is there already stays."""
    wanted, installed = job.document.kubernetes.kuberay_version, _version_of(there or {})
    if numbers(installed) > numbers(wanted):
        job.view.say(f"KubeRay {installed} is there already, newer than {wanted}, and is used as it is.")
        return installed
    return wanted


def _values(
    cluster: Cluster, document: Document, there: Mapping[str, Any] | None, version: str
) -> dict[str, Any]:
    """The release's values: it goes on watching the namespaces of others that are still there."""
    watched = [each for each in (there or {}).get("watchNamespace") or () if _is_there(cluster, each)]
    values = kuberay_values(document, watched)
    return values | {"image": {"tag": f"v{version}"}, "labels": {OWNER_LABEL: "diptych"}}


def _is_there(cluster: Cluster, namespace: str) -> bool:
    found = cluster.get("Namespace", namespace)
    return found is not None and not is_going(found)


def _version_of(values: Mapping[str, Any]) -> str:
    return str((values.get("image") or {}).get("tag", "")).removeprefix("v")


def _wait_ready(job: Job, cluster: Cluster, namespace: str, name: str) -> None:
    if not cluster.dry_run:
        wait_for(
            lambda: _seen(cluster, namespace, name),
            stage=STAGE,
            view=job.view,
            deadline_s=job.timeout_s or _READY_S,
        )


def _seen(cluster: Cluster, namespace: str, name: str) -> Seen:
    deployment = cluster.get("Deployment", name, namespace)
    if deployment is None:
        return Seen(done=False, blocker=f"The operator's Deployment {namespace}/{name} is not there.")
    if is_ready(deployment):
        return Seen(done=True)
    pods = living(cluster, namespace, OPERATOR_LABELS)
    found = pods_blocker(cluster, name, namespace, pods)
    if found is None:
        return Seen(done=False, blocker=f"The operator's pod in {namespace} is not ready yet.")
    return Seen(done=False, blocker=found.text, fatal=found.text if found.is_fatal else None, hint=found.do)


def _resources(cluster: Cluster, namespace: str) -> list[str]:
    """What an operator takes care of in a namespace."""
    kinds = ("RayService", "RayCluster", "RayJob")
    return [ours.title(each) for kind in kinds for each in cluster.list(kind, namespace=namespace)]


def _others_watch(cluster: Cluster, namespace: str) -> bool:
    return any(each.watches(namespace) and not each.is_ours for each in find(cluster))


def _remove(job: Job, cluster: Cluster, release: Release, *, present: bool) -> None:
    if present:
        release.uninstall()
    if not cluster.dry_run:
        wait_for(lambda: _gone(cluster), stage=STAGE, view=job.view, deadline_s=job.timeout_s or _GONE_S)
    others = [each for each in find(cluster) if not each.is_ours]
    if not others:
        remove_custom_resources(cluster)
    ours.remove_namespace(job, cluster, KUBERAY.namespace, STAGE, release=KUBERAY.name)


def _gone(cluster: Cluster) -> Seen:
    left = [each for each in find(cluster) if each.is_ours]
    pods = cluster.list("Pod", namespace=KUBERAY.namespace, labels=OPERATOR_LABELS)
    names = [each.title for each in left] + [f"pod {name_of(pod)}" for pod in pods]
    return Seen(done=not names, blocker=f"{', '.join(names)} is going.")
