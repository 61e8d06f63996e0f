"""Requests with pictures, for a model that takes them: the split answers as the engine alone does."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.comparison import Answer, answers, difference, engine_alone, split_with
from engines.picture_model import make_picture_model
from engines.rows import Body, Shape
from engines.service import Service

pytestmark = [pytest.mark.engines, pytest.mark.long]

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
GREEDY: Body = {"temperature": 0, "max_tokens": 12}
QUESTION = "What is in the picture?"
COLOURS = ("red", "blue")


def picture(colour: str) -> str:
    """A PNG of one colour, as base64. All are of one size: but for their content they are alike."""
    from PIL import Image

    written = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(written, "PNG")
    return base64.b64encode(written.getvalue()).decode()


def url(colour: str) -> str:
    return f"data:image/png;base64,{picture(colour)}"


def chat(*colours: str, **more: Any) -> Body:
    parts = [{"type": "image_url", "image_url": {"url": url(each)}} for each in colours]
    said = [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]
    return {"messages": said, **GREEDY, **more}


def shapes() -> Iterator[Shape]:
    for turn in (
        "first",
        "again",
    ):  # the second time out of the prefix cache, where pictures must not be mixed up
        for colour in COLOURS:
            yield Shape(f"{colour}, {turn}", CHAT, chat(colour))
    yield Shape("streamed", CHAT, chat("green", stream=True))
    yield Shape("logprobs", CHAT, chat("red", logprobs=True, top_logprobs=2))
    yield Shape("two pictures", CHAT, chat("red", "blue"))
    yield Shape("two pictures the other way round", CHAT, chat("blue", "red"))
    yield Shape("no picture", CHAT, chat())
    broken = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]
    yield Shape("no picture at all", CHAT, {"messages": [{"role": "user", "content": broken}], **GREEDY})
    source = {"type": "base64", "media_type": "image/png", "data": picture("red")}
    parts = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    yield Shape("messages", MESSAGES, {"messages": [{"role": "user", "content": parts}], **GREEDY})
    parts = [
        {"type": "input_image", "detail": "auto", "image_url": url("red")},
        {"type": "input_text", "text": QUESTION},
    ]
    asked = {"input": [{"role": "user", "content": parts}], "temperature": 0, "max_output_tokens": 12}
    yield Shape("responses", RESPONSES, asked)


ALL = {shape.name: shape for shape in shapes()}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What `up` is told, so that it serves a model that reads pictures."""
    folder: Path = tmp_path_factory.mktemp("picture-model")
    make_picture_model(folder)
    told = {"model.source": str(folder), "model.name": "pictures"}
    told |= {"engine_kwargs.max_model_len": "1024", "engine_kwargs.dtype": "float32"}
    return [word for name, value in told.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def alone(machine: Service, settings: list[str]) -> dict[str, Answer]:
    with engine_alone(machine, *settings) as one:
        return answers(one, ALL)


@pytest.fixture(scope="module")
def served(alone: object, machine: Service, settings: list[str]) -> Iterator[Service]:
    """The split with that model."""
    with split_with(machine, *settings) as service:
        yield service


@pytest.fixture(scope="module")
def split(served: Service) -> dict[str, Answer]:
    return answers(served, ALL)


def text(answer: Answer) -> str:
    said: str = answer.said["choices"][0]["message"]["content"]
    return said


@pytest.mark.parametrize("name", ALL, ids=list(ALL))
def test_the_split_answers_as_the_engine_alone(
    alone: dict[str, Answer], split: dict[str, Answer], name: str
) -> None:
    assert split[name].status == alone[name].status, split[name]
    assert difference(alone[name].said, split[name].said) is None, (alone[name], split[name])


def test_each_picture_has_its_own_answer(alone: dict[str, Answer]) -> None:
    """Otherwise equality would show nothing."""
    names = (*(f"{colour}, first" for colour in COLOURS), "two pictures", "two pictures the other way round")
    assert {alone[name].status for name in ALL} == {200, 400}
    assert len({text(alone[name]) for name in (*names, "no picture")}) == 5
    for colour in COLOURS:
        assert text(alone[f"{colour}, first"]) == text(alone[f"{colour}, again"])


def test_a_prompt_with_a_picture_runs_whole_on_decode_and_one_without_goes_to_prefill(
    served: Service,
) -> None:
    told = served.post(CHAT, **chat("red")).json()["diptych"]
    assert (told["path"], told["why"]) == ("local-whole", "its prompt is more than tokens")
    assert served.post(CHAT, **chat()).json()["diptych"]["path"] == "remote"
