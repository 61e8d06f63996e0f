"""Whether the pods may read the model: asked from inside one, before GPUs wait for it.

A pod of the workers' ServiceAccount, with their image, code, token and network policies, reads one file of the model on
a system node. It costs a pull of the image there, which Ray's head needs anyway.
"""

import contextlib
from typing import Any

from diptych.errors import ClusterError
from diptych.kube import ours
from diptych.kube.connection import Cluster, RefusedError
from diptych.kube.job import Job
from diptych.kube.objects import name_of, status_of
from diptych.kube.pods import pods_blocker
from diptych.kube.waiting import Seen, wait_for
from diptych.render import names, staging
from diptych.render.image import container_image, pull_secrets
from diptych.render.inputs import Facts
from diptych.render.objects import metadata
from diptych.spec import Document, is_bucket

STAGE = "service"
_CONTAINER = "access"
_START_S = 1200.0
"""For the image, about 12 GB, at 10 MB/s, which is slow."""
_CHECK_S = 120
_GONE_S = 60.0
_TAIL = 20


def check(job: Job, cluster: Cluster) -> None:
    """Read one file of the model as a worker would; only where that takes a token or a bucket's permission.

    Raises:
        ClusterError: the model can't be read from inside the cluster; the message says why.
    """
    document = job.document
    if not is_needed(document):
        return
    pod = _pod(document, job.facts)
    if cluster.dry_run:
        cluster.apply(pod)
        return
    job.tell("detail", STAGE, f"asking from inside a pod for {document.model.source}")
    try:
        _remove(job, cluster, pod)  # of an up that was interrupted
        cluster.apply(pod)
        wait_for(
            lambda: _seen(cluster, pod),
            stage=STAGE,
            view=job.view,
            deadline_s=job.timeout_s or _START_S,
        )
        _judge(cluster, document, pod)
    finally:
        with contextlib.suppress(ClusterError):
            cluster.delete("Pod", name_of(pod), document.kubernetes.namespace)


def is_needed(document: Document) -> bool:
    """Whether the model's files are behind a token or a bucket's permission, and pods fetch them."""
    if not staging.is_staged(document):
        return False
    return is_bucket(document.model.source) or (document.model.is_on_hub and names.has_token(document))


def pod_name(document: Document) -> str:
    """The name of the pod that asks."""
    return f"{document.name}-access"


def _pod(document: Document, facts: Facts) -> dict[str, Any]:
    source = document.model.source
    command = ["python", "-m", "diptych.serving.stage", source, "--check"]
    revision = staging.revision(document, facts)
    if document.model.is_on_hub and revision is not None:
        command += ["--revision", revision]
    environment = {"PYTHONPATH": names.CODE_FILE, "HF_HUB_DISABLE_TELEMETRY": "1"}
    code = {"name": "code", "mountPath": names.CODE_FILE.rpartition("/")[0], "readOnly": True}
    share = {"cpu": "250m", "memory": "512Mi"}
    container = {
        "name": _CONTAINER,
        **container_image(document),
        "command": command,
        "env": [
            *({"name": name, "value": value} for name, value in environment.items()),
            *staging.token(document),
        ],
        "resources": {"requests": share, "limits": share},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [code],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    selector = names.system_nodes(document)
    spec = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": int(_START_S) + _CHECK_S,
        "terminationGracePeriodSeconds": 5,
        "serviceAccountName": names.service_account(document),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **pull_secrets(document),
        **({"nodeSelector": selector} if selector else {}),
        "containers": [container],
        "volumes": [
            {
                "name": "code",
                "configMap": {"name": names.code_config_map(document, facts.serving_archive)},
            }
        ],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(document, pod_name(document)),
        "spec": spec,
    }


def _remove(job: Job, cluster: Cluster, pod: dict[str, Any]) -> None:
    namespace = job.document.kubernetes.namespace
    if cluster.delete("Pod", name_of(pod), namespace):
        ours.wait_gone(job, cluster, STAGE, "Pod", name_of(pod), namespace, deadline_s=_GONE_S)


def _seen(cluster: Cluster, pod: dict[str, Any]) -> Seen:
    namespace = pod["metadata"]["namespace"]
    there = cluster.get("Pod", name_of(pod), namespace)
    if there is None:
        gone = "The pod that asks for the model was removed by somebody."
        return Seen(done=False, blocker=gone, fatal=gone, hint="Run `diptych up` again.")
    if status_of(there).get("phase") in ("Succeeded", "Failed"):
        return Seen(done=True)
    found = pods_blocker(cluster, name_of(pod), namespace, [there])
    if found is None:
        return Seen(done=False, blocker=f"Pod {name_of(pod)} asks for the model.")
    return Seen(done=False, blocker=found.text, fatal=found.text if found.is_fatal else None, hint=found.do)


def _judge(cluster: Cluster, document: Document, pod: dict[str, Any]) -> None:
    there = cluster.get("Pod", name_of(pod), pod["metadata"]["namespace"]) or {}
    if status_of(there).get("phase") == "Succeeded":
        return
    said = _said(cluster, there, pod)
    raise ClusterError(
        f"A pod of the service can't read {document.model.source}: {said}", _hint(document, said)
    )


def _said(cluster: Cluster, there: dict[str, Any], pod: dict[str, Any]) -> str:
    """The last line that it wrote: its finding."""
    lines: list[str] = []
    with contextlib.suppress(RefusedError):
        lines = list(cluster.log(name_of(pod), pod["metadata"]["namespace"], _CONTAINER, tail=_TAIL))
    found = [line.removeprefix("stage: ") for line in lines if line.startswith("stage: ")]
    found = found or [line for line in lines if line.strip()]
    return found[-1] if found else str(status_of(there).get("message") or "it failed without a word")


def _hint(document: Document, said: str) -> str:
    if is_bucket(document.model.source):
        account = names.service_account(document)
        return (
            f"Give the ServiceAccount {account} in {document.kubernetes.namespace} s3:GetObject and s3:ListBucket "
            "there, on EKS by Pod Identity."
        )
    if "gated" in said:
        return "Accept the model's terms on its page with the account that the token belongs to."
    return "Check model.source and the token that the document names."
