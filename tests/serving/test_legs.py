"""A request's two legs: prefill gets what shapes the KV cache, decode what shapes the answer, and neither a client's
own KV transfer."""

from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from msgspec import structs
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.inputs.engine import build_enc_dec_input, embeds_input, mm_input, tokens_input
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.utils import random_uuid

from diptych.serving.legs import (
    decode_params,
    is_beam_step,
    prefill_params,
    prefill_prompt,
    prompt_tokens,
    why_whole,
)
from fakes.phases import PLACE

TOKENS = [1, 2, 3]
A_TURN = "chatcmpl-4f1c0ffee"
SHAPES_AN_ANSWER: dict[str, Any] = {
    "n": 2,
    "presence_penalty": 1.0,
    "frequency_penalty": 1.0,
    "repetition_penalty": 1.2,
    "temperature": 1.5,
    "top_p": 0.3,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 7,
    "stop": ["\n"],
    "stop_token_ids": [1],
    "max_tokens": 100,
    "min_tokens": 5,
    "logprobs": 2,
    "prompt_logprobs": 1,
    "skip_special_tokens": False,
    "output_kind": RequestOutputKind.DELTA,
    "logit_bias": {5: 1.0},
    "bad_words": ["never"],
}


def test_prefill_gets_the_prompts_tokens_and_its_salt_and_not_its_text() -> None:
    prompt = tokens_input(TOKENS, prompt="secret", cache_salt="salt") | {"arrival_time": 12.5}
    assert prefill_prompt(prompt) == {"type": "token", "prompt_token_ids": TOKENS, "cache_salt": "salt"}
    assert prefill_prompt(tokens_input(TOKENS)) == {"type": "token", "prompt_token_ids": TOKENS}


def test_prefill_is_asked_for_one_token_and_to_keep_the_kv_cache_for_somebody_else() -> None:
    params = prefill_params()
    assert (params.max_tokens, params.n, params.ignore_eos, params.stop) == (1, 1, True, [])
    assert params.extra_args is not None
    assert params.extra_args["kv_transfer_params"]["do_remote_decode"] is True
    assert params.extra_args["kv_transfer_params"]["do_remote_prefill"] is False


def test_what_one_prefill_does_with_its_settings_does_not_reach_the_next() -> None:
    first = prefill_params()
    assert first.extra_args is not None
    first.extra_args["kv_transfer_params"]["remote_host"] = "10.0.0.1"
    assert "10.0.0.1" not in str(prefill_params())


def test_decode_gets_the_clients_parameters_with_the_kv_caches_place_and_the_client_keeps_his() -> None:
    params = SamplingParams(**SHAPES_AN_ANSWER, extra_args={"mine": 1})
    own = decode_params(params, PLACE)
    assert own.extra_args == {"mine": 1, "kv_transfer_params": PLACE}
    assert params.extra_args == {"mine": 1}
    assert structs.asdict(own) | {"extra_args": None} == structs.asdict(params) | {"extra_args": None}
    assert own.clone() == own


def test_the_place_that_decode_is_told_is_a_copy() -> None:
    own = decode_params(SamplingParams(), PLACE)
    own.extra_args["kv_transfer_params"]["do_remote_prefill"] = False
    assert PLACE["do_remote_prefill"] is True


@pytest.mark.parametrize("extra_args", [None, {}, {"mine": 1}])
def test_parameters_to_which_nothing_is_added_stay_the_clients_own(extra_args: Any) -> None:
    params = SamplingParams(extra_args=extra_args)
    assert decode_params(params, None) is params


@pytest.mark.parametrize("place", [None, PLACE])
@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
def test_transfer_settings_of_a_client_never_reach_decode(name: str, place: Any) -> None:
    params = SamplingParams(extra_args={name: {"remote_host": "10.0.0.1", "do_remote_prefill": True}})
    assert decode_params(params, place).extra_args == ({"kv_transfer_params": PLACE} if place else None)


def test_transfer_settings_hidden_among_a_requests_free_arguments_never_reach_decode() -> None:
    request = ChatCompletionRequest(
        messages=[], vllm_xargs={"kv_transfer_params": "10.0.0.1", "ec_transfer_params": "x", "mine": 1}
    )
    params = request.to_sampling_params(9, {})
    assert "10.0.0.1" in str(params)
    assert decode_params(params, None).extra_args == {"mine": 1}


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        (tokens_input(TOKENS), TOKENS),
        ({"prompt_token_ids": TOKENS}, TOKENS),
        (tokens_input([]), None),
        (embeds_input(torch.zeros(3, 4)), None),
        (embeds_input(torch.zeros(3, 4), prompt_token_ids=TOKENS, is_token_ids=[True] * 3), None),
        (mm_input(TOKENS, {}, {"image": ["h"]}, {"image": []}), None),
        ({"prompt_token_ids": TOKENS, "multi_modal_data": {"image": ["i"]}}, None),
        (build_enc_dec_input(tokens_input(TOKENS), None, 0), None),
        ("Hello", None),
        (TOKENS, None),
    ],
    ids=[
        "tokens",
        "raw tokens",
        "no tokens",
        "embeddings",
        "embeddings among tokens",
        "images",
        "raw images",
        "encoder and decoder",
        "text",
        "a list",
    ],
)
def test_a_prompt_that_is_more_than_tokens_is_not_taken_for_its_tokens(prompt: Any, tokens: Any) -> None:
    assert prompt_tokens(prompt) == tokens
    why = None if tokens else "its prompt is more than tokens"
    assert why_whole(prompt, SamplingParams(), A_TURN, None) == why


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({}, None),
        ({"n": 1}, None),
        ({"n": 2}, "n > 1"),
        ({"logprobs": 5}, None),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({name: SHAPES_AN_ANSWER[name] for name in SHAPES_AN_ANSWER.keys() - {"n", "prompt_logprobs"}}, None),
    ],
)
def test_what_one_kv_transfer_cannot_feed_runs_whole_and_the_reason_is_named(params: Any, why: Any) -> None:
    assert why_whole(tokens_input(TOKENS), SamplingParams(**params), A_TURN, None) == why


def test_an_adapter_that_prefill_may_know_by_another_number_is_used_on_decode_alone() -> None:
    adapter = LoRARequest("mine", 1, "/nowhere")
    assert why_whole(tokens_input(TOKENS), SamplingParams(), A_TURN, adapter) == "LoRA adapter"


@pytest.mark.parametrize(
    ("request_id", "is_one"),
    [
        (f"{A_TURN}-UNIQUE-beam-0", True),
        (f"{A_TURN}-UNIQUE-beam-12", True),
        (A_TURN, False),
        ("chatcmpl-laser-beam-0", False),
        ("chatcmpl-UNIQUE-beam-0-then", False),
    ],
)
def test_a_beam_is_told_by_the_id_that_vllm_gives_it_and_not_by_a_clients(
    request_id: str, is_one: bool
) -> None:
    request_id = request_id.replace("UNIQUE", random_uuid())
    assert is_beam_step(request_id) is is_one
    why = "beam search" if is_one else None
    assert why_whole(tokens_input(TOKENS), SamplingParams(), request_id, None) == why
