"""The keys of a service on this machine: the endpoint's, and the token that Ray asks for."""

import secrets
from pathlib import Path

from diptych.local.paths import ServicePaths
from diptych.remembering import write_private
from diptych.spec import Document
from diptych.spec.api_keys import key_lines
from diptych.spec.given import given_keys


def write_keys(document: Document, paths: ServicePaths) -> Path:
    """Write what the run needs: the endpoint's keys where they lie in no file yet, curl's header, an admin key for
    Diptych itself, Ray's token.

    Returns:
        The file with the endpoint's keys, one per line: the user's own, or ours.

    Raises:
        SetupError: the keys that the document names are not there, or can't be used.
    """
    text = given_keys(document) or _fresh_key()
    own = document.access.api_key_file
    key_file = paths.api_key if own is None else own.expanduser().absolute()
    if own is None:
        write_private(key_file, text.strip() + "\n")
    first, *_ = next(iter(key_lines(text).values()))
    write_private(paths.curl_header, f"Authorization: Bearer {first}\n")
    write_private(paths.admin_key, f"{_fresh_key()} admin\n")
    write_private(paths.ray_token, secrets.token_hex(32))
    return key_file


def secret_variables(document: Document) -> list[str]:
    """Variables that hold a secret, which no process of the service needs to see."""
    return [name for name in (document.access.api_key_env, document.model.token_env) if name]


def _fresh_key() -> str:
    return "dk-" + secrets.token_urlsafe(32)
