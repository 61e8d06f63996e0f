"""Rendered objects as text: YAML in a fixed order, below a header that says what made it from what."""

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from diptych import __version__
from diptych.spec.scalars import TextDumper

_MADE_BY = re.compile(r"# Made by diptych \S+ from (.*); change that, not this\.")


class _Dumper(TextDumper):
    LINES = "|"

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)  # lists are indented below their key


def header(source: str, purpose: str) -> str:
    """The comment at the top of a rendered file; `purpose` may have several lines."""
    about = "".join(f"# {line}\n" for line in purpose.splitlines())
    name = " ".join(source.split())
    return f"{about}# Made by diptych {__version__} from {name}; change that, not this.\n"


def rendered_from(text: str) -> str | None:
    """The document that a file was rendered from, told by its beginning; None for a file that was not rendered.

    >>> rendered_from(header("diptych.yaml", "The service"))
    'diptych.yaml'
    """
    comment = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return next((match[1] for line in comment if (match := _MADE_BY.fullmatch(line))), None)


def to_yaml(content: Any) -> str:
    """One YAML document; keys in the order in which they stand, several lines as a block."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def manifest(source: str, purpose: str, objects: Iterable[Mapping[str, Any]]) -> str:
    """A file with one or more Kubernetes objects."""
    return header(source, purpose) + "---\n".join(to_yaml(dict(each)) for each in objects)
