"""The service's secrets: the endpoint's keys and the Hugging Face token, made in the cluster and read back from it.

Their values go from here to the API server and into private files; never into arguments, logs or manifests on disk.
"""

import base64
import secrets
from pathlib import Path
from typing import Any

from diptych.errors import ClusterError
from diptych.kube import ours
from diptych.kube.connection import Cluster
from diptych.kube.job import Job
from diptych.kube.objects import Object
from diptych.remembering import write_private
from diptych.render import names
from diptych.render.objects import metadata
from diptych.spec import Document
from diptych.spec.api_keys import key_lines
from diptych.spec.given import given_keys, given_token, require_keys

_ADMIN = "admin"
"""Data of the secret that we make: Diptych's own admin key, which its commands ask with."""


def up(job: Job, cluster: Cluster) -> None:
    """Have the secrets that the service's pods refer to.

    Raises:
        SetupError: what the document names is not here.
        ClusterError: a secret that the document names is not in the cluster, or lacks something.
    """
    document = job.document
    if document.access.api_key_secret:
        _require_keys(cluster, document)
    else:
        _make_keys(cluster, document)
    if names.has_token(document):
        if document.model.token_secret:
            _value(cluster, document, *names.token_secret(document), field="model.token_secret")
        else:
            name, key = names.token_secret(document)
            ours.apply(cluster, _secret(document, name, {key: given_token(document) or ""}))


def client_key(cluster: Cluster, document: Document) -> str:
    """A key for clients: the first that opens no admin routes, else the first.

    Raises:
        ClusterError: the secret with the keys is not there.
    """
    lines = _lines(cluster, document)
    ordinary = [words for words in lines if _ADMIN not in words[1:]]
    return (ordinary or lines)[0][0]


def admin_key(cluster: Cluster, document: Document) -> str:
    """A key that opens admin routes, as Diptych's own commands need it.

    Raises:
        ClusterError: there is none.
    """
    for words in _lines(cluster, document):
        if _ADMIN in words[1:]:
            return words[0]
    name, key = names.api_keys_secret(document)
    raise ClusterError(
        f"The secret {name} has no admin key under {key}, which Diptych's own commands need.",
        "Add a line with a key of your own making and the word `admin` behind it.",
    )


def key_file(job: Job, cluster: Cluster, *, admin: bool) -> Path:
    """Write a key into a file of the job's folder that only its owner may read.

    Args:
        admin: one that opens admin routes, else one for clients.
    """
    path = job.folder / ("admin-key" if admin else "api-key")
    key = (admin_key if admin else client_key)(cluster, job.document)
    write_private(path, f"{key} {_ADMIN}\n" if admin else f"{key}\n")
    return path


def _make_keys(cluster: Cluster, document: Document) -> None:
    """Make the secret with the endpoint's keys: those that are given, else one that is made once and kept."""
    name, key = names.api_keys_secret(document)
    there = _data(cluster.get("Secret", name, document.kubernetes.namespace))
    admin = there.get(_ADMIN) or _fresh_key()
    clients = given_keys(document) or _without(there.get(key, ""), admin) or f"{_fresh_key()}\n"
    content = f"{clients.strip()}\n{admin} {_ADMIN}\n"
    ours.apply(cluster, _secret(document, name, {key: content, _ADMIN: admin}))


def _require_keys(cluster: Cluster, document: Document) -> None:
    name, key = names.api_keys_secret(document)
    text = _value(cluster, document, name, key, field="access.api_key_secret")
    require_keys(text, f"The secret {name}")
    if not cluster.dry_run:
        admin_key(cluster, document)


def _lines(cluster: Cluster, document: Document) -> list[list[str]]:
    text = _value(cluster, document, *names.api_keys_secret(document), field="access.api_key_secret")
    return list(key_lines(text).values())


def _value(cluster: Cluster, document: Document, name: str, key: str, *, field: str) -> str:
    namespace = document.kubernetes.namespace
    secret = cluster.get("Secret", name, namespace)
    if secret is None:
        raise ClusterError(
            f"There is no secret {name} in the namespace {namespace}.",
            f"Make it, or name another in {field}; `diptych up` makes one where none is named.",
        )
    value = _data(secret).get(key, "")
    if not value.strip():
        known = ", ".join(sorted(_data(secret))) or "nothing"
        raise ClusterError(f"The secret {namespace}/{name} has nothing under {key}; it has {known}.")
    return value


def _data(secret: Object | None) -> dict[str, str]:
    found = ((secret or {}).get("data") or {}).items()
    return {key: base64.b64decode(value).decode(errors="replace") for key, value in found}


def _secret(document: Document, name: str, content: dict[str, str]) -> dict[str, Any]:
    data = {key: base64.b64encode(value.encode()).decode("ascii") for key, value in content.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(document, name),
        "type": "Opaque",
        "data": data,
    }


def _without(text: str, key: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.split()[:1] != [key])


def _fresh_key() -> str:
    return "dk-" + secrets.token_urlsafe(32)
