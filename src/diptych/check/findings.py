"""What a check finds: one thing that would fail, or might, with its code, its place and what to do."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from diptych.spec import Problem
from diptych.spec.secrets import masked

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One thing that would fail (an error), or that may not be what was meant (a warning).

    Args:
        code: its entry in docs/checks.md.
        where: file and line, or the option or variable that gave the value; "default" where none did.
        field: dotted path as the user writes it, "" for the document as a whole.
        what: what is wrong, with the values that were seen; no full stop.
        do: what to do about it.
        line: 1-based line of the document, None if the value came from elsewhere.
    """

    code: str
    severity: Severity
    where: str
    field: str
    what: str
    do: str
    line: int | None = None

    @classmethod
    def of_problem(cls, problem: Problem) -> "Finding":
        """A fault of the document's shape, which is always an error."""
        what = f"{problem.what}\n{problem.excerpt}" if problem.excerpt else problem.what
        return cls(
            problem.code,
            "error",
            problem.where,
            problem.field,
            masked(what),
            masked(problem.do),
            problem.line,
        )

    def __str__(self) -> str:
        place = f"{self.where}: {self.field}" if self.field else self.where
        return f"{place}: {self.what} ({self.do})"

    def as_json(self) -> dict[str, Any]:
        """As `diptych check --json` prints it."""
        return asdict(self)


@dataclass(frozen=True)
class Complaint:
    """What a rule has to say: the field that is wrong, what is wrong with it, and what to do."""

    field: str
    what: str
    do: str


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, then by line (what has none last), then by code."""
    return sorted(
        findings,
        key=lambda each: (each.severity == "warning", each.line is None, each.line or 0, each.code),
    )
