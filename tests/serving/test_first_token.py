"""A stream's first token from prefill: who may have it, what the client gets, what decode's engine is left to do."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from vllm import SamplingParams
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector

from diptych.serving.connector import FetchingScheduler
from diptych.serving.first_token import MARK, FirstTokens, draws_alike, one_token, settings_for
from diptych.serving.legs import prefill_params

WORDS = ["<s>", "</s>", "the", " river", " and", " stone"]
EOS, THE, RIVER, AND = 1, 2, 3, 4
PLACE = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]]}


def streamed(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"output_kind": RequestOutputKind.DELTA, "max_tokens": 8} | fields)


# Who may have it


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1},
        {"repetition_penalty": 1.05},
        {"stop": ["stone"], "include_stop_str_in_output": True, "skip_special_tokens": False},
        {"extra_args": {"kv_transfer_params": {}}},
    ],
)
def test_prefill_draws_it_as_the_client_wants_it_drawn(fields: dict[str, Any]) -> None:
    asked = streamed(**fields)
    drawn = settings_for(asked)
    assert drawn is not None
    params = one_token(drawn)
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
        assert getattr(params, name) == getattr(asked, name)
    assert (params.max_tokens, params.stop, params.ignore_eos) == (1, [], True)


def test_words_that_may_not_come_first_may_not_come_from_prefill() -> None:
    drawn = settings_for(streamed(min_tokens=5, stop_token_ids=[7]))
    assert drawn is not None
    assert (one_token(drawn).min_tokens, one_token(drawn).stop_token_ids) == (1, [7])


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 0},
        {"logprobs": 0},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"logit_bias": {3: 1.0}},
        {"allowed_token_ids": [3]},
        {"bad_words": ["river"]},
        {"structured_outputs": StructuredOutputsParams(regex="a+")},
        {"extra_args": {"mine": 1}},
        {"max_tokens": 1},
        {"output_kind": RequestOutputKind.FINAL_ONLY},
        {"output_kind": RequestOutputKind.CUMULATIVE},
    ],
)
def test_all_others_wait_for_decodes(fields: dict[str, Any]) -> None:
    assert settings_for(streamed(**fields)) is None


def test_what_vllm_may_add_waits_for_decodes() -> None:
    asked = SimpleNamespace(
        **{name: getattr(streamed(), name) for name in SamplingParams.__struct_fields__}, invented=3
    )
    asked.__struct_fields__ = (*SamplingParams.__struct_fields__, "invented")
    assert settings_for(asked) is None
    asked.__struct_fields__ = SamplingParams.__struct_fields__
    assert settings_for(asked) is not None


@pytest.mark.parametrize(
    ("drafts", "is_hybrid", "alike"), [(None, False, True), ({}, False, False), (None, True, False)]
)
def test_models_of_whose_prompts_prefill_leaves_a_token_out_wait_for_decodes(
    drafts: Any, is_hybrid: bool, alike: bool
) -> None:
    model = SimpleNamespace(is_hybrid=is_hybrid)
    assert draws_alike(SimpleNamespace(speculative_config=drafts, model_config=model)) is alike


def test_where_nobody_asks_prefill_draws_any_token() -> None:
    assert prefill_params().temperature == 0.0
    assert prefill_params({"temperature": 0.5}).temperature == 0.5
    for params in (prefill_params(), prefill_params({"temperature": 0.5})):
        assert (params.extra_args or {})["kv_transfer_params"]["do_remote_decode"]


# What the client gets, and what is left to decode's engine


class Front:
    """vLLM's front end, its own output processor, and an engine that writes down what it is handed."""

    def __init__(self) -> None:
        vocabulary = {word: number for number, word in enumerate(WORDS)}
        words = Tokenizer(models.WordLevel(vocabulary, unk_token="<s>"))
        words.decoder = decoders.Fuse()
        tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")
        self.output_processor = OutputProcessor(tokenizer, log_stats=False)
        self.engine_core = self
        self.handed: list[EngineCoreRequest] = []

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        self.handed.append(request)

    def ask(self, first_tokens: FirstTokens, params: SamplingParams, **given: Any) -> list[RequestOutput]:
        """What a client has got once its request was handed to the engine."""
        params._eos_token_id = None if params.ignore_eos else EOS
        request = EngineCoreRequest("r-1", [THE, THE], None, params, None, 0.0, None, None, None)
        request.external_req_id = "ours"
        self.queue = RequestOutputCollector(RequestOutputKind.DELTA, "r-1")
        self.output_processor.add_request(request, "thethe", None, 0, self.queue)
        if given:
            with first_tokens.given("ours", **given):
                asyncio.run(self.engine_core.add_request_async(request))
        else:
            asyncio.run(self.engine_core.add_request_async(request))
        return self.got()

    def got(self) -> list[RequestOutput]:
        output = self.queue.get_nowait()
        return [] if output is None else [output]  # type: ignore[list-item]

    def engine_says(self, *tokens: int, reason: FinishReason | None = None) -> RequestOutput:
        self.output_processor.process_outputs([EngineCoreOutput("r-1", list(tokens), finish_reason=reason)])
        (output,) = self.got()
        return output


