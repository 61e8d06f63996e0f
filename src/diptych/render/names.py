"""Names and labels of what is rendered for a cluster, in one place: what is rendered is found again by them."""

import hashlib

from diptych.render import haproxy
from diptych.spec import Document

DOMAIN = "diptych.dev"
PHASE_LABEL = f"{DOMAIN}/phase"
"""On nodes and pods: "prefill", "decode" or "aggregated"; "system" on nodes without GPUs."""
SERVICE_LABEL = f"{DOMAIN}/service"
"""On every object: the document's name."""
SYSTEM = "system"
"""The phase of nodes without GPUs."""

CODE_FOLDER = "/opt/diptych"
CODE_FILE = f"{CODE_FOLDER}/serving.zip"
"""Our code in the pods; it stands in PYTHONPATH."""
API_KEYS_FILE = "/etc/diptych/api-keys/keys"
"""The endpoint's keys in the pods that face clients."""

API_KEYS_KEY = "keys"
TOKEN_KEY = "token"


def labels(document: Document) -> dict[str, str]:
    """Labels of every object that belongs to the service."""
    return {
        "app.kubernetes.io/name": "diptych",
        "app.kubernetes.io/instance": document.name,
        "app.kubernetes.io/managed-by": "diptych",
        SERVICE_LABEL: document.name,
    }


def service_account(document: Document) -> str:
    """The service account of the worker pods."""
    return document.name


def serve_service(document: Document) -> str:
    """The Service that KubeRay makes for the endpoint, once it has been up."""
    return f"{document.name}-serve-svc"


def serve_port(document: Document) -> int:
    """The endpoint's port, in the pods and of `serve_service`."""
    return document.access.port or 8000


def code_config_map(document: Document, archive: bytes) -> str:
    """The ConfigMap that holds our code; other code has another name, so that pods take it up."""
    content = archive + haproxy.program().encode()
    return f"{document.name}-serving-{hashlib.sha256(content).hexdigest()[:12]}"


def system_nodes(document: Document) -> dict[str, str]:
    """Labels of the nodes for Ray's head and the operator; empty: any node."""
    if document.on == "eks":
        return {PHASE_LABEL: SYSTEM}
    return dict(document.kubernetes.head_selector)


def api_keys_secret(document: Document) -> tuple[str, str]:
    """Name and key of the secret that holds the endpoint's keys."""
    return _secret(document.access.api_key_secret, f"{document.name}-api-keys", API_KEYS_KEY)


def token_secret(document: Document) -> tuple[str, str]:
    """Name and key of the secret that holds the Hugging Face token."""
    return _secret(document.model.token_secret, f"{document.name}-hf-token", TOKEN_KEY)


def has_token(document: Document) -> bool:
    """Whether the document names a Hugging Face token."""
    model = document.model
    return any((model.token_file, model.token_env, model.token_secret))


def _secret(given: str | None, name: str, key: str) -> tuple[str, str]:
    if given is None:
        return name, key
    given_name, _, given_key = given.partition("/")
    return given_name, given_key or key
