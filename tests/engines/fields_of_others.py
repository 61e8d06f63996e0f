"""Rows for the fields of responses, messages, and what counts and makes tokens; and all request models together."""

from engines.fields import (
    CALLED,
    CHAT,
    CLOCK,
    COMPLETION,
    HELLO,
    INT64,
    PARIS,
    PERSON,
    PICTURE,
    RANDOM,
    STOPS,
    STRUCTURED,
    SWITCH,
    TRANSFER,
    WEATHER,
)
from engines.rows import ABSENT, Field, Model, sent

FUNCTION = {"type": "function", "name": "weather", "parameters": WEATHER["function"]["parameters"]}
ASKED = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}
TOLD = {"type": "function_call_output", "call_id": "c", "output": "Sunny."}
TEXT = {"type": "json_schema", "name": "p", "schema": PERSON}

RESPONSES = Model(
    "ResponsesRequest",
    "/v1/responses",
    {"input": "Say hi.", "max_output_tokens": 6, "temperature": 0},
    {
        "background": sent(True, False, None, "maybe") + sent(True, store=False),
        "cache_salt": sent("salt", "", 1),
        "chat_template_kwargs": sent(
            {"enable_thinking": False}, {"chat_template": "{{ messages }}"}, {}, "a"
        ),
        "ec_transfer_params": TRANSFER,
        "enable_response_messages": SWITCH,
        "frequency_penalty": sent(0.5, -2.0, 2.5, None),
        "ignore_eos": sent(True, max_output_tokens=20) + SWITCH,
        "include": sent(["message.output_text.logprobs"], top_logprobs=2)
        + sent(["message.output_text.logprobs"], top_logprobs=2, stream=True)
        + sent(["reasoning.encrypted_content"], [], ["bogus"]),
        "include_reasoning": sent(False, None),
        "include_stop_str_in_output": sent(True, stop=["!", "."]) + SWITCH,
        "input": sent(
            "",
            HELLO,
            [{"role": "user", "content": [{"type": "input_text", "text": "Say hi."}]}],
            [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,", "detail": "auto"}]}],
            [*HELLO, {"role": "assistant", "content": "Paris."}, *HELLO],
            [*HELLO, ASKED, TOLD],
            [{"type": "bogus"}],
            [],
            ["Hi"],
            None,
            ABSENT,
        ),
        "instructions": sent("Be brief.", "", 1),
        "kv_transfer_params": TRANSFER,
        "logit_bias": sent({"2683": -100}, {"99999999": 1}, {"word": 1}, {}),
        "max_output_tokens": sent(1, 0, -1, 10**7, INT64, "many") + sent(None, stop=["."]),
        "max_tool_calls": sent(1, 0, "a"),
        "media_io_kwargs": sent({"image": {"a": 1}}, "a"),
        "metadata": sent({"a": "b"}, {}, {"a": 1}),
        "mm_processor_kwargs": sent({"a": 1}, "a"),
        "model": sent("nobody", "", None, ABSENT, 1),
        "parallel_tool_calls": sent(False, None, "maybe", tools=[FUNCTION], max_output_tokens=16),
        "presence_penalty": sent(1.5, -2.0, 2.5, None),
        "previous_input_messages": sent([], HELLO, "a"),
        "previous_response_id": sent("resp_unknown", "bogus", "", 1),
        "priority": sent(0, 1, -1, INT64),
        "prompt": sent({"id": "pmpt_1"}, {"id": "pmpt_1", "variables": {"a": "b"}}, "a"),
        "prompt_cache_key": sent("key", 1),
        "reasoning": sent({"effort": "low"}, {"effort": "none"}, {"effort": "bogus"}, {}),
        "repetition_penalty": sent(1.3, 0.0, -1.0),
        "request_id": sent("resp_mine", "mine", "", "a/b c", 1),
        "seed": sent(3, temperature=0.9) + sent(INT64, "one"),
        "service_tier": sent("auto", "flex", "bogus"),
        "session_id": sent("conversation", 1, since="0.29"),
        "skip_special_tokens": sent(False, max_output_tokens=12) + SWITCH,
        "stop": STOPS,
        "store": sent(False, None, "maybe"),
        "stream": sent(True, None, "maybe"),
        "structured_outputs": STRUCTURED,
        "temperature": sent(0.8, 2.0, seed=7) + sent(-1, "warm"),
        "text": sent({"format": TEXT}, {"format": {"type": "json_object"}}, max_output_tokens=16)
        + sent({"format": {"type": "text"}}, {"verbosity": "low"}, {"format": {"type": "bogus"}}, {}, "a")
        + sent({"format": TEXT}, structured_outputs={"json": PERSON}),
        "tool_choice": sent("none", "auto", {"type": "function", "name": "nobody"}, "bogus", tools=[FUNCTION])
        + sent("required", {"type": "function", "name": "weather"}, tools=[FUNCTION], max_output_tokens=32)
        + sent("required", tools=[FUNCTION], max_output_tokens=32, stream=True)
        + sent("required"),
        "tools": sent([FUNCTION], [], [{"type": "bogus"}], [WEATHER], "weather"),
        "top_k": sent(1, 20, **RANDOM) + sent(-2, 1.5),
        "top_logprobs": sent(0, 2, 21, -1),
        "top_p": sent(0.3, **RANDOM) + sent(0, 1.1),
        "truncation": sent("auto", "disabled", None, "bogus"),
        "user": sent("somebody", 1),
        "vllm_xargs": sent({"a": "b", "c": [1]}, {}, {"a": {"b": 1}}),
    },
)

TOOL = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
    "defer_loading": False,
}
CITY = {"city": "Rome"}
USED = {"type": "tool_use", "id": "call_1", "name": "weather", "input": CITY}
RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": "Sunny.", "is_error": False}
PARTS_RESULT = RESULT | {"content": [{"type": "text", "text": "Sunny."}]}
THOUGHT = {"type": "thinking", "thinking": "Easy.", "signature": "s"}
HIDDEN = {"type": "redacted_thinking", "data": "s"}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
# Every field that a block may have, in a block of text: the others are not for this kind.
FULL = (
    USED | RESULT | THOUGHT | HIDDEN | {"type": "text", "text": "Hi.", "source": {}, "tool_name": "weather"}
)

