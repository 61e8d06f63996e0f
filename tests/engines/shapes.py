"""Requests made by hand: what trips others, and no single field says. The fields' own rows are in `fields.py`."""

from typing import Any

from engines.fields import CHAT, CLOCK, COMPLETION, HELLO, PARIS, PERSON, WEATHER
from engines.fields_of_others import COUNT, FUNCTION, MESSAGES, RESPONSES, TOOL
from engines.rows import Model, Shape

BLOCK_TOKENS, CONTEXT_TOKENS = 128, 8192
NAMED = {"type": "function", "function": {"name": "weather"}}
TURNS = [*HELLO, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "And of Italy?"}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}


def _shape(model: Model, name: str, **body: Any) -> Shape:
    return Shape(f"{model.route}: {name}", model.route, model.base | body)


def _chat(name: str, **body: Any) -> Shape:
    return _shape(CHAT, name, **{"max_tokens": 12} | body)


def _completion(name: str, **body: Any) -> Shape:
    return _shape(COMPLETION, name, **{"max_tokens": 8} | body)


def _tokens(count: int, seed: int = 0) -> list[int]:
    """So many tokens that look like none of another seed's."""
    return [1000 + (i * 37 + seed * 7919) % 30000 for i in range(count)]


LENGTHS = [
    _completion(f"{n} tokens of prompt", prompt=_tokens(n, seed=n), max_tokens=4)
    for blocks in (1, 2, 3)
    for n in (blocks * BLOCK_TOKENS - 1, blocks * BLOCK_TOKENS, blocks * BLOCK_TOKENS + 1)
]
PREFIXES = [
    _completion(f"{shared} tokens shared, then {more} of its own", prompt=_tokens(shared) + _tokens(more, 5))
    for shared in (BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 3 * BLOCK_TOKENS)
    for more in (1, 20, BLOCK_TOKENS)
]
CONTEXT = [
    _completion(f"{prompt} tokens of prompt and {most} of answer", prompt=_tokens(prompt, 9), max_tokens=most)
    for prompt, most in (
        (CONTEXT_TOKENS - 1, 1),
        (CONTEXT_TOKENS - 4, 4),
        (CONTEXT_TOKENS - 4, 5),
        (CONTEXT_TOKENS, 1),
        (CONTEXT_TOKENS + 8, 1),
    )
] + [
    _completion("a prompt of the context and no answer", prompt=_tokens(CONTEXT_TOKENS, 9), max_tokens=0),
    _completion("a prompt too long, cut", prompt=_tokens(CONTEXT_TOKENS + 8), truncate_prompt_tokens=100),
    _chat("no limit to the answer", max_tokens=None, stop=["."], messages=TURNS),
]

GENERATION = [
    _chat("plain"),
    _chat("several turns", messages=[{"role": "system", "content": "Be brief."}, *TURNS]),
    _chat(
        "everything at once",
        stream=True,
        n=2,
        temperature=0.8,
        seed=7,
        logprobs=True,
        top_logprobs=2,
        stop=["."],
    ),
    _chat("sampled", temperature=0.9, top_p=0.8, top_k=20, min_p=0.01, seed=3),
    _chat("penalties", presence_penalty=1.5, frequency_penalty=0.5, repetition_penalty=1.2, max_tokens=24),
    _chat("penalties, sampled and seeded", repetition_penalty=1.2, temperature=1.0, seed=11, max_tokens=24),
    _chat("logprobs of a long answer", logprobs=True, top_logprobs=3, max_tokens=40, ignore_eos=True),
    _chat("prompt logprobs and several", prompt_logprobs=1, n=2, temperature=0.7, seed=1),
    _chat("stop, min_tokens and logprobs", stop=["Paris"], min_tokens=8, logprobs=True),
    _chat("a format and logprobs", response_format=FORMAT, logprobs=True, max_tokens=24),
    _chat("a format, streamed, several", response_format=FORMAT, n=2, stream=True, seed=2, max_tokens=24),
    _chat("a format and tools", response_format=FORMAT, tools=[WEATHER], tool_choice="auto", max_tokens=16),
    _chat("tools, several answers", tools=[WEATHER], tool_choice=NAMED, n=2, seed=4, max_tokens=24),
    _chat("tools, logprobs", tools=[WEATHER, CLOCK], tool_choice="required", logprobs=True, max_tokens=40),
    _chat("tools, token ids", tools=[WEATHER], tool_choice="required", return_token_ids=True, max_tokens=24),
    _chat(
        "tools, streamed usage",
        tools=[WEATHER],
        tool_choice=NAMED,
        stream=True,
        stream_options={"include_usage": True},
    ),
    _completion("plain"),
    _completion("three prompts streamed", prompt=[PARIS, "Two plus two is", "def f(x):"], stream=True),
    _completion("the same prompt twice", prompt=[PARIS, PARIS]),
    _completion(
        "prompts of very different lengths", prompt=[_tokens(1), _tokens(300), _tokens(40, 3)], max_tokens=4
    ),
    _completion("several of several", prompt=[PARIS, "Once"], n=2, temperature=0.9, seed=1),
    _completion("echo of several with logprobs", prompt=[PARIS, "Once"], echo=True, logprobs=2),
    _completion("beams, echo", use_beam_search=True, n=2, max_tokens=4, echo=True),
    _completion("one token, logprobs and ids", max_tokens=1, logprobs=5, return_token_ids=True),
    _completion("a salted prompt of blocks", prompt=_tokens(300, 2), cache_salt="salt"),
    _completion("the same, another salt", prompt=_tokens(300, 2), cache_salt="pepper"),
    _shape(RESPONSES, "with instructions and turns", input=TURNS, instructions="Be brief."),
    _shape(RESPONSES, "a tool, streamed", tools=[FUNCTION], tool_choice="auto", stream=True),
    _shape(MESSAGES, "system and turns, streamed", messages=TURNS, system="Be brief.", stream=True),
    _shape(MESSAGES, "a tool that must be used", tools=[TOOL], tool_choice={"type": "any"}, max_tokens=32),
    _shape(COUNT, "system, tools and turns", messages=TURNS, system="Be brief.", tools=[TOOL]),
]

ASKED_FOR = [
    Shape("models", "/v1/models", None),
    Shape("a model that is none", "/v1/models/nobody", None),
    Shape("a response that is none", "/v1/responses/resp_none", None),
]

SHAPES = GENERATION + LENGTHS + PREFIXES + CONTEXT + ASKED_FOR
