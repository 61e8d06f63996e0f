"""What would fail before anything is started: rules with codes over a document and the facts it is given.

`check_file` checks a file with all that can be wrong with it; `check_document` runs the rules over a document that
is loaded already, with facts that `gather` finds. docs/checks.md has an entry for each code.
"""

from diptych.check import (  # noqa: F401  rules register where they are written
    access,
    account_rules,
    arguments,
    capacity_rules,
    checkpoint_rules,
    cluster_rules,
    compatibility,
    events,
    images,
    kuberay,
    memory_rules,
    model_kinds,
    network_rules,
    nodes,
    offline,
    orchestrator,
    phases,
    places,
    pods,
    ports,
    replicas,
    settings,
    transport,
)
from diptych.check.account import Account
from diptych.check.cluster import ClusterFacts
from diptych.check.facts import Facts, Installed, Machine, gather
from diptych.check.find_config import ModelFacts
from diptych.check.findings import Complaint, Finding, Severity, in_order
from diptych.check.link import LinkSetting
from diptych.check.memory import PhaseMemory, Transfer, Unsized, memory_of, transfer_of
from diptych.check.report import Report, check_file
from diptych.check.rules import RAY, RULES, SHAPE, Rule, run
from diptych.check.subject import Subject
from diptych.spec import LoadedDocument

__all__ = [
    "RAY",
    "RULES",
    "SHAPE",
    "Account",
    "ClusterFacts",
    "Complaint",
    "Facts",
    "Finding",
    "Installed",
    "LinkSetting",
    "Machine",
    "ModelFacts",
    "PhaseMemory",
    "Report",
    "Rule",
    "Severity",
    "Subject",
    "Transfer",
    "Unsized",
    "check_document",
    "check_file",
    "gather",
    "in_order",
    "memory_of",
    "run",
    "transfer_of",
]


def check_document(loaded: LoadedDocument, facts: Facts) -> list[Finding]:
    """All that is wrong, or may be, with a document whose shape is right: errors first, then by line.

    >>> from datetime import date
    >>> from diptych.spec import load_with_provenance
    >>> loaded = load_with_provenance(None, ["decode.engine_kwargs.max_model_len=4096"], {})
    >>> [finding.code for finding in check_document(loaded, Facts(date(2026, 12, 1), ModelFacts()))]
    ['M302']
    """
    return in_order(run(Subject(loaded, facts)))
