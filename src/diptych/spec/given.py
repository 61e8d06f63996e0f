"""Secrets that a document names by file or variable: the endpoint's keys and the Hugging Face token."""

import os
from pathlib import Path

from diptych.errors import SetupError
from diptych.spec.api_keys import faulty_lines, key_lines
from diptych.spec.document import Document


def given_keys(document: Document) -> str | None:
    """The endpoint's keys, one per line, as the document names them; None where it names none.

    Raises:
        SetupError: they are not there, can be read by others, or can't be used.
    """
    file, variable = document.access.api_key_file, document.access.api_key_env
    if file is not None:
        path = Path(file).expanduser()
        text = _read(path, "API key", "access.api_key_file")
        require_keys(text, f"The API key file {path}")
        if path.stat().st_mode & 0o077:
            raise SetupError(f"The API key file {path} can be read by others.", f"Run `chmod 600 {path}`.")
        return text
    if variable is None:
        return None
    text = _variable(variable, "access.api_key_env")
    require_keys(text, f"The variable {variable}")
    return text


def given_token(document: Document) -> str | None:
    """The Hugging Face token that the document names by file or variable; None where it names none.

    Raises:
        SetupError: it is not there.
    """
    model = document.model
    if model.token_file is not None:
        return _read(Path(model.token_file), "token", "model.token_file").strip() or None
    return _variable(model.token_env, "model.token_env") if model.token_env else None


def require_keys(text: str, what: str) -> None:
    """Refuse a text that holds no key, or more than keys. Names lines by their numbers: their words may be keys.

    Raises:
        SetupError: it does.
    """
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
        return path.expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SetupError(
            f"The {what} file {path} cannot be read: {why}.", f"Name another in {field}."
        ) from None
