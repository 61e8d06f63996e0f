"""No secret of a manifest gets into a document, nor into what is said about it."""

from typing import Any

import pytest

from spec.convert.manifest_values import convert, engine, group, pod, service, split

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"


def converted(**kwargs: Any) -> tuple[dict[str, Any], str]:
    values, remarks = convert(split(engine(engine_kwargs=kwargs), engine(engine_kwargs=kwargs)))
    return values, "\n".join(map(str, remarks))


@pytest.mark.parametrize(
    "kwargs",
    [
        {"hf_token": "anything"},
        {"chat_template": f"x {TOKEN}"},
        {"middleware": ["a", TOKEN]},
        {"model_loader_extra_config": {"aws_secret_access_key": "anything"}},
        {"additional_config": {"headers": [{"authorization": f"Bearer {TOKEN}"}]}},
        {"additional_config": {TOKEN: 1}},
        {"kv_transfer_config": {"kv_connector_extra_config": {"password": "anything"}}},
    ],
    ids=str,
)
def test_a_secret_is_left_out_and_listed_without_its_value(kwargs: dict[str, Any]) -> None:
    values, said = converted(**kwargs, max_model_len=4096)
    assert TOKEN not in repr(values) + said
    assert "anything" not in repr(values) + said
    assert "it is a secret" in said
    assert "model.token_file" in said
    assert values["engine_kwargs"]["max_model_len"] == 4096


@pytest.mark.parametrize(
    "kwargs",
    [{"hf_token": True}, {"hf_token": ""}, {"tokenizer": "a/b"}, {"additional_config": {"max_tokens": "8"}}],
    ids=str,
)
def test_what_is_no_secret_stays(kwargs: dict[str, Any]) -> None:
    values, said = converted(**kwargs)
    assert values["engine_kwargs"] == kwargs
    assert "secret" not in said


def test_what_stands_beside_a_secret_stays() -> None:
    values, _ = converted(additional_config={"api_key": "anything", "seed": 1})
    assert values["engine_kwargs"] == {"additional_config": {"seed": 1}}


def test_secrets_elsewhere_in_a_manifest_are_left_out_too() -> None:
    manifest = service(split(engine(), engine()), group("gpu", pod({"team": TOKEN})))
    values, remarks = convert(manifest)
    assert TOKEN not in repr(values) + repr(remarks)


def test_the_variables_of_an_application_are_named_and_not_shown() -> None:
    variables = {"HF_TOKEN": TOKEN, "NCCL_DEBUG": "INFO"}
    serve = split(engine(), engine(), runtime_env={"env_vars": variables, "working_dir": "s3://b/x.zip"})
    _, remarks = convert(serve)
    said = {each.where: str(each) for each in remarks}
    assert "model.token_secret" in said["runtime_env.env_vars.HF_TOKEN"]
    assert {"runtime_env.env_vars.NCCL_DEBUG", "runtime_env.working_dir"} < said.keys()
    assert TOKEN not in "".join(said.values())
