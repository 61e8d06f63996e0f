"""The split service answers what one aggregated engine answers, word for word, streamed or not."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from engines.questions import QUESTIONS
from engines.service import Service

pytestmark = pytest.mark.engines

GREEDY = {"max_tokens": 24, "temperature": 0}


def streamed(service: Service, path: str, **body: Any) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed answer, up to and without `[DONE]`."""
    with (
        service.client() as client,
        client.stream("POST", path, json={"model": service.model, "stream": True, **body}) as response,
    ):
        assert response.status_code == 200
        data = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert data[-1] == "[DONE]"
    yield from map(json.loads, data[:-1])


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_a_completion_equals_the_aggregated_engines(
    service: Service, reference: list[dict[str, str]], number: int
) -> None:
    expected = reference[number]
    answer = service.complete(expected["prompt"], max_tokens=24)
    assert answer["diptych"]["path"] == "remote"
    assert answer["choices"][0]["text"] == expected["completion"]


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_a_chat_streamed_equals_the_aggregated_engines(
    service: Service, reference: list[dict[str, str]], number: int
) -> None:
    expected = reference[number]
    messages = [{"role": "user", "content": expected["prompt"]}]
    chunks = list(streamed(service, "/v1/chat/completions", messages=messages, **GREEDY))
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert text == expected["chat"]
    assert [chunk["diptych"]["path"] for chunk in chunks if "diptych" in chunk] == ["remote"]


@pytest.mark.parametrize("number", [0, 3, 8, 11])
def test_a_completion_streamed_equals_the_aggregated_engines(
    service: Service, reference: list[dict[str, str]], number: int
) -> None:
    expected = reference[number]
    chunks = list(streamed(service, "/v1/completions", prompt=expected["prompt"], **GREEDY))
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
    assert text == expected["completion"]


@pytest.mark.parametrize("number", [0, 3, 8, 11])
def test_a_chat_in_one_piece_equals_the_aggregated_engines(
    service: Service, reference: list[dict[str, str]], number: int
) -> None:
    expected = reference[number]
    messages = [{"role": "user", "content": expected["prompt"]}]
    answer = service.post("/v1/chat/completions", messages=messages, **GREEDY).json()
    assert answer["choices"][0]["message"]["content"] == expected["chat"]
    assert answer["diptych"]["path"] == "remote"


def test_the_reference_tells_its_answers_apart(reference: list[dict[str, str]]) -> None:
    """Otherwise equality would show nothing."""
    assert len({row["completion"] for row in reference}) == len(QUESTIONS)
    assert len({row["chat"] for row in reference}) == len(QUESTIONS)
