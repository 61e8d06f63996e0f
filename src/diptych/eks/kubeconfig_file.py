"""A kubeconfig of the user's as YAML: its words go back as they were written, its comments and layout do not.

Whatever PyYAML or YAML 1.2 would make of a word (`0123`, `12e45`, `2024-13-45`), kubectl reads the same one afterwards.
"""

import itertools
from pathlib import Path
from typing import Any

import yaml

from diptych.errors import SetupError
from diptych.remembering import write_private
from diptych.spec.scalars import TAG, TextDumper

LISTS = ("clusters", "contexts", "users")
_HINT = "Free space there and let yourself write to it, or have KUBECONFIG name another file."


class Word(str):
    """A scalar's text, with the tag and the style that it had."""

    tag: str
    style: str | None

    @classmethod
    def of(cls, node: yaml.ScalarNode) -> "Word":
        word = cls(node.value)
        word.tag, word.style = node.tag, node.style
        return word


def read(path: Path) -> dict[str, Any]:
    """What a kubeconfig holds, with `Word` for each scalar; nothing where there is no such file.

    Raises:
        SetupError: it is no kubeconfig, or can't be read.
    """
    text = _text(path)
    return {} if text is None else _loaded(text, path)


def write(path: Path, content: dict[str, Any]) -> Path | None:
    """Write a kubeconfig anew, whole or not at all; a link stays one.

    Returns:
        Where the file is kept as it was; None where nothing but its entries changes.

    Raises:
        SetupError: it can't be written.
    """
    file = path.resolve()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SetupError(f"{path} cannot be written: {error.strerror or error}.", _HINT) from None
    before = _text(file)
    loses = before is not None and before != _dumped(_loaded(before, file))
    backup = _kept(file, before) if before is not None and loses else None
    write_private(file, _dumped(content), _HINT)
    return backup


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _loaded(text: str, path: Path) -> dict[str, Any]:
    try:
        found = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise _unreadable(path, error) from None
    if found is None:
        return {}
    lists = [found.get(kind) or [] for kind in LISTS] if isinstance(found, dict) else [None]
    if not all(isinstance(each, list) and all(isinstance(one, dict) for one in each) for each in lists):
        raise SetupError(f"{path} is no kubeconfig.", "Move it.")
    return dict(found)


def _unreadable(path: Path, error: Exception) -> SetupError:
    return SetupError(f"{path} can't be read as a kubeconfig: {error}", "Correct or move it.")


def _kept(file: Path, text: str) -> Path:
    """Keep a file's text beside it, under a name that nothing else has."""
    for number in itertools.count(1):
        backup = file.with_name(f"{file.name}.before-diptych-{number}")
        try:
            with backup.open("x", encoding="utf-8") as made:
                backup.chmod(0o600)
                made.write(text)
        except FileExistsError:
            continue
        except OSError as error:
            raise SetupError(f"{backup} cannot be written: {error.strerror or error}.", _HINT) from None
        return backup
    raise AssertionError


def _dumped(content: dict[str, Any]) -> str:
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=10**6, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return None if node.tag == f"{TAG}null" else Word.of(node)
        return super().construct_object(node, deep=deep)


class _Dumper(TextDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return bool(yaml.SafeDumper.ignore_aliases(self, data))  # a list may be in itself


def _represent_word(dumper: _Dumper, word: Word) -> yaml.ScalarNode:
    return dumper.represent_scalar(word.tag, str(word), style=word.style)


_Dumper.add_representer(Word, _represent_word)
