"""What is wrong with a document, where it stands, and what to do: the vocabulary of this package's errors."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic_core import PydanticCustomError

from diptych.errors import DocumentError
from diptych.spec.secrets import masked

FieldPath = tuple[str | int, ...]
"""The way to a field, from the top of the document: ("prefill", "engine_kwargs", "max_model_len")."""


@dataclass(frozen=True)
class Origin:
    """Where a value was written.

    Args:
        label: as `diptych check --show` prints it: "document line 3", "--set", "environment DIPTYCH_A".
        where: as an error begins: "diptych.yaml:3", "--set", "environment DIPTYCH_A".
        line: 1-based line of the document, None for every other origin.
    """

    label: str
    where: str
    line: int | None = None


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Args:
        where: file and line, or the option or variable that gave the value.
        field: dotted path, "" for the document as a whole.
        what: what is wrong, without a full stop.
        do: what to do about it.
        line: 1-based line of the document, None if the value came from elsewhere.
        excerpt: lines of the document to show below, "" for none.
        code: its entry in docs/checks.md.
    """

    where: str
    field: str
    what: str
    do: str
    line: int | None = None
    excerpt: str = ""
    code: str = "S109"

    def __str__(self) -> str:
        place = f"{self.where}: {self.field}" if self.field else self.where
        return masked(f"{place}: {self.what} ({self.do})" + (f"\n{self.excerpt}" if self.excerpt else ""))


class InvalidDocumentError(DocumentError):
    """A document with its overrides cannot be served as written.

    `problems` holds everything that is wrong, the document's lines first and in their order; the message has
    one line for each (two more where a line of the document is shown).
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda p: (p.line is None, p.line or 0)))
        super().__init__("\n".join(str(problem) for problem in self.problems))


def refusal(what: str, do: str) -> PydanticCustomError:
    """The error that a validator raises for a value which has the right type and still can't be served."""
    return PydanticCustomError("refused", "{what} ({do})", {"what": what, "do": do})


def dotted(path: FieldPath) -> str:
    """`path` as users write it: `prefill.engine_kwargs.max_model_len`."""
    return ".".join(str(step) for step in path)


def shown(value: object, limit: int = 60) -> str:
    """`value` in few words: text in quotes, numbers as written, at most `limit` characters."""
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
    text = masked(repr(value))
    return text if len(text) <= limit else f"{text[: limit - 4]}...{text[-1]}"


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The one of `known` that `word` most likely stands for, whatever its case and dashes; None for none."""
    plain = {name.lower().replace("-", "_"): name for name in known}
    found = difflib.get_close_matches(word.lower().replace("-", "_"), list(plain), n=1, cutoff=0.7)
    return plain[found[0]] if found else None
