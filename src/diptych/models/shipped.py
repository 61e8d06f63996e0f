"""Configs of well-known models that come with Diptych: enough to size them without a network.

(Being written: signatures are final, bodies follow.)
"""

from typing import Any


def shipped_ids() -> tuple[str, ...]:
    """Hugging Face ids of the configs that come with Diptych, sorted."""
    raise NotImplementedError


def shipped_config(source: str) -> dict[str, Any] | None:
    """The trimmed `config.json` of a Hugging Face id, whatever its case; None where none is shipped."""
    raise NotImplementedError
