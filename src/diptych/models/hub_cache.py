"""What lies in the Hugging Face hub's cache on this disk, read without the hub's own library.

The cache is laid out as `models--OWNER--NAME/refs/REVISION`, a file that holds a commit, and
`models--OWNER--NAME/snapshots/COMMIT/`, a directory of that commit's files.
"""

import os
import re
from pathlib import Path

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def config_in_hub_cache(source: str, revision: str | None = None) -> Path | None:
    """The `config.json` of a Hugging Face id in the hub's cache, None without one.

    Its siblings, `hf_quant_config.json` and the weights if they were fetched, lie in the same directory.

    Args:
        source: the id ("owner/name").
        revision: branch, tag or commit; `main` without.
    """
    if not HUB_ID.fullmatch(source):
        return None
    repository = hub_cache() / f"models--{source.replace('/', '--')}"
    commit = _commit(repository, revision or "main")
    file = repository / "snapshots" / commit / "config.json" if commit else None
    return file if file and file.is_file() else None


def hub_cache() -> Path:
    """The cache's directory: $HF_HUB_CACHE, else `hub` in $HF_HOME, else in the user's cache directory."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return Path(os.environ[name]).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def _commit(repository: Path, revision: str) -> str | None:
    """The commit that a revision stood for when it was fetched."""
    if _COMMIT.fullmatch(revision):
        return revision
    references = repository / "refs"
    reference = references / revision
    if ".." in reference.parts:
        return None
    try:
        commit = reference.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None
