"""One run of the check over a file: findings of both kinds, the budget, and all of it as JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from diptych.check.account import Account
from diptych.check.cluster import ClusterFacts
from diptych.check.facts import Machine, gather
from diptych.check.findings import Finding, in_order
from diptych.check.link import LinkSetting, link_of_subject
from diptych.check.memory import PhaseMemory, Transfer, memory_of, transfer_of
from diptych.check.rules import REFUSING, run
from diptych.check.subject import Subject
from diptych.spec import Document, InvalidDocumentError, Problem, load_leniently

HIDDEN = "(a secret)"


@dataclass(frozen=True)
class Report:
    """What came of a check.

    Args:
        findings: errors first, then by line.
        subject: the document with its facts, None if the file holds none.
        left_out: fields that are wrong in themselves; `subject` is the document without them.
    """

    findings: tuple[Finding, ...]
    subject: Subject | None
    left_out: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing that was found is an error."""
        return not any(finding.severity == "error" for finding in self.findings)

    @cached_property
    def refused(self) -> tuple[str, ...]:
        """Arguments that vLLM refuses in themselves; memory is divided without them."""
        return tuple(dict.fromkeys(each.field for each in self.findings if each.code in REFUSING))

    @cached_property
    def _sized(self) -> Subject | None:
        return self.subject.without_arguments(self.refused) if self.subject and self.refused else self.subject

    @cached_property
    def memory(self) -> tuple[PhaseMemory, ...]:
        """The memory of each phase that can be sized."""
        views = self._sized.phases if self._sized else ()
        return tuple(each for view in views if isinstance(each := memory_of(view), PhaseMemory))

    @cached_property
    def transfer(self) -> Transfer | None:
        return transfer_of(self._sized) if self._sized else None

    @cached_property
    def link(self) -> tuple[LinkSetting, ...]:
        """What the KV transfer's link is told, and why; nothing without a split."""
        return link_of_subject(self.subject) if self.subject else ()

    def rows(self) -> list[tuple[str, Any, str]]:
        """Every field of the document with its value and where it came from; secrets hidden."""
        if self.subject is None:
            return []
        secret = {finding.field for finding in self.findings if finding.code == "A701"}
        provenance = self.subject.loaded.provenance
        return [
            (field, _hidden(_value(self.subject.document, field), field, secret), origin)
            for field, origin in provenance.items()
        ]

    def as_json(self, *, show: bool = False) -> dict[str, Any]:
        """As docs/json.md has it; the document only when asked for."""
        shape: dict[str, Any] = {
            "ok": self.ok,
            "findings": [finding.as_json() for finding in self.findings],
            "left_out": list(self.left_out),
            "budget": None if self.subject is None else _budget_json(self),
            "link": [each.as_json() for each in self.link],
        }
        if show:
            shape["document"] = [
                {"field": field, "value": value, "from": origin} for field, value, origin in self.rows()
            ]
        return shape


def check_file(
    path: Path | None,
    overrides: Sequence[str] = (),
    *,
    offline: bool = False,
    machine: Callable[[], Machine] | None = None,
    account: Callable[[Document], Account] | None = None,
    cluster: Callable[[Document], ClusterFacts] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Report:
    """Check the document in `path` (the default one without it), with overrides.

    A field that is wrong in itself does not hide what else is wrong: the rules then look at the document without
    it, and leave alone what stands beside it.

    Args:
        offline: ask neither the Hugging Face hub, nor an account or cluster.
        machine: looks at this machine; called for `on: local` only.
        account: looks at the AWS account; called for `on: eks` only.
        cluster: looks at the cluster; called for `on: kubernetes` only.
        environ: variables in place of this process's.
    """
    try:
        loaded, problems = load_leniently(path, overrides, environ)
    except InvalidDocumentError as error:
        return Report(tuple(map(Finding.of_problem, error.problems)), None)
    findings = [Finding.of_problem(problem) for problem in problems]
    if loaded is None:
        return Report(tuple(in_order(findings)), None)
    facts = gather(
        loaded.document, offline=offline, machine=machine, account=account, cluster=cluster, environ=environ
    )
    subject = Subject(loaded, facts)
    findings += [each for each in run(subject) if not _is_beside(each.field, problems)]
    by_line = sorted(problems, key=lambda problem: problem.line or 0)
    left_out = tuple(dict.fromkeys(problem.field for problem in by_line if problem.field))
    return Report(tuple(in_order(findings)), subject, left_out)


def _is_beside(field: str, problems: Sequence[Problem]) -> bool:
    """Whether a finding may only be there because a wrong field of the same section is left out."""
    wrong = [problem.field for problem in problems if problem.field]
    sections = {name.rpartition(".")[0] for name in wrong}
    inside = any(field == name or field.startswith(f"{name}.") for name in wrong)
    return inside or field.rpartition(".")[0] in sections


def _value(document: Document, field: str) -> Any:
    value: Any = document
    rest = field
    while rest:
        step, _, rest = rest.partition(".")
        if isinstance(value, Mapping):  # keys of free mappings may hold dots
            return value.get(f"{step}.{rest}" if rest else step)
        value = getattr(value, step)
    return str(value) if isinstance(value, Path) else value


def _hidden(value: Any, field: str, secret: set[str]) -> Any:
    holds_one = any(name == field or name.startswith(f"{field}.") for name in secret)
    return HIDDEN if holds_one else value


def _budget_json(report: Report) -> dict[str, Any] | None:
    if not report.memory and report.transfer is None:
        return None
    return {
        "phases": [_phase_json(memory) for memory in report.memory],
        "kv_transfer": None if report.transfer is None else _transfer_json(report.transfer),
    }


def _phase_json(memory: PhaseMemory) -> dict[str, Any]:
    budget = memory.budget
    return {
        "phase": memory.phase,
        "device": memory.device,
        "total_bytes": memory.total_bytes,
        "requested_bytes": budget.requested,
        "weights_bytes": budget.weights,
        "activations_bytes": budget.activations,
        "outside_torch_bytes": budget.outside_torch,
        "cuda_graphs_bytes": budget.cuda_graphs,
        "kv_cache_bytes": budget.kv_cache,
        "kv_cache_tokens": budget.tokens,
        "max_model_len": budget.max_model_len,
        "sequences": round(budget.sequences, 2),
        "fits": budget.fits,
        "notes": list(budget.notes),
    }


def _transfer_json(transfer: Transfer) -> dict[str, Any]:
    return {
        "tokens": transfer.tokens,
        "bytes": transfer.size_bytes,
        "link": transfer.link,
        "gbps": transfer.gbps,
        "at_least_s": transfer.seconds,
    }
