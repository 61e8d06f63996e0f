"""Decode received the prompt's KV cache: shown by both engines' own counters, not by what Diptych says of itself."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from engines.service import Service, rise

pytestmark = pytest.mark.engines

BLOCK_TOKENS = 128
BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 4  # layers, keys and values, KV heads, head size, float32


def unseen_prompt(tokens: int) -> list[int]:
    """A prompt of exactly so many tokens that no cache knows."""
    return [random.randrange(1000, 40000) for _ in range(tokens)]


@pytest.mark.parametrize("tokens", [2, 127, 128, 129, 600])
def test_decode_computes_no_token_of_the_prompt_and_receives_them_all(service: Service, tokens: int) -> None:
    before = service.settled_counters()
    answer = service.complete(unseen_prompt(tokens), max_tokens=4)
    after = service.settled_counters()

    decode, prefill = rise(before["decode"], after["decode"]), rise(before["prefill"], after["prefill"])
    blocks = -(-tokens // BLOCK_TOKENS)
    assert answer["usage"]["prompt_tokens"] == tokens
    assert decode["external_kv_tokens"] == tokens
    assert "local_compute_tokens" not in decode
    assert decode["kv_transfers"] == 1
    assert decode["kv_transfer_bytes"] == blocks * BLOCK_TOKENS * BYTES_PER_TOKEN
    assert decode["generation_tokens"] == 4
    assert prefill == {
        "prompt_tokens": tokens,
        "local_compute_tokens": tokens,
        "generation_tokens": 1,
        "requests_finished": 1,
        "steps": 1,
    }


def test_the_kv_cache_of_a_single_token_crosses_too(service: Service) -> None:
    """Engines compute a prompt's last token again for its logits: vLLM counts a prompt of one as computed here."""
    before = service.settled_counters()
    answer = service.complete(unseen_prompt(1))
    after = service.settled_counters()

    decode = rise(before["decode"], after["decode"])
    assert answer["usage"]["prompt_tokens"] == 1
    assert answer["diptych"]["path"] == "remote"
    assert decode["kv_transfers"] == 1
    assert decode["kv_transfer_bytes"] == BLOCK_TOKENS * BYTES_PER_TOKEN
    assert rise(before["prefill"], after["prefill"])["generation_tokens"] == 1


def test_prefill_generates_exactly_one_token_for_each_of_several_requests_at_once(service: Service) -> None:
    before = service.settled_counters()
    with service.client() as client:

        def ask(_: int) -> str:
            body = {"model": service.model, "prompt": unseen_prompt(40), "max_tokens": 8, "ignore_eos": True}
            told = client.post("/v1/completions", json=body).json()["diptych"]
            return f"{told['path']}: {told['why']}"

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(ask, range(4))) == ["remote: None"] * 4
    after = service.settled_counters()

    assert rise(before["prefill"], after["prefill"])["generation_tokens"] == 4
    decode = rise(before["decode"], after["decode"])
    assert (decode["external_kv_tokens"], decode["kv_transfers"], decode["generation_tokens"]) == (160, 4, 32)


def test_many_requests_at_once_all_go_through_prefill_and_nothing_stands_still(service: Service) -> None:
    with service.client(key=service.admin_key) as client:

        def ask(_: int) -> tuple[int, str | None, float]:
            body = {"model": service.model, "prompt": unseen_prompt(40), "max_tokens": 4, "ignore_eos": True}
            began = time.monotonic()
            response = client.post("/v1/completions", json=body)
            return response.status_code, response.headers.get("x-diptych-path"), time.monotonic() - began

        with ThreadPoolExecutor(16) as pool:
            told = list(pool.map(ask, range(48)))
    assert {status for status, _, _ in told} == {200}
    assert {path for _, path, _ in told} == {"remote"}
    assert (
        max(seconds for _, _, seconds in told) < 15.0
    )  # with Ray 2.58 they stood still, ten seconds at a time


def test_what_a_request_is_told_of_its_kv_transfer_is_what_the_engine_counted(service: Service) -> None:
    before = service.settled_counters()
    told = service.complete(unseen_prompt(300))["diptych"]
    counted = rise(before["decode"], service.settled_counters()["decode"])

    assert told["path"] == "remote"
    assert told["kv_transfer_bytes"] == counted["kv_transfer_bytes"]
    assert told["kv_transfer_ms"] == pytest.approx(counted["kv_transfer_seconds"] * 1e3, rel=0.01)
    assert told["prefill_ms"] > 0
    assert told["computed"] == []


def test_a_request_that_stands_for_several_answers_runs_whole_on_decode_and_says_so(service: Service) -> None:
    before = service.settled_counters()
    answer = service.post("/v1/completions", prompt=unseen_prompt(20), max_tokens=4, n=2).json()
    after = service.settled_counters()

    assert len(answer["choices"]) == 2
    assert answer["diptych"]["path"] == "local-whole"
    assert answer["diptych"]["why"] == "n > 1"
    assert answer["diptych"]["kv_transfer_bytes"] is None
    assert rise(before["prefill"], after["prefill"]) == {}
    assert "external_kv_tokens" not in rise(before["decode"], after["decode"])
