"""The orchestrator's settings against the rest of the document."""

from collections.abc import Callable

import pytest

from diptych.catalog.engines import PAIRS
from diptych.check import Finding
from diptych.serving.settings import Settings, within_lease

Check = Callable[..., list[Finding]]
Codes = Callable[..., set[str]]

EKS = "on: eks\nmodel: Qwen/Qwen3-8B\n"
GROUP = {"P241", "P242", "T441"}


@pytest.mark.parametrize(
    ("place", "mode", "found"),
    [
        (EKS, "never", {"P241"}),
        ("on: kubernetes\nmodel: Qwen/Qwen3-8B\n", "never", {"P241"}),
        ("", "never", set()),
        (EKS + "topology: aggregated\n", "never", set()),
        (EKS, "always", set()),
        (EKS, "auto", set()),
        (EKS, "8192", set()),
        (EKS, "8193", {"P242"}),
        ("", "8193", {"P242"}),
        (EKS + "prefill: {engine_kwargs: {max_model_len: 4096}}\n", "4097", {"P242"}),
        (EKS + "topology: aggregated\n", "8193", set()),
    ],
)
def test_prompts_that_never_reach_prefill(codes: Codes, place: str, mode: str, found: set[str]) -> None:
    assert codes(f"{place}orchestrator: {{prefill: {mode}}}\n") & GROUP == found


@pytest.mark.parametrize(
    ("lease", "deadline", "found"),
    [
        ("60", "30", False),
        ("59", "30", True),
        ("30", "15", False),
        ("120", "60.5", True),
        ("3600", "1", False),
    ],
)
@pytest.mark.parametrize("place", ["", EKS])
def test_a_lease_is_twice_what_a_kv_transfer_may_take_at_least(
    codes: Codes, place: str, lease: str, deadline: str, found: bool
) -> None:
    text = f"{place}kv_transfer: {{lease_s: {lease}}}\norchestrator: {{kv_transfer_deadline_s: {deadline}}}\n"
    assert ("T441" in codes(text)) is found
    assert "T441" not in codes(f"topology: aggregated\n{text}")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("kv_transfer: {lease_s: 20}\n", "kv_transfer.lease_s"),
        ("orchestrator: {kv_transfer_deadline_s: 200}\n", "orchestrator.kv_transfer_deadline_s"),
    ],
)
def test_a_short_lease_is_told_where_the_document_says_something(check: Check, text: str, field: str) -> None:
    [finding] = [each for each in check(text) if each.code == "T441"]
    assert (finding.field, finding.line) == (field, 1)


@pytest.mark.parametrize(("lease_s", "deadline_s"), [(120, 30.0), (120, 60.0), (60, 30.5), (10, 30.0)])
def test_a_lease_is_told_too_short_where_serving_cuts_the_deadline(
    codes: Codes, lease_s: int, deadline_s: float
) -> None:
    text = f"kv_transfer: {{lease_s: {lease_s}}}\norchestrator: {{kv_transfer_deadline_s: {deadline_s}}}\n"
    kept = within_lease(Settings(kv_transfer_deadline_s=deadline_s), lease_s)
    assert ("T441" in codes(text)) is (kept.kv_transfer_deadline_s < deadline_s)


def test_one_engine_reads_its_own_queue_and_no_more_of_the_orchestrator(check: Check) -> None:
    text = "orchestrator: {prefill: 64, queues: {prefill: {tokens: 1}, decode: {tokens: 1}}}\n"
    unread = [each.field for each in check(f"topology: aggregated\n{text}") if each.code == "C811"]
    assert unread == ["orchestrator.prefill", "orchestrator.queues.prefill"]
    assert not [each for each in check(text) if each.code == "C811"]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.vllm)
@pytest.mark.parametrize(
    "kwargs",
    [
        "kv_events_config: {enable_kv_cache_events: true, publisher: zmq, endpoint: 'ipc:///tmp/kv'}",
        "kv_events_config: {enable_kv_cache_events: false}",
        "scheduling_policy: fcfs",
    ],
)
def test_what_serving_sets_for_decode_may_be_the_documents_own(
    check: Check, pair: object, kwargs: str
) -> None:
    image = f"image: {{ray_version: {pair.ray}, vllm_version: {pair.vllm}}}\n"  # type: ignore[attr-defined]
    text = f"{EKS}{image}decode: {{engine_kwargs: {{{kwargs}}}}}\n"
    assert [each for each in check(text) if each.severity == "error"] == []
