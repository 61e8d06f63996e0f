"""A document's values as tidy YAML, in the order of its fields, with a comment where one helps."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diptych.spec.scalars import written

# `on` is a word to the loader, and what every document has at its top.
_PLAIN_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_COMMENT_COLUMN = 32
_FLOW = 80

_COMMENTS: Mapping[str, str] = {
    "engine_kwargs": "any argument of vLLM, for both phases",
    "prefill": "reads prompts",
    "decode": "writes answers",
    "model.name": "what clients call it",
    "kv_transfer.backend": "NIXL's",
    "kv_transfer.lease_s": "default: 120",
    "kubernetes.privileged": "default: auto, which starts without",
}
_COMMENTS_AGGREGATED: Mapping[str, str] = {
    **_COMMENTS,
    "topology": "one engine does both phases",
    "engine_kwargs": "any argument of vLLM",
    "decode": "the engine",
}


def to_text(values: Mapping[str, Any], header: Sequence[str]) -> str:
    """`values` in YAML below the lines of `header`, some of the fields with a comment behind them.

    Mappings and lists of plain values that fit are written on one line.
    """
    lines = [f"# {' '.join(line.split())}".rstrip() for line in header]
    comments = _COMMENTS_AGGREGATED if values.get("topology") == "aggregated" else _COMMENTS
    return "\n".join([*lines, *_lines(values, "", 0, comments)]) + "\n"


def _lines(values: Mapping[str, Any], path: str, depth: int, comments: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        here = f"{path}.{name}".removeprefix(".")
        begin = f"{'  ' * depth}{name if _PLAIN_NAME.fullmatch(name) else written(name)}:"
        if not isinstance(value, dict | list) or not value or _fits(value, depth):
            yield _commented(f"{begin} {written(value)}", comments.get(here))
        elif isinstance(value, dict):
            yield _commented(begin, comments.get(here))
            yield from _lines(value, here, depth + 1, comments)
        else:
            yield _commented(begin, comments.get(here))
            yield from (f"{'  ' * (depth + 1)}- {written(each)}" for each in value)


def _fits(value: Any, depth: int) -> bool:
    """Whether a mapping or list of plain values goes on one line; sections of the document do not."""
    inner = value.values() if isinstance(value, dict) else value
    return (
        depth > 0
        and not any(isinstance(each, dict | list) for each in inner)
        and len(written(value)) <= _FLOW
    )


def _commented(line: str, comment: str | None) -> str:
    return line if comment is None else f"{line.ljust(_COMMENT_COLUMN - 1)}  # {comment}"
