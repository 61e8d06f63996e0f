"""What makes a generation, and what does not."""

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving.generation import settings_digest


def test_engine_settings_make_another_generation_and_the_number_of_replicas_does_not() -> None:
    def digest(**prefill: object) -> str:
        return settings_digest({"prefill_config": {"engine_kwargs": {"block_size": 16}, **prefill}})

    assert digest() == digest(deployment_config={"num_replicas": 2})
    assert digest() != digest(engine_kwargs={"block_size": 32})
    assert settings_digest({}) == settings_digest({})
