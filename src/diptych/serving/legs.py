"""The two legs of a request: what prefill is asked, and what decode is told; which requests can't be split.

Both legs stand behind vLLM's own front end, which has made tokens of the prompt and sampling parameters of
everything else. Prefill gets the tokens, and of the rest only what shapes their KV cache and, for a stream, how its
first token is drawn (`first_token`); nothing else that shapes the answer can reach it, whatever a client sent.
"""

import copy
import re
from collections.abc import Mapping
from typing import Any

from vllm import SamplingParams

from diptych.serving.first_token import one_token

# Settings of the KV transfer; those that a client may have smuggled in never reach an engine.
_INTERNAL_ARGUMENTS = frozenset({"kv_transfer_params", "ec_transfer_params"})
# What of the prompt, beside its tokens, shapes the KV cache.
_PROMPT_FIELDS = ("prompt_token_ids", "type", "cache_salt")
# How vLLM's beam search ends the ids of its requests; a client's own id may end in "-beam-1" as well.
_BEAM_STEP = re.compile(r"-[0-9a-f]{16}-beam-\d+$")
_FOR_REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def is_beam_step(request_id: str) -> bool:
    """Whether vLLM's beam search asks: for one token, again and again, with a prompt that grows by it."""
    return _BEAM_STEP.search(request_id) is not None


def why_whole(prompt: Any, params: Any, request_id: str, lora_request: Any) -> str | None:
    """Why a request cannot be split and runs whole on decode; None when it can.

    One KV transfer feeds one sequence, and KV cache tells nothing of the prompt's own probabilities. Every front end
    numbers its LoRA adapters by itself, and engines tell them apart by that number: prefill could take another one.
    """
    if is_beam_step(request_id):
        return "beam search"
    if lora_request is not None:
        return "LoRA adapter"
    if prompt_tokens(prompt) is None:
        return "its prompt is more than tokens"
    if params.n > 1:
        return "n > 1"
    if params.prompt_logprobs is not None:
        return "prompt_logprobs"
    return None


def prompt_tokens(prompt: Any) -> list[int] | None:
    """The tokens that a prompt consists of; None when there is more to it (images, embeddings, an encoder's part)."""
    if not isinstance(prompt, Mapping) or prompt.get("type", "token") != "token":
        return None
    if any(name.startswith(("multi_modal", "mm_")) and prompt[name] for name in prompt):
        return None
    tokens = prompt.get("prompt_token_ids")
    return tokens if isinstance(tokens, list) and tokens else None


def prompt_length(prompt: Any) -> int:
    """How many tokens a prompt has, with those that stand for an image; 0 where it does not tell.

    >>> prompt_length({"type": "multimodal", "prompt_token_ids": [1, 2, 3]}), prompt_length({"prompt_embeds": ...})
    (3, 0)
    """
    tokens = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else None
    return len(tokens or ())


def prefill_prompt(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """What of a prompt goes to prefill: its tokens, not its text."""
    return {name: prompt[name] for name in _PROMPT_FIELDS if name in prompt}


def prefill_params(drawn: Mapping[str, Any] | None = None) -> SamplingParams:
    """One token, and the prompt's KV cache kept for a remote decode.

    Args:
        drawn: how the token is drawn, where the client gets it (`first_token.settings_for`).
    """
    params = one_token(drawn)
    params.extra_args = {"kv_transfer_params": dict(_FOR_REMOTE_DECODE)}
    return params


def decode_params(params: Any, kv_transfer_params: Mapping[str, Any] | None) -> Any:
    """The client's parameters, with where the KV cache lies (None: it is computed here)."""
    arguments = {
        name: value for name, value in (params.extra_args or {}).items() if name not in _INTERNAL_ARGUMENTS
    }
    if kv_transfer_params:
        arguments["kv_transfer_params"] = dict(kv_transfer_params)
    if arguments == (params.extra_args or {}):
        return params
    own = copy.copy(params)
    own.extra_args = arguments or None
    return own


def decode_prompt(prompt: Mapping[str, Any], salt: str) -> dict[str, Any]:
    """The prompt with a salt of its own, so that what decode fetches for it serves no other prompt."""
    return {**prompt, "cache_salt": salt}
