"""A request's two legs: what shapes the prompt goes to prefill, what shapes the answer does not."""

import uuid
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving.legs import decode_leg, prefill_leg, why_whole
from diptych.serving.ray_llm import ChatCompletionRequest, CompletionRequest

MESSAGES = [{"role": "user", "content": "Hello"}]
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
]

SHAPES_A_CHATS_PROMPT: dict[str, Any] = {
    "model": "m",
    "messages": MESSAGES,
    "tools": TOOLS,
    "documents": [{"title": "t", "text": "x"}],
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"enable_thinking": False},
    "add_generation_prompt": False,
    "continue_final_message": True,
    "add_special_tokens": True,
    "reasoning_effort": "low",
    "response_format": {"type": "json_object"},
    "tool_choice": "auto",
    "cache_salt": "s",
    "priority": 3,
}
SHAPES_ITS_ANSWER: dict[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 100,
    "max_completion_tokens": 100,
    "min_tokens": 5,
    "temperature": 1.5,
    "top_p": 0.3,
    "seed": 7,
    "stop": ["\n"],
    "stop_token_ids": [1],
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"5": 1.0},
    "frequency_penalty": 1.0,
    "parallel_tool_calls": True,
    "user": "u",
    "repetition_penalty": 1.2,
    "min_p": 0.1,
    "ignore_eos": False,
}
SHAPES_A_COMPLETIONS_PROMPT: dict[str, Any] = {
    "model": "m",
    "prompt": "Hello",
    "add_special_tokens": False,
    "cache_salt": "s",
    "priority": 3,
}
OURS = {"request_id", "kv_transfer_params", "max_tokens", "temperature", "ignore_eos", "stream"}


def an_id() -> str:
    return uuid.uuid4().hex


def chat(**fields: Any) -> Any:
    return ChatCompletionRequest(**({"model": "m", "messages": MESSAGES} | fields))


def completion(**fields: Any) -> Any:
    return CompletionRequest(**({"model": "m", "prompt": "Hello"} | fields))


def test_every_field_that_shapes_a_chats_prompt_reaches_prefill() -> None:
    request = chat(**SHAPES_A_CHATS_PROMPT)
    leg = prefill_leg(request, an_id())
    for name in SHAPES_A_CHATS_PROMPT:
        assert getattr(leg, name) == getattr(request, name), name


def test_every_field_that_shapes_a_completions_prompt_reaches_prefill() -> None:
    request = completion(**SHAPES_A_COMPLETIONS_PROMPT)
    leg = prefill_leg(request, an_id())
    for name in SHAPES_A_COMPLETIONS_PROMPT:
        assert getattr(leg, name) == getattr(request, name), name


@pytest.mark.parametrize(
    ("request_of", "shapes_its_prompt"),
    [(chat, SHAPES_A_CHATS_PROMPT), (completion, SHAPES_A_COMPLETIONS_PROMPT)],
)
def test_nothing_that_shapes_the_answer_reaches_prefill(
    request_of: Any, shapes_its_prompt: dict[str, Any]
) -> None:
    known = request_of().__class__.model_fields
    shaping = {name: value for name, value in SHAPES_ITS_ANSWER.items() if name in known}
    if request_of is completion:
        shaping["logprobs"] = 2
    assert len(shaping) > 10
    leg = prefill_leg(request_of(**shaping), an_id())
    assert leg.model_fields_set <= OURS | set(shapes_its_prompt)
    assert (leg.max_completion_tokens if request_of is chat else None) is None
    assert (leg.max_tokens, leg.temperature, leg.ignore_eos, leg.stream) == (1, 0.0, True, False)


def test_an_unknown_field_reaches_decode_alone() -> None:
    request = chat(some_new_field=1)
    assert "some_new_field" not in prefill_leg(request, an_id()).model_dump()
    assert decode_leg(request, an_id(), None).model_dump()["some_new_field"] == 1


def test_prefill_is_told_to_keep_the_kv_cache_for_somebody_else() -> None:
    ours = an_id()
    leg = prefill_leg(completion(), ours)
    assert leg.request_id == ours
    assert leg.kv_transfer_params["do_remote_decode"] is True
    assert leg.kv_transfer_params["do_remote_prefill"] is False


def test_decode_gets_the_clients_request_with_the_kv_caches_place_and_the_client_keeps_his() -> None:
    request, ours = chat(**SHAPES_ITS_ANSWER), an_id()
    leg = decode_leg(request, ours, {"remote_engine_id": "e"})
    assert leg.kv_transfer_params == {"remote_engine_id": "e"}
    unchanged = {"request_id", "kv_transfer_params"}
    assert leg.model_dump(exclude=unchanged) == request.model_dump(exclude=unchanged)
    assert request.kv_transfer_params is None


def test_kv_transfer_settings_of_a_client_reach_neither_engine() -> None:
    request = chat(kv_transfer_params={"remote_host": "10.0.0.1", "do_remote_prefill": True})
    assert decode_leg(request, an_id(), None).kv_transfer_params is None
    assert "10.0.0.1" not in str(prefill_leg(request, an_id()).kv_transfer_params)


def test_kv_transfer_settings_hidden_among_free_arguments_reach_neither_engine() -> None:
    request = chat(vllm_xargs={"kv_transfer_params": "10.0.0.1", "ec_transfer_params": "x", "mine": 1})
    assert decode_leg(request, an_id(), None).vllm_xargs == {"mine": 1}
    assert "10.0.0.1" not in str(prefill_leg(request, an_id()))


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (chat(), None),
        (chat(n=1, stream=True), None),
        (chat(n=2), "n > 1"),
        (chat(prompt_logprobs=0), "prompt_logprobs"),
        (chat(use_beam_search=True), "beam search"),
        (chat(echo=True), "echo"),
        (chat(truncate_prompt_tokens=5), "truncate_prompt_tokens"),
        (chat(tools=TOOLS), None),
        (chat(tools=TOOLS, tool_choice="none"), None),
        (chat(tools=TOOLS, tool_choice="required"), "tool_choice"),
        (chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "f"}}), "tool_choice"),
        (completion(), None),
        (completion(prompt=[1, 2, 3]), None),
        (completion(prompt=["one"]), None),
        (completion(prompt=[[1, 2]]), None),
        (completion(prompt=["one", "two"]), "several prompts"),
        (completion(prompt=[[1], [2]]), "several prompts"),
        (completion(n=3), "n > 1"),
        (completion(echo=True), "echo"),
        (completion(truncate_prompt_tokens=5), "truncate_prompt_tokens"),
        (completion(use_beam_search=True), "beam search"),
        (completion(prompt_logprobs=1), "prompt_logprobs"),
    ],
)
def test_what_one_kv_transfer_cannot_feed_runs_whole_and_the_reason_is_named(
    request_: Any, why: str | None
) -> None:
    assert why_whole(request_) == why
