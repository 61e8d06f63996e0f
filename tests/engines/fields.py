"""Rows for the fields of chat completions and completions, vLLM's largest request models.

Every row is greedy or seeded, so that the same engine gives the same answer each time.
"""

from typing import Any

from engines.rows import ABSENT, Field, Model, sent, unsent

HELLO = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK = {
    "type": "function",
    "defer_loading": False,
    "function": {"name": "clock", "parameters": {}, "strict": True, "defer_loading": False},
}
BY_NAME = {"type": "function", "function": {"name": "weather"}}
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
CALLED = [
    *HELLO,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
]
OBJECT_TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<p>",
        "content": {"type": "json_schema", "json_schema": PERSON},
        "end": "</p>",
    },
}
LEGACY_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<p>", "schema": PERSON, "end": "</p>"}],
    "triggers": ["<p>"],
}
TAG_TEXT = '{"type": "structural_tag", "format": {"type": "const_string", "value": "yes"}}'
GRAMMAR = 'root ::= "yes" | "no"'
INT64 = 2**63

TRANSFER = unsent("set by the server: the front refuses it, as test_access and tests/serving show")
RANDOM = {"temperature": 0.9, "seed": 7}


def _schema(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "p", "schema": schema, **more}}


SWITCH = sent(True, None, "maybe")
STRUCTURED = (
    sent(
        {"json": PERSON},
        {"json": '{"type": "integer"}'},
        {"json": {"type": "bogus"}},
        {"json": "{"},
        max_tokens=16,
    )
    + sent({"regex": "[0-9]{3}-[0-9]{2}"}, {"regex": "("}, {"regex": ""}, {"choice": ["red", "green"]})
    + sent(
        {"choice": []}, {"grammar": GRAMMAR}, {"grammar": "root ::="}, {"json_object": True}, max_tokens=12
    )
    + sent(
        {"json": PERSON, "disable_any_whitespace": True, "disable_additional_properties": True}, max_tokens=16
    )
    + sent({"json": PERSON, "whitespace_pattern": " "}, {"structural_tag": TAG_TEXT}, {"structural_tag": "x"})
    + sent(
        {"regex": "a", "choice": ["b"]}, {"grammar": GRAMMAR, "json_object": True}, {}, {"bogus": 1}, "json"
    )
    + sent({"choice": ["red", "green"]}, stream=True)
)
FORMATS = (
    sent(
        {"type": "text"},
        {"type": "json_object"},
        _schema(PERSON, description="A person", strict=True),
        max_tokens=16,
    )
    + sent(
        _schema({"type": "bogus"}),
        {"type": "json_schema"},
        OBJECT_TAG,
        LEGACY_TAG,
        {"type": "bogus"},
        max_tokens=16,
    )
    + sent(
        {"type": "structural_tag", "format": {"type": "bogus"}}, _schema({"$ref": "#/nowhere"}), "json_object"
    )
    + sent(_schema(PERSON), stream=True, max_tokens=16)
)
STOPS = (
    sent("Paris", ["Paris", "zzz"], ["is Paris"], [" ", "."], ".", [], None, "", [""], [1], ["a"] * 40)
    + sent("Paris", include_stop_str_in_output=True)
    + sent("Paris", stream=True)
    + sent(" Paris", min_tokens=5)
)
REPEATS = {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 2}

