"""Where a model's config.json is: in its folder, in the hub's cache, on the hub, or among those that ship with us."""

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diptych.errors import ModelError
from diptych.models import config_in_hub_cache, read_config, shipped_config, weight_bytes
from diptych.spec import EMBEDDED, Document, ModelSection, is_bucket, is_path

HUB = "https://huggingface.co"
PATIENCE_S = 5.0
# For what ships with Diptych as well: nobody should wait long for what is known.
SHORT_PATIENCE_S = 2.0
_MOST_BYTES = 2**20
_TRUE = ("1", "ON", "YES", "TRUE")


@dataclass(frozen=True)
class ModelFacts:
    """A model's config.json, or why there is none.

    Args:
        config: its content; None without one.
        found: where, in words: "in the hub's cache".
        file: what to call it in messages.
        checkpoint_bytes: size of the weights where they lie on this machine.
        commit: of the hub, that the revision stands for; None where it is not known.
        missing: what proves that the model is not there at all, "" if nothing does.
        why: where it was looked for in vain, "" if it was found.
        refused: what the hub said when it refused the model to whoever asked, "" if it didn't.
    """

    config: Mapping[str, Any] | None = None
    found: str = ""
    file: str = "config.json"
    checkpoint_bytes: int | None = None
    commit: str | None = None
    missing: str = ""
    why: str = ""
    refused: str = ""


def find_model(document: Document, *, offline: bool, environ: Mapping[str, str]) -> ModelFacts:
    """The config of the document's model, from the nearest place that has it."""
    source = document.model.source
    if source == EMBEDDED:
        return _embedded()
    if is_path(source):
        return _in_folder(Path(source).expanduser(), here=document.on == "local")
    if is_bucket(source):
        return ModelFacts(why="it lies in S3, which is not looked into")
    return _hub_model(document.model, offline=offline, environ=environ)


def _embedded() -> ModelFacts:
    from diptych.models.embedded import EMBEDDED as MODEL

    return ModelFacts(shipped_config(MODEL.hub_id), "it ships with Diptych", f"config of {MODEL.name}")


def _in_folder(folder: Path, *, here: bool) -> ModelFacts:
    """A folder that the engine reads itself (`here`), or one that has the same path on another machine."""
    file = folder / "config.json"
    try:
        config = read_config(file)
    except ModelError as error:
        return ModelFacts(why=error.message, missing=error.message if here else "")
    return ModelFacts(config, f"in {folder}", str(file), _weights(folder))


def _hub_model(model: ModelSection, *, offline: bool, environ: Mapping[str, str]) -> ModelFacts:
    cached = config_in_hub_cache(model.source, model.revision)
    if cached is not None:
        with suppress(ModelError):
            found = read_config(cached)
            size, commit = _weights(cached.parent), cached.parent.name
            return ModelFacts(found, "in the hub's cache", str(cached), size, commit)
    shipped = shipped_config(model.source)
    if offline:
        answer = ModelFacts(why="it is not in the hub's cache, and the hub was not asked (offline)")
    elif environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
        answer = ModelFacts(why="it is not in the hub's cache, and HF_HUB_OFFLINE forbids asking the hub")
    else:
        answer = _ask_hub(model, environ, PATIENCE_S if shipped is None else SHORT_PATIENCE_S)
    if answer.config is not None or answer.missing or shipped is None:
        return answer
    file = f"config of {model.source}"
    return ModelFacts(shipped, "a config that ships with Diptych", file, refused=answer.refused)


def _ask_hub(model: ModelSection, environ: Mapping[str, str], patience_s: float) -> ModelFacts:
    """Ask the hub, for `patience_s` seconds at most, name look-up included."""
    endpoint = environ.get("HF_ENDPOINT", HUB).rstrip("/")
    answer = [ModelFacts(why=f"{endpoint} did not answer within {patience_s:.0f} s")]

    def ask() -> None:
        answer[:] = [_fetched(endpoint, model, environ, patience_s)]

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience_s)
    return answer[0]


def _fetched(endpoint: str, model: ModelSection, environ: Mapping[str, str], patience_s: float) -> ModelFacts:
    import httpx

    url = f"{endpoint}/{model.source}/resolve/{model.revision or 'main'}/config.json"
    token = _token(model, environ)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    content = b""
    try:
        with httpx.stream("GET", url, headers=headers, timeout=patience_s, follow_redirects=True) as response:
            if response.status_code == 200:
                for piece in response.iter_bytes():
                    content += piece
                    if len(content) > _MOST_BYTES:
                        break
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return ModelFacts(why=f"{endpoint} can't be reached ({type(error).__name__})")
    if response.status_code != 200:
        return _refusal(endpoint, model, response.status_code, has_token=bool(token))
    config = _parsed(content)
    if config is None:
        return ModelFacts(why=f"{url} holds no JSON object")
    return ModelFacts(config, f"on {endpoint}", url, commit=response.headers.get("x-repo-commit"))


def _refusal(endpoint: str, model: ModelSection, status: int, *, has_token: bool) -> ModelFacts:
    if status in (401, 403):
        kind = "the token is not accepted for it" if has_token else "it is private, gated or not there"
        why = f"{endpoint} refuses it (HTTP {status}): {kind}"
        return ModelFacts(why=why, refused=why)
    if status == 404:
        named = f"{model.source} at {model.revision}" if model.revision else model.source
        return ModelFacts(missing=f"{endpoint} has no config.json of {named}", why=f"{endpoint} has none")
    return ModelFacts(why=f"{endpoint} answered with HTTP {status}")


def _token(model: ModelSection, environ: Mapping[str, str]) -> str:
    """The token that the document refers to, or the one that the hub's own tools would use; "" without."""
    if model.token_env is not None:
        return environ.get(model.token_env, "").strip()
    if model.token_file is not None:
        return _first_word(model.token_file)
    if environ.get("HF_TOKEN", "").strip():
        return environ["HF_TOKEN"].strip()
    home = Path(environ.get("HF_HOME") or Path(environ.get("HOME", "/nowhere")) / ".cache" / "huggingface")
    return _first_word(Path(environ.get("HF_TOKEN_PATH") or home / "token"))


def _first_word(file: Path) -> str:
    try:
        words = file.expanduser().read_text().split()
    except (OSError, ValueError, RuntimeError):
        return ""
    return words[0] if words else ""


def _weights(folder: Path) -> int | None:
    try:
        return weight_bytes(folder)
    except (ModelError, OSError):
        return None


def _parsed(content: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
