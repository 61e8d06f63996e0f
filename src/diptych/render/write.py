"""Rendered objects as text: YAML in a fixed order, below a header that says what made it from what."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from diptych import __version__

_MADE_BY = "# Made by diptych"


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)  # lists are indented below their key


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def header(source: str, purpose: str) -> str:
    """The comment at the top of a rendered file; `purpose` may have several lines."""
    about = "".join(f"# {line}\n" for line in purpose.splitlines())
    return f"{about}{_MADE_BY} {__version__} from {source}; change that, not this.\n"


def is_rendered(text: str) -> bool:
    """Whether a file's text was rendered: it begins with such a header."""
    comment = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return any(line.startswith(_MADE_BY) for line in comment)


def to_yaml(content: Any) -> str:
    """One YAML document; keys in the order in which they stand, several lines as a block."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def manifest(source: str, purpose: str, objects: Iterable[Mapping[str, Any]]) -> str:
    """A file with one or more Kubernetes objects."""
    return header(source, purpose) + "---\n".join(to_yaml(dict(each)) for each in objects)
