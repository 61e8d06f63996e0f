"""Requests for the fuzzer: bodies out of the fields' rows, with junk put in anywhere; and what is no JSON at all."""

import copy
import json
from typing import Any

from hypothesis import strategies as st

from engines.rows import ABSENT, Body, Model

MOST_TOKENS = 4
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_CONTEXT_TOKENS = 8192

HUGE = (2**31, 2**32, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, -(10**30), 1e308, -1e308)
ODD = (float("nan"), float("inf"), float("-inf"), -0.0, 5e-324)
WORDS = (
    "",
    " ",
    "\0",
    "null",
    "true",
    "1",
    "-1",
    "1e9",
    "😀" * 3,
    "é̂",
    "\u202e",
    "\ud800",
    "{{ 1/0 }}",
    "<|im_end|>",
    "../..",
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.floats(-2.0, 2.0),
    st.sampled_from(HUGE),
    st.sampled_from(ODD),
    st.sampled_from(WORDS),
    st.text(max_size=12),
)
JUNK = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def bodies(draw: st.DrawFn, model: Model) -> Body:
    """A plain body in which up to three fields hold something else: a row's value, junk, or a value with junk in it."""
    body = copy.deepcopy(model.base)
    for name in draw(st.lists(st.sampled_from(sorted(model.fields)), min_size=1, max_size=3, unique=True)):
        values = model.fields[name].values
        if not values or draw(st.integers(0, 7)) == 0:
            body[name] = draw(JUNK)
            continue
        value, beside = copy.deepcopy(draw(st.sampled_from(values)))
        body |= beside | {name: value}
        if draw(st.integers(0, 7)) == 0:
            body[name] = _spoilt(draw, body[name])
    return _bounded(body)


def _spoilt(draw: st.DrawFn, value: Any) -> Any:
    """The value with one of its parts replaced by junk."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(value)))
        return value | {name: _spoilt(draw, value[name])}
    if isinstance(value, list) and value and draw(st.booleans()):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], _spoilt(draw, value[place]), *value[place + 1 :]]
    return draw(JUNK)


def _bounded(body: Body) -> Body:
    """The same, without what is merely long to answer: no fuzzer has to wait for an honest thousand tokens."""
    for name in _LIMITS:
        if name in body and (
            body[name] in (None, ABSENT) or _between(body[name], MOST_TOKENS, _CONTEXT_TOKENS)
        ):
            body[name] = MOST_TOKENS
    if _between(body.get("n"), 3, 10**8):
        body["n"] = 2
    return body


def _between(value: Any, low: float, high: float) -> bool:
    return isinstance(value, int | float) and low < value < high


def _cut(draw: st.DrawFn, text: bytes) -> bytes:
    return text[: draw(st.integers(0, len(text) - 1))]


@st.composite
def raw_bodies(draw: st.DrawFn, model: Model) -> bytes:
    """Bytes that are no request: no JSON, JSON of another kind, cut off, in another encoding, too deep."""
    text = json.dumps({"model": "m"} | model.base)
    depth = draw(st.sampled_from([10, 500, 5_000, 100_000]))
    return draw(
        st.one_of(
            st.binary(max_size=24),
            st.sampled_from(
                [
                    b"",
                    b"null",
                    b"[]",
                    b"1",
                    b'"a"',
                    b"{}",
                    b"{",
                    b"\xef\xbb\xbf{}",
                    b"\xff\xfe",
                    b"nan",
                    b"{}{}",
                ]
            ),
            st.sampled_from([b"[" * depth, b'{"a":' * depth, b"[" * depth + b"]" * depth]),
            st.just(('{"messages":' + "[" * depth + "]" * depth + "}").encode()),
            st.just(('{"prompt":' + '{"a":' * depth + "1" + "}" * depth + "}").encode()),
            st.sampled_from([text.encode("utf-16"), text.encode("utf-32"), b"\xef\xbb\xbf" + text.encode()]),
            st.just(text.replace("{", '{"n": 1, "n": 2, ', 1).encode()),
            st.just(text.replace(":", ": " + "9" * 5000 + " ,", 1).encode()),
            st.builds(lambda: _cut(draw, text.encode())),
        )
    )


CONTENT_TYPES = st.sampled_from(
    [
        "application/json",
        "text/plain",
        "",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/json; charset=latin-1",
    ]
)
