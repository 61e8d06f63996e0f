"""The orchestrator's settings against the rest of the document: leases, and prompts that never reach prefill."""

import math
from collections.abc import Iterable

from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import Subject


@rule("P241", "warning", "Prefill replicas that get no prompts")
def prefill_gets_prompts(subject: Subject) -> Iterable[Complaint]:
    if subject.is_split and not subject.is_local and subject.document.orchestrator.prefill == "never":
        yield Complaint(
            "orchestrator.prefill",
            "is never: decode computes every prompt, and the nodes of prefill do nothing",
            "write auto; or topology: aggregated, which needs no nodes for prefill",
        )


@rule("P242", "warning", "A number of tokens that no prompt has")
def prompts_reach_the_threshold(subject: Subject) -> Iterable[Complaint]:
    if not subject.is_split:
        return
    threshold = subject.document.orchestrator.prefill
    lengths = [view.max_model_len for view in subject.phases if view.max_model_len is not None]
    longest = min(lengths, default=None)
    if isinstance(threshold, int) and longest is not None and threshold > longest:
        yield Complaint(
            "orchestrator.prefill",
            f"is {threshold}, and no prompt is longer than max_model_len ({longest}): it means never",
            f"write fewer than {longest}, or auto",
        )


@rule("T441", "warning", "A lease shorter than twice what a KV transfer may take")
def lease_outlasts_the_transfer(subject: Subject) -> Iterable[Complaint]:
    lease_s = subject.document.kv_transfer.lease_s
    deadline_s = subject.document.orchestrator.kv_transfer_deadline_s
    if subject.is_split and lease_s < 2 * deadline_s:  # as `diptych.serving.settings.within_lease` has it
        lease, deadline = "kv_transfer.lease_s", "orchestrator.kv_transfer_deadline_s"
        field, other = (lease, deadline) if subject.is_written(lease) else (deadline, lease)
        values = {lease: lease_s, deadline: f"{deadline_s:g}"}
        yield Complaint(
            field,
            f"is {values[field]}, and {other} is {values[other]}: decode gives a KV transfer up after "
            f"{lease_s / 2:g} s, half a lease, since prefill may then give away what is still being fetched",
            f"make {lease} {math.ceil(2 * deadline_s)} or more, or {deadline} {lease_s / 2:g} or less",
        )
