"""The official `openai` client works unchanged."""

import openai
import pytest

from engines.service import Service

pytestmark = pytest.mark.engines


@pytest.fixture
def client(service: Service) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.key, max_retries=0, timeout=60)


def test_it_lists_the_model(client: openai.OpenAI, service: Service) -> None:
    assert [model.id for model in client.models.list()] == [service.model]


def test_it_chats(client: openai.OpenAI, service: Service) -> None:
    answer = client.chat.completions.create(
        model=service.model, messages=[{"role": "user", "content": "Say hello."}], max_tokens=8, temperature=0
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 8


def test_it_streams_a_chat_with_its_usage(client: openai.OpenAI, service: Service) -> None:
    chunks = list(
        client.chat.completions.create(
            model=service.model,
            messages=[{"role": "user", "content": "Say hello."}],
            max_tokens=8,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


def test_it_completes(client: openai.OpenAI, service: Service) -> None:
    answer = client.completions.create(model=service.model, prompt="One, two,", max_tokens=4, temperature=0)
    assert answer.choices[0].text


def test_a_wrong_key_is_an_authentication_error(service: Service) -> None:
    stranger = openai.OpenAI(base_url=f"{service.url}/v1", api_key="dk-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="another", prompt="Hello", max_tokens=1)


def test_a_prompt_beyond_the_context_is_a_bad_request_with_the_engines_reason(
    client: openai.OpenAI, service: Service
) -> None:
    with pytest.raises(openai.BadRequestError, match="8192"):
        client.completions.create(model=service.model, prompt=[5] * 9000, max_tokens=1)


def test_no_tokens_asked_for_is_a_bad_request(client: openai.OpenAI, service: Service) -> None:
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=service.model, prompt="Hello", max_tokens=0)