SAMPLING: dict[str, Field] = {
    "frequency_penalty": sent(0.5, -2.0, 2.5, None),
    "presence_penalty": sent(1.5, -2.0, -2.5, None),
    "repetition_penalty": sent(1.3, 0.5, 0.0, -1.0),
    "logit_bias": sent(
        {"2683": -100}, {"28": 100}, {"2683": 101}, {"word": 1}, {"99999999": 1}, {"-1": 1}, {}
    ),
    "max_tokens": sent(1, 0, -1, 10**7, INT64, "many", 2.5) + sent(None, ABSENT, stop=["."]),
    "n": sent(2, 3, **RANDOM) + sent(2, stream=True, **RANDOM) + sent(2, 0, -1, None, 10**9),
    "seed": sent(3, -INT64, INT64 - 1, temperature=0.9) + sent(INT64, "one", 1.5),
    "stop": STOPS,
    "stream": sent(True, False, None, "maybe"),
    "stream_options": sent(
        {"include_usage": True},
        {"include_usage": False, "continuous_usage_stats": True},
        {"include_usage": True, "continuous_usage_stats": True},
        {"include_usage": "maybe"},
        None,
        stream=True,
    )
    + sent({"include_usage": True}),
    "temperature": sent(0.01, 0.8, 2.0, 1e-9, seed=7) + sent(0, -1, 10**6, "warm"),
    "top_p": sent(0.3, 1, **RANDOM) + sent(0, 1.1, -1),
    "top_k": sent(1, 20, -1, 0, 10**6, **RANDOM) + sent(-2, 1.5),
    "min_p": sent(0.2, 0, **RANDOM) + sent(-0.1, 1.1),
    "user": sent("somebody", "", 1),
    "use_beam_search": sent(True, n=2, max_tokens=4)
    + sent(True, n=2, max_tokens=3, stream=True)
    + sent("maybe"),
    "length_penalty": sent(0.5, -1.0, use_beam_search=True, n=2, max_tokens=3) + sent(0.5, "long"),
    "stop_token_ids": sent([28], [7042, 28], [], None, [-1], [99999999], ["a"])
    + sent([7042], include_stop_str_in_output=True, skip_special_tokens=False),
    "include_stop_str_in_output": sent(True, stop=[" Paris", "Paris"]) + SWITCH,
    "ignore_eos": sent(True, max_tokens=20) + SWITCH,
    "min_tokens": sent(5, 6, stop=["."]) + sent(7, -1, "few"),
    "skip_special_tokens": sent(False, max_tokens=12) + SWITCH,
    "spaces_between_special_tokens": sent(False, skip_special_tokens=False, max_tokens=12) + SWITCH,
    "truncate_prompt_tokens": sent(3, 1, 0, -1, -2, 8192, 10**6),
    "truncation_side": sent("left", "right", "both", truncate_prompt_tokens=3) + sent("left", None),
    "prompt_logprobs": sent(0, 1, 3, -1, -2, 10**6) + sent(1, stream=True),
    "logprob_token_ids": sent([28, 30], [], [99999999], [-1], logprobs=1) + sent([28]),
    "allowed_token_ids": sent([28, 30, 198], [], [99999999], [-1]),
    "bad_words": sent(["Paris"], ["Paris", " Paris"], [], [""], None, [1]),
    "echo": sent(True, max_tokens=3) + sent(True, stream=True) + sent(True, max_tokens=0) + SWITCH,
    "add_special_tokens": sent(True, False, None),
    "response_format": FORMATS,
    "structured_outputs": STRUCTURED,
    "priority": sent(0, 1, -1, INT64, "high"),
    "request_id": sent("mine", "", "a/b c", "Grüße", "x" * 300, "-0123456789abcdef-beam-0", 1),
    "session_id": sent("conversation", "", 1, since="0.29"),
    "return_tokens_as_token_ids": sent(True, logprobs=2) + SWITCH,
    "return_token_ids": sent(True, stream=True) + SWITCH,
    "routed_experts_prompt_start": sent(0, 1, -1, since="0.29"),
    "return_token_offsets": SWITCH,
    "cache_salt": sent("salt", "Grüße", "", "x" * 1025, 1),
    "kv_transfer_params": TRANSFER,
    "ec_transfer_params": TRANSFER,
    "vllm_xargs": sent({"a": "b", "c": 1, "d": [1, 2.5]}, {}, None, {"a": {"b": 1}}, "a"),
    "repetition_detection": sent(REPEATS, ignore_eos=True, max_tokens=24)
    + sent({"max_pattern_size": 2, "min_count": 1}, {"max_pattern_size": -1}, {}, "a"),
    "stream_interval": sent(3, 1, 0, stream=True, since="0.29") + sent(3),
    "thinking_token_budget": sent(5, -1, 0, -2, None, "a"),
}

