"""The first token of a streamed answer, from prefill.

With the last of a prompt's KV cache an engine has the first token of the answer, too. Decode would compute it once
more, but only when the KV cache has come and its own steps, which the answers being written share, have taken the
prompt up: four or five of them. So a stream gets prefill's token at once, and decode's engine gets it as the end of the
prompt and goes on from there.

Only a token that decode would have drawn in the same way is taken: prefill gets the settings in `_SHAPE_IT`, and a
request that sets anything beyond them and `_LEAVE_IT` (a seed, log-probabilities, a grammar, penalties that tell a
prompt from an answer) waits for decode's.
"""

import contextlib
import copy
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason

MARK = "diptych_first_token"
"""In a request's `kv_transfer_params`: its last token is prefill's, and the KV cache of that one is nowhere yet."""

_SHAPE_IT = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop_token_ids", "min_tokens")
_LEAVE_IT = frozenset(
    {
        "detokenize",
        "extra_args",  # `settings_for` looks closer at what is in them
        "ignore_eos",
        "include_stop_str_in_output",
        "max_tokens",
        "output_kind",
        "output_text_buffer_length",
        "skip_clone",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop",
        "stream_interval",
    }
)
_GREEDY = {"temperature": 0.0}
_USUAL = SamplingParams()


def settings_for(params: Any) -> dict[str, Any] | None:
    """What of a request's sampling parameters prefill needs to draw its first token; None: decode draws it."""
    if params.output_kind != RequestOutputKind.DELTA or (params.max_tokens or 0) < 2:
        return None
    if set(params.extra_args or ()) - {"kv_transfer_params"}:
        return None
    for name in params.__struct_fields__:
        if name.startswith("_") or name in _LEAVE_IT or name in _SHAPE_IT:
            continue
        if getattr(params, name) != getattr(_USUAL, name, None):
            return None
    found = {name: getattr(params, name) for name in _SHAPE_IT}
    return found | {"min_tokens": min(1, params.min_tokens), "stop_token_ids": params.stop_token_ids or None}


def one_token(settings: Mapping[str, Any] | None) -> SamplingParams:
    """Parameters with which prefill draws one token; whatever it is where nobody asks for it."""
    return SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False, **(settings or _GREEDY))


@dataclass(frozen=True)
class _Expected:
    """A request's first token, and whether its client has it already."""

    token: int
    is_known: bool


class FirstTokens:
    """Stands where vLLM's front end hands requests to its engine, and gives those their first token that have one.

    Args:
        client: vLLM's front end (`AsyncLLM`). Its output processor makes text of the token, looks for words to stop
            at, and hands it on, as it does with the engine's own.
    """

    def __init__(self, client: Any) -> None:
        self._processor = client.output_processor
        self._hand_over = client.engine_core.add_request_async
        self._expected: dict[str, _Expected] = {}
        client.engine_core.add_request_async = self._add

    @contextlib.contextmanager
    def given(self, request_id: str, token: int, *, is_known: bool) -> Iterator[None]:
        """While this lasts a request that comes under this id is given its first token.

        Args:
            is_known: its client has the token: it is not handed on again.
        """
        self._expected[request_id] = _Expected(token, is_known)
        try:
            yield
        finally:
            self._expected.pop(request_id, None)

    async def _add(self, request: EngineCoreRequest) -> None:
        expected = self._expected.pop(request.external_req_id or "", None)
        if expected is None:
            await self._hand_over(request)
        elif not self._is_over(request, expected):
            await self._hand_over(_continued(request, expected.token))

    def _is_over(self, request: EngineCoreRequest, expected: _Expected) -> bool:
        """Hand the token on; whether the answer ends with it."""
        state = self._processor.request_states[request.request_id]
        if expected.is_known:
            state.detokenizer.update([expected.token], False)
            state.make_request_output([expected.token], None, None, None)
            return False
        reason, word = _end(request.params, expected.token)
        output = EngineCoreOutput(
            request.request_id, [expected.token], finish_reason=reason, stop_reason=word
        )
        self._processor.process_outputs([output], time.monotonic(), None)
        state.is_prefilling = (
            True  # what the engine's own first output tells of the prompt is yet to be taken in
        )
        return request.request_id not in self._processor.request_states


def _end(params: Any, token: int) -> tuple[FinishReason | None, int | None]:
    """Whether a token ends an answer, as vLLM's engine decides it, and the token where a client named it."""
    if token == params.eos_token_id:
        return FinishReason.STOP, None
    if token in (params.stop_token_ids or ()):
        return FinishReason.STOP, token
    return None, None


def _continued(request: EngineCoreRequest, token: int) -> EngineCoreRequest:
    """The request as the engine gets it: its prompt is a token longer, its answer one shorter."""
    params = copy.copy(request.params)
    params.max_tokens, params.min_tokens = params.max_tokens - 1, max(0, params.min_tokens - 1)
    place = (params.extra_args or {}).get("kv_transfer_params")
    if place:
        params.extra_args = {**params.extra_args, "kv_transfer_params": {**place, MARK: True}}
    continued = copy.copy(request)
    continued.prompt_token_ids = [*(request.prompt_token_ids or ()), token]
    continued.sampling_params = params
    return continued


def draws_alike(config: Any) -> bool:
    """Whether prefill's engine computes the whole prompt, and one token after it.

    Args:
        config: vLLM's. Where a model keeps a state, prefill stops a token before the end; where tokens are drafted,
            the engines do not agree on what they owe each other.
    """
    return config.speculative_config is None and not config.model_config.is_hybrid
