"""Shapes of requests that trip others: each is asked of the engine alone and of the split, and answered alike.

Every shape is greedy or seeded, so that the answer is the same each time.
"""

from typing import Any

Shape = tuple[str, str, dict[str, Any]]
"""A name, a route and a body (the model is put in)."""

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
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
BY_NAME = {"type": "function", "function": {"name": "weather"}}
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}


TURNS = [
    {"role": "system", "content": "Be brief."},
    *HELLO,
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "And of Italy?"},
]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
BEGUN = [*HELLO, {"role": "assistant", "content": "The capital is"}]
BRIEF = {"max_output_tokens": 8, "temperature": 0}
EACH_TIME = {"include_usage": True, "continuous_usage_stats": True}


def _chat(name: str, **body: Any) -> Shape:
    return f"chat: {name}", CHAT, {"messages": HELLO, "max_tokens": 12, "temperature": 0} | body


def _completion(name: str, **body: Any) -> Shape:
    return f"completion: {name}", COMPLETIONS, {"prompt": PARIS, "max_tokens": 8, "temperature": 0} | body


SHAPES: list[Shape] = [
    _chat("plain"),
    _chat("streamed", stream=True),
    _chat("streamed with usage", stream=True, stream_options={"include_usage": True}),
    _chat(
        "streamed, usage each time",
        stream=True,
        stream_options=EACH_TIME,
    ),
    _chat("logprobs", logprobs=True, top_logprobs=3),
    _chat("logprobs streamed", logprobs=True, top_logprobs=2, stream=True),
    _chat("prompt logprobs", prompt_logprobs=1),
    _chat("min_tokens", min_tokens=10),
    _chat("ignore_eos", ignore_eos=True, max_tokens=20),
    _chat("stop", stop=["Paris", "zzz"]),
    _chat("stop included", stop="Paris", include_stop_str_in_output=True),
    _chat("stop token ids", stop_token_ids=[28]),
    _chat("one token", max_tokens=1),
    _chat("max_completion_tokens", max_tokens=None, max_completion_tokens=5),
    _chat("without max_tokens", max_tokens=None, stop=["."]),
    _chat("max_tokens too large", max_tokens=10**7),
    _chat("max_tokens 0", max_tokens=0),
    _chat("negative temperature", temperature=-1),
    _chat("several, seeded", n=3, temperature=0.8, seed=7),
    _chat("several, streamed and seeded", n=2, temperature=0.8, seed=7, stream=True),
    _chat("n 0", n=0),
    _chat("seeded", temperature=0.9, top_p=0.8, top_k=20, seed=3),
    _chat("penalties", presence_penalty=1.5, frequency_penalty=0.5, repetition_penalty=1.2),
    _chat("logit bias", logit_bias={"2683": -100}),
    _chat("bad words", bad_words=["Paris"]),
    _chat("allowed tokens", allowed_token_ids=[28, 30, 198, 216, 504], max_tokens=4),
    _chat("json object", response_format={"type": "json_object"}, max_tokens=24),
    _chat(
        "json schema",
        response_format=_schema(PERSON),
        max_tokens=24,
    ),
    _chat(
        "json schema that is none",
        response_format=_schema({"type": "bogus"}),
    ),
    _chat("regex", structured_outputs={"regex": "[0-9]{3}-[0-9]{2}"}),
    _chat("choice", structured_outputs={"choice": ["red", "green"]}),
    _chat("grammar that is none", structured_outputs={"regex": "("}),
    _chat("tools, none wanted", tools=[WEATHER], tool_choice="none"),
    _chat(
        "tools, a named one",
        tools=[WEATHER],
        tool_choice=BY_NAME,
        max_tokens=32,
    ),
    _chat("tools, required", tools=[WEATHER], tool_choice="required", max_tokens=32),
    _chat("tools, auto", tools=[WEATHER], tool_choice="auto"),
    _chat(
        "system and several turns",
        messages=[
            {"role": "system", "content": "Be brief."},
            *HELLO,
            {"role": "assistant", "content": "Paris."},
            {"role": "user", "content": "And of Italy?"},
        ],
    ),
    _chat(
        "content in parts",
        messages=[
            {
                "role": "user",
                "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}],
            }
        ],
    ),
    _chat(
        "an image",
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
                ],
            }
        ],
    ),
    _chat(
        "continue the last message",
        messages=[*HELLO, {"role": "assistant", "content": "The capital is"}],
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    _chat("no messages", messages=[]),
    _chat("a role that is none", messages=[{"role": "nobody", "content": "x"}]),
    _chat("truncated prompt", truncate_prompt_tokens=6),
    _chat("echo", echo=True, messages=[*HELLO, {"role": "assistant", "content": "It is"}]),
    _chat("token ids returned", return_token_ids=True),
    _chat("cache salt", cache_salt="a"),
    _chat("priority", priority=1),
    _chat("skip special tokens off", skip_special_tokens=False),
    _chat("max_tokens as text", max_tokens="many"),
    _completion("plain"),
    _completion("streamed", stream=True),
    _completion("several prompts", prompt=[PARIS, "Two plus two is", "def f(x):"]),
    _completion("several prompts streamed", prompt=[PARIS, "Two plus two is"], stream=True),
    _completion("token ids", prompt=[504, 3575, 282, 4649, 314]),
    _completion("lists of token ids", prompt=[[504, 3575], [1, 2, 3]]),
    _completion("one token of prompt", prompt=[504]),
    _completion("a token that is none", prompt=[99999999]),
    _completion("empty prompt", prompt=""),
    _completion("no prompt", prompt=[]),
    _completion("echo", echo=True),
    _completion("echo without an answer", echo=True, max_tokens=0),
    _completion("echo with logprobs", echo=True, logprobs=2),
    _completion("logprobs", logprobs=3),
    _completion("prompt logprobs", prompt_logprobs=0),
    _completion("suffix", suffix="!"),
    _completion("several of several, seeded", prompt=[PARIS, "Once"], n=2, temperature=0.9, seed=1),
    _completion("beams", use_beam_search=True, n=2, max_tokens=4),
    _completion("stop at once", stop=[" Paris"]),
    _completion("prompt as long as the context", prompt=[504] * 8192),
    _completion("prompt longer than the context", prompt=[504] * 8200),
    *[
        _completion(f"{n} tokens of prompt", prompt=[504 + i % 900 for i in range(n)], max_tokens=4)
        for n in (127, 128, 129, 255, 256, 257)
    ],
    ("responses: plain", RESPONSES, {"input": "Say hi."} | BRIEF),
    (
        "responses: streamed",
        RESPONSES,
        {"input": "Say hi.", "stream": True} | BRIEF,
    ),
    (
        "responses: with instructions",
        RESPONSES,
        {"input": HELLO, "instructions": "Be brief.", "max_output_tokens": 8, "temperature": 0},
    ),
    ("responses: of nothing", RESPONSES, {"max_output_tokens": 8}),
    ("messages: plain", MESSAGES, {"messages": HELLO, "max_tokens": 8, "temperature": 0}),
    ("messages: streamed", MESSAGES, {"messages": HELLO, "max_tokens": 8, "temperature": 0, "stream": True}),
    (
        "messages: system",
        MESSAGES,
        {"messages": HELLO, "system": "Be brief.", "max_tokens": 8, "temperature": 0},
    ),
    ("messages: without max_tokens", MESSAGES, {"messages": HELLO}),
    ("messages: counted", "/v1/messages/count_tokens", {"messages": HELLO}),
    ("tokenize: text", "/tokenize", {"prompt": PARIS, "return_token_strs": True}),
    ("tokenize: messages", "/tokenize", {"messages": HELLO}),
    ("detokenize", "/detokenize", {"tokens": [504, 3575]}),
    ("a model that is none", CHAT, {"model": "nobody", "messages": HELLO, "max_tokens": 2}),
]