CHAT = Model(
    "ChatCompletionRequest",
    "/v1/chat/completions",
    {"messages": HELLO, "max_tokens": 6, "temperature": 0},
    SAMPLING
    | {
        "messages": sent(
            [{"role": "system", "content": "Be brief."}, *HELLO],
            [{"role": "developer", "content": "Be brief."}, *HELLO],
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}],
                }
            ],
            [{"role": "user", "content": [PICTURE]}],
            [{"role": "user", "content": "Hi", "name": "Ada"}],
            [{"role": "user", "content": ""}],
            [{"role": "user", "content": None}],
            [{"role": "user"}],
            [{"role": "user", "content": "\u0000<|im_end|>😀 人工"}],
            [*HELLO, {"role": "assistant", "content": "Paris.", "reasoning_content": "Easy."}, *HELLO],
            CALLED,
            [{"role": "nobody", "content": "x"}],
            [{"content": "x"}],
            [],
            ["Hi"],
            "Hi",
            None,
            ABSENT,
        ),
        "model": sent("nobody", "", None, ABSENT, 1),
        "logprobs": sent(True, top_logprobs=2)
        + sent(True, stream=True)
        + sent(True, top_logprobs=0)
        + SWITCH,
        "top_logprobs": sent(3, 20, 21, 0, -1, -2, logprobs=True) + sent(2),
        "logprob_token_ids": sent([28, 30], [], [99999999], [-1], logprobs=True) + sent([28]),
        "return_tokens_as_token_ids": sent(True, logprobs=True, top_logprobs=2) + SWITCH,
        "max_completion_tokens": sent(3, 0, -1, 10**7) + sent(3, max_tokens=ABSENT),
        "tools": sent([WEATHER, CLOCK], tool_choice="required", max_tokens=32)
        + sent([WEATHER], tool_choice=BY_NAME, max_tokens=24)
        + sent([WEATHER], tool_choice=BY_NAME, max_tokens=24, stream=True)
        + sent([WEATHER], tool_choice="required", max_tokens=32, stream=True)
        + sent([WEATHER], [], None, [{"type": "function"}], [{"type": "bogus"}], "weather"),
        "tool_choice": sent(
            "none",
            "auto",
            "required",
            BY_NAME,
            {"type": "function", "function": {"name": "nobody"}},
            "bogus",
            tools=[WEATHER],
            max_tokens=24,
        )
        + sent("none", "auto", "required", BY_NAME, None),
        "parallel_tool_calls": sent(
            True, False, None, tools=[WEATHER, CLOCK], tool_choice="required", max_tokens=48
        )
        + sent("maybe"),
        "reasoning_effort": sent("none", "low", "max", None, "bogus"),
        "include_reasoning": sent(False, None),
        "add_generation_prompt": sent(False, None),
        "continue_final_message": sent(
            True,
            messages=[*HELLO, {"role": "assistant", "content": "The capital is"}],
            add_generation_prompt=False,
        )
        + sent(True),
        "echo": sent(True, messages=[*HELLO, {"role": "assistant", "content": "It is"}]) + SWITCH,
        "documents": sent([{"title": "Paris", "text": "A city."}], [], [{"title": 1}]),
        "chat_template": sent("{{ messages[0].content }}", "{{", ""),
        "chat_template_kwargs": sent(
            {"enable_thinking": False},
            {"add_generation_prompt": False},
            {"chat_template": "{{ messages }}"},
            {"tokenize": False},
            {"messages": []},
            {},
            "a",
        ),
        "media_io_kwargs": sent({"image": {"a": 1}}, {}, "a"),
        "mm_processor_kwargs": sent({"a": 1}, {}, "a"),
        "return_prompt_text": sent(True, stream=True) + SWITCH,
        "return_assistant_tokens_mask": SWITCH,
    },
)

COMPLETION = Model(
    "CompletionRequest",
    "/v1/completions",
    {"prompt": PARIS, "max_tokens": 6, "temperature": 0},
    SAMPLING
    | {
        "model": sent("nobody", "", None, ABSENT, 1),
        "prompt": sent(
            "Hello",
            "",
            " ",
            [PARIS, "Two plus two is"],
            [504],
            [504, 3575, 282],
            [[504, 3575], [28]],
            [[]],
            [],
            [PARIS, 504],
            [-1],
            [99999999],
            [INT64],
            "\u0000<|im_end|>😀 人工",
            None,
            ABSENT,
            1,
            {"text": "Hello"},
        )
        + sent([PARIS, "Two plus two is"], stream=True)
        + sent([PARIS, "Two plus two is"], n=2, **RANDOM),
        "echo": sent(True, max_tokens=3)
        + sent(True, stream=True)
        + sent(True, max_tokens=0)
        + sent(True, logprobs=2)
        + sent(True, logprobs=2, max_tokens=0)
        + sent(True, logprobs=2, stream=True)
        + sent(True, prompt=[504, 3575, 282])
        + SWITCH,
        "logprobs": sent(0, 1, 5, 20, 21, -1, -2, True, "a") + sent(2, stream=True),
        "suffix": sent("!", "", 1),
        "prompt_embeds": sent("AAAA", "", ["AAAA"], prompt=ABSENT) + sent("AAAA"),
    },
)
