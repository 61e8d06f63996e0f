"""The prefill leg of a request: built from what shapes the prompt, never from a patched copy.

A field that is not listed here does not reach prefill. What shapes the answer alone (sampling, stop, streaming)
belongs to decode, and some of it would make a one-token prefill fail.
"""

from typing import Any

from diptych.serving.ray_llm import ChatCompletionRequest, CompletionRequest, base_prefill_kv_transfer_params

_CHAT_PROMPT_FIELDS = (
    "model",
    "messages",
    "tools",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "reasoning_effort",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "response_format",
    "tool_choice",
    "cache_salt",
    "priority",
)
_COMPLETION_PROMPT_FIELDS = (
    "model",
    "prompt",
    "add_special_tokens",
    "cache_salt",
    "priority",
)
_SPLIT_TOOL_CHOICES = (None, "none", "auto")
# Settings of the KV transfer that vLLM also reads out of a request's free-form arguments.
_INTERNAL_ARGUMENTS = frozenset({"kv_transfer_params", "ec_transfer_params"})
_ONE_TOKEN = {"max_tokens": 1, "temperature": 0.0, "ignore_eos": True, "stream": False}


def why_whole(request: Any) -> str | None:
    """Why a request cannot be split and runs whole on decode; None when it can.

    One KV transfer feeds one sequence: a request that stands for several sequences, or asks for the
    probabilities of its prompt, needs the prompt computed where the answer is written. Truncation depends on the
    answer's length, which prefill does not have; a demanded tool call cannot be parsed out of prefill's one token.
    """
    if (getattr(request, "n", None) or 1) > 1:
        return "n > 1"
    if (getattr(request, "best_of", None) or 1) > 1:
        return "best_of > 1"
    if getattr(request, "use_beam_search", False):
        return "beam search"
    if getattr(request, "echo", False):
        return "echo"
    if getattr(request, "prompt_logprobs", None) is not None:
        return "prompt_logprobs"
    if getattr(request, "prompt_embeds", None) is not None:
        return "prompt_embeds"
    if getattr(request, "truncate_prompt_tokens", None) is not None:
        return "truncate_prompt_tokens"
    if getattr(request, "tools", None) and getattr(request, "tool_choice", None) not in _SPLIT_TOOL_CHOICES:
        return "tool_choice"
    if isinstance(request, CompletionRequest) and _number_of_prompts(request.prompt) != 1:
        return "several prompts"
    return None


def prefill_leg(request: Any, request_id: str) -> Any:
    """The request for prefill: the same prompt, one token, its KV cache kept for a remote decode.

    Args:
        request: the client's chat or completion request.
        request_id: 32 hexadecimal digits; names the request in both engines.
    """
    chat = isinstance(request, ChatCompletionRequest)
    kind = ChatCompletionRequest if chat else CompletionRequest
    fields = _CHAT_PROMPT_FIELDS if chat else _COMPLETION_PROMPT_FIELDS
    given = {name: getattr(request, name) for name in fields if name in request.model_fields_set}
    params = base_prefill_kv_transfer_params() | {"remote_host": None, "remote_port": None}
    return kind(**given, **_ONE_TOKEN, request_id=request_id, kv_transfer_params=params)


def decode_leg(request: Any, request_id: str, kv_transfer_params: dict[str, Any] | None) -> Any:
    """The request for decode: the client's own, with where its KV cache lies (None: computed here)."""
    update: dict[str, Any] = {"request_id": request_id, "kv_transfer_params": kv_transfer_params}
    arguments = getattr(request, "vllm_xargs", None)
    if arguments:
        kept = {name: value for name, value in arguments.items() if name not in _INTERNAL_ARGUMENTS}
        update["vllm_xargs"] = kept or None
    return request.model_copy(update=update)


def _number_of_prompts(prompt: Any) -> int:
    if isinstance(prompt, str):
        return 1
    if isinstance(prompt, list) and prompt:
        return 1 if isinstance(prompt[0], int) else len(prompt)
    return 0
