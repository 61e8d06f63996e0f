"""The table of rules: each a small function with a code, a severity and a title, registered where it is written."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from diptych.check.findings import Complaint, Finding, Severity
from diptych.check.subject import Subject
from diptych.spec.secrets import masked

Check = Callable[[Subject], Iterable[Complaint]]


@dataclass(frozen=True)
class Rule:
    """One thing that is looked for.

    Args:
        code: a letter for the group and a number; never given to another rule once it was released.
        title: of its entry in docs/checks.md.
        check: complains of all that breaks the rule.
    """

    code: str
    severity: Severity
    title: str
    check: Check


RULES: dict[str, Rule] = {}
"""Every rule by its code."""

SHAPE = {
    "S101": "A document that can't be read",
    "S102": "Text that is not valid YAML",
    "S103": "A field that is given twice",
    "S104": "An unknown field",
    "S105": "A field that can't be set, or not there",
    "S106": "A value of the wrong type",
    "S107": "A number out of range",
    "S108": "A word that is none of those allowed",
    "S109": "A value that can't be used",
    "S110": "An unknown version of the format",
    "S111": "An override that names no field",
}
"""Codes of what is wrong with the document's shape, which loading finds, and their titles. All are errors."""

RAY = {
    "R901": "A configuration that Ray refuses",
    "R902": "Ray's own check that could not be made",
}
"""Codes of what Ray says of the rendered configuration, and their titles. R901 is an error, R902 a warning."""


REFUSING = ("E602", "M311")
"""Codes of an argument that vLLM refuses, whatever else the document says."""


def rule(code: str, severity: Severity, title: str) -> Callable[[Check], Check]:
    """Register a function as the rule of this code."""

    def register(check: Check) -> Check:
        if code in RULES:
            raise ValueError(f"{code} has a rule already")
        RULES[code] = Rule(code, severity, title, check)
        return check

    return register


def run(subject: Subject) -> list[Finding]:
    """What all rules find, in the order of their codes; what is true of both phases alike, once.

    What vLLM refuses in itself is told, and the other rules look at the document without it.
    """
    found = _found(subject)
    refused = [each for each in found if each.code in REFUSING]
    if not refused:
        return found
    rest = _found(subject.without_arguments({each.field for each in refused}))
    return sorted([*refused, *(each for each in rest if each not in refused)], key=lambda each: each.code)


def _found(subject: Subject) -> list[Finding]:
    found = (
        _finding(subject, each, complaint)
        for _, each in sorted(RULES.items())
        for complaint in each.check(subject)
    )
    return list(dict.fromkeys(found))


def _finding(subject: Subject, broken: Rule, complaint: Complaint) -> Finding:
    origin = subject.loaded.origin(complaint.field)
    return Finding(
        code=broken.code,
        severity=broken.severity,
        where=origin.where,
        field=complaint.field,
        what=masked(complaint.what),
        do=masked(complaint.do),
        line=origin.line,
    )