PROMPT: dict[str, Field] = {
    "model": sent("nobody", "", None, ABSENT, 1),
    "messages": sent(
        [{"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]}],
        [*HELLO, {"role": "assistant", "content": [USED]}, {"role": "user", "content": [RESULT]}],
        [
            *HELLO,
            {"role": "assistant", "content": [THOUGHT, USED]},
            {"role": "user", "content": [PARTS_RESULT]},
        ],
        [*HELLO, {"role": "assistant", "content": [HIDDEN, {"type": "text", "text": "Hm."}]}, *HELLO],
        [{"role": "user", "content": [FULL]}],
        [{"role": "user", "content": [{"type": "tool_reference", "tool_name": "weather"}]}],
        [{"role": "user", "content": [PNG]}],
        [{"role": "user", "content": [{"type": "bogus"}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [*HELLO, {"role": "assistant", "content": "The capital is"}],
        [{"role": "system", "content": "Be brief."}, *HELLO],
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": None}],
        [{"role": "nobody", "content": "x"}],
        [{"role": "user", "content": [PICTURE]}],
        CALLED,
        [],
        "Hi",
        None,
        ABSENT,
    ),
    "system": sent("Be brief.", [{"type": "text", "text": "Be brief."}], [FULL], [], "", 1),
    "tools": sent([TOOL], [], [WEATHER], [CLOCK], [{"name": "weather"}], [TOOL | {"input_schema": 1}], None),
    "tool_choice": sent(
        {"type": "auto"},
        {"type": "any"},
        {"type": "any", "disable_parallel_tool_use": True},
        {"type": "tool", "name": "weather"},
        {"type": "tool", "name": "nobody"},
        {"type": "tool"},
        {"type": "none"},
        {"type": "bogus"},
        "auto",
        tools=[TOOL],
    )
    + sent({"type": "any"}, {"type": "none"}),
    "chat_template_kwargs": sent({"enable_thinking": False}, {"chat_template": "{{ messages }}"}, {}, "a"),
}

MESSAGES = Model(
    "AnthropicMessagesRequest",
    "/v1/messages",
    {"messages": HELLO, "max_tokens": 6, "temperature": 0},
    PROMPT
    | {
        "max_tokens": sent(1, 0, -1, 10**7, INT64, "many", None, ABSENT),
        "metadata": sent({"user_id": "u"}, {}, "a"),
        "output_config": sent({"effort": "low", "format": TEXT}, {"format": TEXT}, max_tokens=16)
        + sent(
            {"effort": "bogus"}, {"format": {"type": "json_schema"}}, {"format": {"type": "bogus"}}, {}, "a"
        ),
        "stop_sequences": sent([" Paris"], ["Paris", "zzz"], [], [""], None, "Paris", [1], ["a"] * 40)
        + sent([" Paris"], stream=True),
        "stream": sent(True, None, "maybe")
        + sent(True, tools=[TOOL], tool_choice={"type": "any"}, max_tokens=32),
        "temperature": sent(0, -1, "warm"),
        "top_k": sent(1, -2, 1.5),
        "top_p": sent(0.3, 0, 1.1),
        "cache_salt": sent("salt", "", 1, since="0.29"),
        "kv_transfer_params": TRANSFER,
        "ec_transfer_params": TRANSFER,
        "vllm_xargs": sent({"a": "b"}, {"a": {"b": 1}}, since="0.29"),
    },
)
COUNT = Model("AnthropicCountTokensRequest", "/v1/messages/count_tokens", {"messages": HELLO}, PROMPT)

TOKENIZER: dict[str, Field] = {
    "model": sent("nobody", "", None, ABSENT, 1),
    "add_special_tokens": sent(True, False, None),
    "return_token_strs": SWITCH,
}
TOKENIZE = Model(
    "TokenizeCompletionRequest",
    "/tokenize",
    {"prompt": PARIS},
    TOKENIZER | {"prompt": sent("", "\u0000<|im_end|>😀 人工", [PARIS], [504], None, ABSENT, 1)},
)
TOKENIZE_CHAT = Model(
    "TokenizeChatRequest",
    "/tokenize",
    {"messages": HELLO},
    TOKENIZER
    | {
        "messages": CHAT.fields["messages"],
        "add_generation_prompt": sent(False, None),
        "continue_final_message": sent(True, add_generation_prompt=False) + sent(True),
        "chat_template": CHAT.fields["chat_template"],
        "chat_template_kwargs": CHAT.fields["chat_template_kwargs"],
        "media_io_kwargs": CHAT.fields["media_io_kwargs"],
        "mm_processor_kwargs": CHAT.fields["mm_processor_kwargs"],
        "tools": sent([WEATHER, CLOCK], [], None, [{"type": "bogus"}], "weather"),
    },
)
DETOKENIZE = Model(
    "DetokenizeRequest",
    "/detokenize",
    {"tokens": [504, 3575]},
    {
        "model": sent("nobody", "", None, ABSENT, 1),
        "tokens": sent([], [504], [-1], [99999999], [INT64 - 1], [INT64], ["a"], [1.5], "504", None, ABSENT),
    },
)

MODELS = (CHAT, COMPLETION, RESPONSES, MESSAGES, COUNT, TOKENIZE, TOKENIZE_CHAT, DETOKENIZE)
