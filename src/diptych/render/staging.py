"""The model's files on the nodes: fetched once by an init container, kept on the node when a pod is replaced.

What the init container runs is `diptych.serving.stage`.
"""

import hashlib
import re
from typing import Any

from diptych.errors import DocumentError
from diptych.render import names
from diptych.render.image import container_image
from diptych.render.inputs import Facts
from diptych.render.layout import WorkerGroup
from diptych.render.objects import quantity, variables
from diptych.spec import EMBEDDED, Document, is_path

FOLDER = "/models"
"""Where the staged models are in the pods."""

NODE_FOLDER = "/var/lib/diptych"
LOCAL_DISKS = "/mnt/k8s-disks/0"
"""Where nodeadm mounts the local disks of a node (strategy RAID0)."""
NVME_NODE_FOLDER = f"{LOCAL_DISKS}/diptych"
"""On local disks that EKS's AL2023 nodes join (`localStorage.strategy: RAID0`)."""

_VOLUME = "models"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LONGEST_NAME = 200
"""A file system takes 255, and a lock beside the folder has its name too."""
_OTHER = re.compile(r"[^A-Za-z0-9._-]")


def is_staged(document: Document) -> bool:
    """Whether the nodes get the model's files before the engines start; a path is in the image already."""
    return document.staging.enabled and not is_path(document.model.source)


def is_local(document: Document) -> bool:
    """Whether the model's files lie in the pods when the engines start."""
    return is_staged(document) or is_path(document.model.source)


def revision(document: Document, facts: Facts) -> str | None:
    """The revision to fetch from the hub, a commit where it is known; None for the hub's main branch."""
    return facts.model_revision or document.model.revision


def is_fixed(document: Document, facts: Facts) -> bool:
    """Whether what is fetched can't change between two nodes: a commit, or nothing of the hub."""
    return not document.model.is_on_hub or is_commit(revision(document, facts))


def is_commit(name: str | None) -> bool:
    """Whether a revision of the hub is a commit, and neither a branch nor a tag."""
    return name is not None and _COMMIT.fullmatch(name) is not None


def model_path(document: Document, facts: Facts) -> str:
    """What the engines load: a folder in the pods, or the source itself.

    Raises:
        DocumentError: the model comes with Diptych and is for this machine only.
    """
    source = document.model.source
    if source == EMBEDDED:
        raise DocumentError(
            "model.source is embedded, which is for this machine only.",
            "Name a model on the Hugging Face hub, in S3, or in the image.",
        )
    return staged_folder(document, facts) if is_staged(document) else source


def staged_folder(document: Document, facts: Facts) -> str:
    """The model's folder in the pods; another revision has another folder.

    >>> from diptych.spec import Document
    >>> staged_folder(Document.model_validate({"model": "Qwen/Qwen3-8B"}), Facts())
    '/models/Qwen--Qwen3-8B/main'
    """
    parts = [document.model.source.rstrip("/").replace("://", "/")]
    if document.model.is_on_hub:
        parts.append(revision(document, facts) or "main")
    return "/".join([FOLDER, *map(_folder_name, parts)])


def _folder_name(text: str) -> str:
    """The name of one folder, which no other text has.

    >>> _folder_name("refs/pr/1"), _folder_name("..")
    ('refs--pr--1', 'x-5ec1f7e7')
    """
    name = _OTHER.sub("-", text.replace("/", "--"))
    if name.replace("--", "/") == text and name.strip(".") and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name[:_LONGEST_NAME].strip('.-') or 'x'}-{digest}"


def node_folder(document: Document, group: WorkerGroup) -> str:
    """The folder on the group's nodes that holds the models."""
    if document.staging.path:
        return document.staging.path
    on_nvme = document.on == "eks" and group.instance is not None and group.instance.nvme_bytes > 0
    return NVME_NODE_FOLDER if on_nvme else NODE_FOLDER


def volume(document: Document, group: WorkerGroup) -> dict[str, Any]:
    """The pod's volume with the node's models."""
    return {
        "name": _VOLUME,
        "hostPath": {"path": node_folder(document, group), "type": "DirectoryOrCreate"},
    }


def mount(*, writable: bool = False) -> dict[str, Any]:
    """Where a container sees the node's models."""
    return {"name": _VOLUME, "mountPath": FOLDER} | ({} if writable else {"readOnly": True})


def init_container(
    document: Document, facts: Facts, group: WorkerGroup, code: dict[str, Any], python_path: str
) -> dict[str, Any]:
    """The container that fetches the model, with the pod's own share of CPU and memory, which nobody uses yet.

    Args:
        code: the mount of our code.
        python_path: what makes it importable.
    """
    command = ["python", "-m", "diptych.serving.stage", document.model.source]
    wanted = revision(document, facts)
    if document.model.is_on_hub and wanted is not None:
        command += ["--revision", wanted]
    command += ["--into", staged_folder(document, facts)]
    share = {"cpu": str(group.size.cpus), "memory": quantity(group.size.memory)}
    return {
        "name": "stage-model",
        **container_image(document),
        "command": command,
        "env": [*variables({"PYTHONPATH": python_path, "HF_HUB_DISABLE_TELEMETRY": "1"}), *token(document)],
        "resources": {"requests": share, "limits": share},
        # Whatever user the image has, and whoever the folder on the node belongs to.
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]},
        },
        "volumeMounts": [code, mount(writable=True)],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def token(document: Document) -> list[dict[str, Any]]:
    """The variable with the Hugging Face token, by reference; none unless the document names one."""
    if not names.has_token(document) or not document.model.is_on_hub:
        return []
    secret, key = names.token_secret(document)
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}]
