"""A chat completion over real HTTP: the answer as it comes, and what is known of it at the end."""

import logging
import time

import pytest

from diptych.endpoint import Endpoint
from diptych.endpoint.client import chat, stream_chat
from fakes.openai_endpoint import KEY, TIMING, FakeEndpoint, Script

HELLO = [{"role": "user", "content": "Say hello to me"}]


def test_the_answer_comes_in_pieces_and_the_result_with_the_last(endpoint: Endpoint) -> None:
    *pieces, last = stream_chat(endpoint, HELLO)
    assert [piece.text for piece in pieces] == ["Hello", ", ", "world", "."]
    assert all(piece.result is None for piece in pieces)
    assert last.text == ""
    assert last.result is not None
    assert last.result.text == "Hello, world."


def test_the_result_says_what_the_request_cost(endpoint: Endpoint) -> None:
    result = chat(endpoint, HELLO)
    assert (result.finish_reason, result.model, result.path) == ("stop", "tiny", "remote")
    assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.total_tokens) == (
        4,
        4,
        8,
    )
    assert result.usage.cached_tokens == 0
    assert result.timing.prefill_ms == TIMING["prefill_ms"]
    assert result.timing.kv_transfer_ms == TIMING["kv_transfer_ms"]
    assert result.timing.kv_transfer_bytes == TIMING["kv_transfer_bytes"]
    assert result.prefill_replica == "prefill#0"


def test_first_token_and_rate_are_measured_here(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(before_first_s=0.2, between_s=0.1)
    timing = chat(endpoint, HELLO).timing
    assert timing.ttft_ms is not None
    assert timing.ttft_ms >= 200
    assert timing.tokens_per_s is not None
    assert 3 < timing.tokens_per_s <= 10.5


def test_a_token_is_handed_on_when_it_comes(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(between_s=0.5)
    started = time.perf_counter()
    stream = stream_chat(endpoint, HELLO)
    assert next(stream).text == "Hello"
    assert time.perf_counter() - started < 0.5
    stream.close()


def test_the_request_asks_for_a_stream_with_usage_and_timing(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    chat(endpoint, HELLO, max_tokens=7, temperature=0.0, extra={"seed": 1})
    assert fake.chats == [
        {
            "model": "tiny",
            "messages": HELLO,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 7,
            "temperature": 0.0,
            "seed": 1,
        }
    ]
    headers = fake.requests[0].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["x-diptych-timing"] == "include"


def test_what_is_not_asked_for_is_left_to_the_server(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    chat(endpoint, HELLO)
    assert set(fake.chats[0]) == {"model", "messages", "stream", "stream_options"}


def test_any_other_server_works_with_its_values_missing(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(timing=None, usage=False)
    result = chat(endpoint, HELLO)
    assert result.text == "Hello, world."
    assert result.usage.prompt_tokens is None
    assert (result.path, result.timing.prefill_ms, result.timing.tokens_per_s) == (None, None, None)
    assert result.timing.ttft_ms is not None


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_characters_survive_being_split_among_comments_and_line_ends(
    endpoint: Endpoint, fake: FakeEndpoint, line_end: str
) -> None:
    fake.script = Script(
        tokens=("größe", "🙂\u2028", "\x1b[1m"), piece_bytes=3, line_end=line_end, comments=True
    )
    assert chat(endpoint, HELLO).text == "größe🙂\u2028\x1b[1m"


def test_a_finished_answer_counts_though_its_numbers_are_lost(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(cut_numbers=True)
    result = chat(endpoint, HELLO)
    assert (result.text, result.finish_reason) == ("Hello, world.", "stop")
    assert result.usage.completion_tokens is None


def test_an_empty_answer_is_an_answer(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(tokens=())
    result = chat(endpoint, HELLO)
    assert (result.text, result.timing.ttft_ms, result.timing.tokens_per_s) == ("", None, None)


def test_closing_the_stream_ends_the_request_on_the_server(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(tokens=("x",) * 1000, between_s=0.02)
    stream = stream_chat(endpoint, HELLO)
    next(stream)
    stream.close()
    assert fake.client_left.wait(5)


def test_no_proxy_comes_between_on_loopback(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert chat(endpoint, HELLO).text == "Hello, world."


def test_an_endpoint_without_keys_is_sent_none() -> None:
    with FakeEndpoint(key=None) as fake:
        assert chat(Endpoint(fake.url, None, "tiny"), HELLO).text == "Hello, world."
        assert "authorization" not in fake.requests[0].headers


def test_neither_key_nor_text_is_logged(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        chat(endpoint, HELLO)
    assert caplog.records
    assert KEY not in caplog.text
    assert "Say hello" not in caplog.text
    assert "world" not in caplog.text
