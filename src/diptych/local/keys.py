"""The keys of a service on this machine: the endpoint's, and the token that Ray asks for."""

import os
import secrets
from pathlib import Path

from diptych.errors import SetupError
from diptych.local.paths import ServicePaths, write_private
from diptych.spec import Document
from diptych.spec.api_keys import faulty_lines, key_lines


def write_keys(document: Document, paths: ServicePaths) -> Path:
    """Write what the run needs: the endpoint's keys where they lie in no file yet, curl's header, an admin key for
    Diptych itself, Ray's token.

    Returns:
        The file with the endpoint's keys, one per line: the user's own, or ours.

    Raises:
        SetupError: the keys that the document names are not there, or can't be used.
    """
    given, variable = document.access.api_key_file, document.access.api_key_env
    if given is not None:
        key_file = Path(given).expanduser().absolute()
        text = _keys_in_file(key_file)
    else:
        key_file = paths.api_key
        text = _keys_in_variable(variable) if variable else _fresh_key()
        write_private(key_file, text.strip() + "\n")
    first, *_ = next(iter(key_lines(text).values()))
    write_private(paths.curl_header, f"Authorization: Bearer {first}\n")
    write_private(paths.admin_key, f"{_fresh_key()} admin\n")
    write_private(paths.ray_token, secrets.token_hex(32))
    return key_file


def hub_token(document: Document) -> str | None:
    """The Hugging Face token that the document names; None where it names none (the hub's own settings hold).

    Raises:
        SetupError: it is not there.
    """
    model = document.model
    if model.token_file is not None:
        return _read(model.token_file, "token", "model.token_file").strip() or None
    return _variable(model.token_env, "model.token_env") if model.token_env else None


def secret_variables(document: Document) -> list[str]:
    """Variables that hold a secret, which no process of the service needs to see."""
    return [name for name in (document.access.api_key_env, document.model.token_env) if name]


def _fresh_key() -> str:
    return "dk-" + secrets.token_urlsafe(32)


def _keys_in_file(path: Path) -> str:
    text = _read(path, "API key", "access.api_key_file")
    _require_keys(text, f"The API key file {path}")
    if path.stat().st_mode & 0o077:
        raise SetupError(f"The API key file {path} can be read by others.", f"Run `chmod 600 {path}`.")
    return text


def _keys_in_variable(variable: str) -> str:
    text = _variable(variable, "access.api_key_env")
    _require_keys(text, f"The variable {variable}")
    return text


def _require_keys(text: str, what: str) -> None:
    """Names lines by their numbers: their words may be keys."""
    if not key_lines(text):
        raise SetupError(f"{what} holds no key.", "Put one key per line into it.")
    if faulty := faulty_lines(text):
        lines = f"line {faulty[0]}" if len(faulty) == 1 else f"lines {', '.join(map(str, faulty))}"
        raise SetupError(
            f"{what} has more than keys on {lines}.",
            "Write one key per line; behind it may stand `admin`, `priority=N` or both.",
        )


def _variable(name: str, field: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value:
        raise SetupError(
            f"The variable {name}, which {field} names, is not set here.", f"Run `export {name}=…`."
        )
    return value


def _read(path: Path, what: str, field: str) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SetupError(
            f"The {what} file {path} cannot be read: {why}.", f"Name another in {field}."
        ) from None
