"""Rendered objects as text: YAML in a fixed order, below a header that says what made it from what."""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from diptych import __version__


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)  # lists are indented below their key


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def header(source: str, purpose: str) -> str:
    """The comment at the top of a rendered file."""
    return f"# {purpose}\n# Made by diptych {__version__} from {source}; change that, not this.\n"


def to_yaml(content: Any) -> str:
    """One YAML document; keys in the order in which they stand, several lines as a block."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def manifest(source: str, purpose: str, objects: Iterable[Mapping[str, Any]]) -> str:
    """A file with one or more Kubernetes objects."""
    return header(source, purpose) + "---\n".join(to_yaml(dict(each)) for each in objects)
