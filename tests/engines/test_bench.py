"""`diptych bench` on the real service: the numbers by phase are there, and add up."""

import json
from typing import Any

import pytest

from engines.service import NAME, Service, rise

pytestmark = pytest.mark.engines

REQUESTS, PROMPT, ANSWER = 6, 300, 8
WARM_UP = REQUESTS  # as many as the load has, and eight at most


@pytest.fixture(scope="module")
def measured(machine: Service) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """What one run says, and by how much the engines' own counters rose meanwhile."""
    if not machine.is_up():
        machine.down()
        up = machine.up()
        assert up.returncode == 0, up.stderr
    before = machine.settled_counters()
    load = ("--input", str(PROMPT), "--output", str(ANSWER), "--rate", "0.5", "--requests", str(REQUESTS))
    done = machine.run("bench", "--name", NAME, *load, "--slo", "ttft=60s", "--json", timeout_s=240)
    assert done.returncode == 0, done.stderr
    after = machine.settled_counters()
    told: dict[str, Any] = json.loads(done.stdout)[0]
    return told, {phase: rise(before[phase], after[phase]) for phase in after}


Measured = tuple[dict[str, Any], dict[str, dict[str, float]]]


def test_all_requests_are_answered_in_full(measured: Measured) -> None:
    told, _ = measured
    assert told["requests"] == {"sent": REQUESTS, "answered": REQUESTS, "errors": {}}
    assert told["topology"] == "split"
    assert told["goodput"] == 1.0
    flow = told["throughput"]
    assert flow["output_tokens_per_s"] * told["lasted_s"] == pytest.approx(REQUESTS * ANSWER, rel=0.01)
    assert flow["input_tokens_per_s"] * told["lasted_s"] == pytest.approx(REQUESTS * PROMPT, rel=0.01)


def test_the_parts_come_to_the_time_to_first_token(measured: Measured) -> None:
    told, _ = measured
    phases = told["phases"]
    assert sum(phases["ttft_parts_mean_ms"].values()) == pytest.approx(
        phases["service_ttft_ms"]["mean"], rel=0.02
    )
    assert phases["service_ttft_ms"]["p50"] <= told["ttft_ms"]["p50"]
    assert phases["service_ttft_ms"]["mean"] == pytest.approx(told["ttft_ms"]["mean"], rel=0.2)


def test_each_request_is_counted_once_by_the_path_it_took(measured: Measured) -> None:
    told, _ = measured
    phases = told["phases"]
    assert sum(phases["paths"].values()) == REQUESTS
    assert phases["prompt_tokens"] == REQUESTS * PROMPT
    assert phases["cached_tokens"] == 0
    remote = phases["paths"].get("remote", 0)
    assert remote
    assert phases["kv_transfers"] == phases["prefill_ms"]["count"] == remote
    assert phases["kv_transfers_failed"] == 0


def test_kv_transfers_have_the_bytes_of_their_prompts(measured: Measured) -> None:
    told, _ = measured
    phases = told["phases"]
    per_token = 2 * 30 * 3 * 64 * 4  # key and value, layers, KV heads, numbers, bytes of each
    blocks = -(-PROMPT // 128) * 128
    each = phases["kv_transfer_bytes"] / phases["kv_transfers"]
    assert PROMPT * per_token <= each <= blocks * per_token
    assert 0 < phases["kv_transfer_gb_per_s"]["p50"] < 100


def test_the_engines_counted_the_same_answers(measured: Measured) -> None:
    told, risen = measured
    # Decode puts out the answers of the load and of the warm-up, and the proof's own few tokens.
    # A stream's first token is prefill's, unless decode computed the prompt.
    answers = (REQUESTS + WARM_UP) * ANSWER
    remote = told["phases"]["paths"]["remote"]
    assert answers - remote - WARM_UP <= risen["decode"]["generation_tokens"] <= answers - remote + 16
    assert set(told["phases"]["kv_cache_use"]) == {"prefill", "decode"}