@pytest.fixture
def front() -> Front:
    return Front()


@pytest.fixture
def first_tokens(front: Front) -> FirstTokens:
    return FirstTokens(front)


def fetching(**fields: Any) -> SamplingParams:
    return streamed(**fields, extra_args={"kv_transfer_params": dict(PLACE)})


def test_the_client_gets_it_at_once_and_decode_goes_on_from_there(
    front: Front, first_tokens: FirstTokens
) -> None:
    (output,) = front.ask(first_tokens, fetching(min_tokens=3), token=RIVER, is_known=False)
    (each,) = output.outputs
    assert (each.text, list(each.token_ids), output.finished) == (" river", [RIVER], False)
    assert output.prompt_token_ids == [THE, THE]
    (handed,) = front.handed
    params = handed.params
    assert isinstance(params, SamplingParams)
    assert handed.prompt_token_ids == [THE, THE, RIVER]
    assert (params.max_tokens, params.min_tokens) == (7, 2)
    assert params.extra_args == {"kv_transfer_params": PLACE | {MARK: True}}
    last = front.engine_says(AND, reason=FinishReason.LENGTH)
    assert (last.outputs[0].text, last.outputs[0].finish_reason, last.finished) == (" and", "length", True)
    assert last.prompt_token_ids == [THE, THE]


def test_what_the_client_asked_stays_as_it_was(front: Front, first_tokens: FirstTokens) -> None:
    params = fetching(min_tokens=3)
    front.ask(first_tokens, params, token=RIVER, is_known=False)
    assert (params.max_tokens, params.min_tokens) == (8, 3)
    assert params.extra_args == {"kv_transfer_params": PLACE}


def test_a_client_that_has_it_already_does_not_get_it_twice(front: Front, first_tokens: FirstTokens) -> None:
    assert front.ask(first_tokens, streamed(), token=RIVER, is_known=True) == []
    assert front.handed[0].prompt_token_ids == [THE, THE, RIVER]
    assert front.engine_says(AND).outputs[0].text == " and"


@pytest.mark.parametrize(
    ("fields", "token", "word"),
    [({}, EOS, None), ({"stop_token_ids": [AND]}, AND, AND), ({"stop": ["river"]}, RIVER, "river")],
)
def test_an_answer_that_ends_with_it_never_reaches_the_engine(
    front: Front, first_tokens: FirstTokens, fields: dict[str, Any], token: int, word: int | str | None
) -> None:
    (output,) = front.ask(first_tokens, fetching(**fields), token=token, is_known=False)
    (each,) = output.outputs
    assert (each.finish_reason, each.stop_reason, output.finished) == ("stop", word, True)
    assert front.handed == []
    assert front.output_processor.request_states == {}


def test_a_client_that_wants_more_than_the_end_goes_on(front: Front, first_tokens: FirstTokens) -> None:
    (output,) = front.ask(first_tokens, fetching(ignore_eos=True), token=EOS, is_known=False)
    assert not output.finished
    assert len(front.handed) == 1


def test_other_requests_are_handed_on_as_they_are(front: Front, first_tokens: FirstTokens) -> None:
    params = fetching()
    assert front.ask(first_tokens, params) == []
    assert (front.handed[0].prompt_token_ids, front.handed[0].params) == ([THE, THE], params)


def test_a_request_that_does_not_come_is_not_waited_for(front: Front, first_tokens: FirstTokens) -> None:
    with first_tokens.given("ours", RIVER, is_known=False):
        pass
    front.ask(first_tokens, fetching())
    assert front.handed[0].prompt_token_ids == [THE, THE]


# What decode fetches


@pytest.mark.parametrize(
    ("computed", "marked", "fetched"),
    [(0, False, (33, True)), (0, True, (32, True)), (16, True, (16, True)), (32, True, (0, False))],
)
def test_of_a_prompt_that_ends_with_it_the_rest_is_fetched(
    computed: int, marked: bool, fetched: tuple[int, bool]
) -> None:
    scheduler: Any = object.__new__(FetchingScheduler)
    scheduler._has_mamba = False
    request = SimpleNamespace(
        request_id="r-1",
        prompt_token_ids=list(range(33)),
        num_prompt_tokens=33,
        kv_transfer_params=PLACE | ({MARK: True} if marked else {}),
    )
    assert scheduler.get_num_new_matched_tokens(request, computed) == fetched
