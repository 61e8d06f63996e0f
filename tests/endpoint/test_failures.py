"""Every way a request fails ends in one sentence on what happened and one on what to do; never in the key."""

import socket
import threading
import traceback

import httpx
import pytest

from diptych.endpoint import Endpoint, failures
from diptych.endpoint.client import chat, stream_chat
from diptych.errors import EndpointError
from fakes.openai_endpoint import KEY, FakeEndpoint, Script

HELLO = [{"role": "user", "content": "Hello"}]


def _failure(endpoint: Endpoint, **options: float) -> EndpointError:
    with pytest.raises(EndpointError) as caught:
        chat(endpoint, HELLO, **options)  # type: ignore[arg-type]
    shown = "".join(traceback.format_exception(caught.value)) + caught.value.hint
    assert KEY not in shown
    return caught.value


def _unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_where_nothing_answers_the_address_is_named() -> None:
    url = f"http://127.0.0.1:{_unused_port()}"
    error = _failure(Endpoint(url, None, "tiny"))
    assert error.message == f"Nothing answers at {url}: connection refused."
    assert error.hint == "`diptych status` says what is up."


def test_a_connection_that_is_not_made_in_time_reads_the_same() -> None:
    error = failures.unreachable(Endpoint("http://10.0.0.1", None, "tiny"), httpx.ConnectTimeout("timed out"))
    assert error.message == "Nothing answers at http://10.0.0.1: no connection in time."


def test_https_where_http_is_spoken_is_told_apart(fake: FakeEndpoint) -> None:
    url = fake.url.replace("http:", "https:")
    assert _failure(Endpoint(url, None, "tiny")).message.startswith(f"No secure connection to {url}: ")


def test_a_url_that_only_httpx_finds_malformed_is_an_error_too() -> None:
    assert "malformed" in _failure(Endpoint("http://a\x7fb", None, "tiny")).message


def test_a_connection_closed_without_a_word_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint(f"http://127.0.0.1:{server.getsockname()[1]}", None, "tiny")
        stream = stream_chat(endpoint, HELLO)

        def hang_up() -> None:
            connection, _ = server.accept()
            connection.recv(100_000)
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(EndpointError, match="closed the connection without an answer"):
            next(stream)
        thread.join()


def test_a_wrong_key_names_its_file(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.key = "another"
    error = _failure(endpoint)
    assert f"does not accept the key in {endpoint.api_key_file}" in error.message


def test_a_missing_key_is_told_apart_from_a_wrong_one(fake: FakeEndpoint) -> None:
    error = _failure(Endpoint(fake.url, None, "tiny"))
    assert "wants an API key, and none was sent" in error.message
    assert "file" in error.hint


def test_an_unknown_model_is_answered_with_those_there_are(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.models = ["smol", "large"]
    error = _failure(endpoint)
    assert error.message == f"The endpoint at {fake.url} has no model tiny."
    assert error.hint == "It serves smol, large."


def test_404_for_a_model_that_is_served_means_a_wrong_url(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(status=404, body={"detail": "Not Found"})
    error = _failure(endpoint)
    assert "has no /v1/chat/completions (404): Not Found" in error.message


def test_the_servers_own_words_on_a_bad_request_are_passed_on(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    said = "This model's maximum context length is 2048 tokens, your request has 3000."
    fake.script = Script(status=400, body={"error": {"message": said, "code": 400}})
    error = _failure(endpoint)
    assert error.message == f"The endpoint at {fake.url} refused the request (400): {said}"
    assert error.hint == "Send a shorter prompt, or ask for fewer tokens."


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "it is wrong"}},
        {"error": "it is wrong"},
        {"object": "error", "message": "it is wrong"},
        {"detail": "it is wrong"},
        {"detail": [{"loc": ["body"], "msg": "it is wrong"}]},
        "it is wrong",
    ],
)
def test_errors_are_understood_in_the_shapes_that_servers_use(
    endpoint: Endpoint, fake: FakeEndpoint, body: object
) -> None:
    fake.script = Script(status=422, body=body)  # type: ignore[arg-type]
    assert _failure(endpoint).message.endswith("refused the request (422): it is wrong")


def test_a_key_that_the_server_echoes_is_not_repeated(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(status=400, body={"error": {"message": f"What is {KEY}?"}})
    assert "What is [key]?" in _failure(endpoint).message


def test_a_service_that_is_busy_says_when_to_come_back(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(status=503, body={"error": {"message": "starting"}}, headers={"Retry-After": "10"})
    error = _failure(endpoint)
    assert error.message == f"The endpoint at {fake.url} takes no request now (503): starting"
    assert error.hint == "Try again in 10 s."


def test_a_busy_service_may_give_a_date_or_nothing(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    date = "Wed, 21 Oct 2026 07:28:00 GMT"
    fake.script = Script(status=429, headers={"Retry-After": date})
    assert _failure(endpoint).hint == f"Try again after {date}."
    fake.script = Script(status=503)
    assert _failure(endpoint).hint.startswith("Try again in a moment.")


def test_a_failing_server_points_to_the_logs(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(status=500, body="<html><h1>Oh no</h1></html>")
    error = _failure(endpoint)
    assert error.message == f"The endpoint at {fake.url} failed (500)."
    assert error.hint == "`diptych logs` shows what happened."


def test_a_redirect_is_not_followed_with_the_key(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(status=307, headers={"Location": "http://elsewhere/"})
    assert "sends requests on to http://elsewhere/ (307)" in _failure(endpoint).message


@pytest.mark.parametrize(
    "script", [Script(cut_after=2), Script(end_after=2)], ids=["closed", "ended in form"]
)
def test_a_cut_answer_says_how_much_of_it_came(
    endpoint: Endpoint, fake: FakeEndpoint, script: Script
) -> None:
    fake.script = script
    texts = []
    with pytest.raises(EndpointError) as caught:
        for delta in stream_chat(endpoint, HELLO):
            texts.append(delta.text)  # noqa: PERF401 - what came before the error is the point
    assert texts == ["Hello", ", "]
    assert caught.value.message == f"The answer from {fake.url} was cut off after at least 2 tokens."


def test_a_cut_before_the_first_token_says_so(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(cut_after=0)
    assert _failure(endpoint).message.endswith("was cut off before the first token.")


def test_an_error_inside_the_stream_is_the_servers_word(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(fail_after=1)
    said = "The engine died while it wrote this answer."
    assert _failure(endpoint).message == f"The endpoint at {fake.url} failed after at least 1 token: {said}"


def test_what_is_no_json_is_told_without_repeating_it(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(garbage_after=1)
    error = _failure(endpoint)
    assert error.message == f"The endpoint at {fake.url} answered with a chunk that is no JSON object."


def test_an_answer_that_is_no_stream_is_told(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(content_type="text/html")
    assert "answered with text/html where a stream of events was asked for" in _failure(endpoint).message


@pytest.mark.parametrize(
    ("script", "when"),
    [
        (Script(before_first_s=2), "before the first token"),
        (Script(between_s=2), "after at least 1 token"),
    ],
)
def test_silence_ends_after_its_deadline(
    endpoint: Endpoint, fake: FakeEndpoint, script: Script, when: str
) -> None:
    fake.script = script
    error = _failure(endpoint, read_timeout_s=0.3)
    assert error.message == f"The endpoint at {fake.url} has sent nothing for 0.3 s, {when}."
