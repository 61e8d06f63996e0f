"""Arguments of Ray's own builder: taken over where they mean something here, and refused by name where they don't."""

from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")
pytest.importorskip("vllm")

from diptych.serving.builder import build_app
from diptych.serving.ray_llm import PDServingArgs
from diptych.serving.stock import ingress_options


def phase(**more: Any) -> dict[str, Any]:
    return {
        "model_loading_config": {"model_id": "m", "model_source": "/nowhere"},
        "engine_kwargs": {"kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}},
    } | more


def split(**more: Any) -> dict[str, Any]:
    return {"prefill_config": phase(), "decode_config": phase()} | more


def taken_over(**arguments: Any) -> dict[str, Any]:
    """What of an ingress is taken over for decode's deployment."""
    options: dict[str, Any] = ingress_options(PDServingArgs.model_validate(split(**arguments)))
    return options


def test_what_an_ingress_deployment_was_told_of_requests_is_told_decode() -> None:
    told = {"max_ongoing_requests": 77, "graceful_shutdown_timeout_s": 40}
    assert taken_over(ingress_deployment_config=told) == told


def test_what_decode_was_told_itself_wins() -> None:
    own = phase(deployment_config={"max_ongoing_requests": 5})
    told = {"max_ongoing_requests": 77, "max_queued_requests": 9}
    assert taken_over(decode_config=own, ingress_deployment_config=told) == {"max_queued_requests": 9}


@pytest.mark.parametrize(
    "arguments",
    [
        {"ingress_deployment_config": None},
        {"ingress_deployment_config": {}, "ingress_cls_config": {}},
        {"ingress_cls_config": {"ingress_cls": "ray.serve.llm.ingress:OpenAiIngress"}},
    ],
    ids=["none", "empty", "Ray's own ingress by its name"],
)
def test_an_ingress_that_is_rays_own_is_taken(arguments: dict[str, Any]) -> None:
    assert taken_over(**arguments) == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"ingress_deployment_config": {"num_replicas": 3}},
            "ingress_deployment_config.num_replicas .*decode_config.deployment_config.num_replicas",
        ),
        (
            {"ingress_deployment_config": {"autoscaling_config": {"min_replicas": 2}}},
            "ingress_deployment_config.autoscaling_config .*Taken over are .*max_ongoing_requests",
        ),
        (
            {"ingress_cls_config": {"ingress_cls": "collections:OrderedDict"}},
            "ingress_cls_config.ingress_cls",
        ),
        (
            {"ingress_cls_config": {"ingress_extra_kwargs": {"a": 1}}},
            "ingress_cls_config.ingress_extra_kwargs .*Leave it out",
        ),
        (
            dict.fromkeys(("prefill_config", "decode_config"), phase(lora_config={})),
            "prefill_config.lora_config .*lora_modules",
        ),
        ({"decode_config": phase(server_cls="collections:OrderedDict")}, "decode_config.server_cls"),
        (
            {
                "prefill_config": phase(
                    engine_kwargs={"kv_transfer_config": {"kv_connector": "LMCacheConnectorV1"}}
                )
            },
            "prefill_config.engine_kwargs.kv_transfer_config.kv_connector is 'LMCacheConnectorV1'.*NixlConnector",
        ),
    ],
    ids=["replicas", "scaling", "a class", "arguments of a class", "LoRA by Ray", "a server", "a connector"],
)
def test_what_can_not_be_taken_over_is_refused_by_name(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build_app(split(**arguments))


class WithProxy(PDServingArgs):
    """Ray 2.58's, which still takes what was of its proxy."""

    proxy_cls_config: dict[str, Any] | None = None
    proxy_deployment_config: dict[str, Any] | None = None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("proxy_cls_config", {"proxy_extra_kwargs": {"greeting": "hello"}}),
        ("proxy_deployment_config", {"num_replicas": 2}),
    ],
)
def test_what_was_of_a_proxy_before_both_phases_is_refused_by_name(name: str, value: dict[str, Any]) -> None:
    given = WithProxy.model_validate(split(**{name: value}))
    with pytest.raises(ValueError, match=f"{name} is for a proxy .*Leave it out"):
        ingress_options(given)
    assert ingress_options(WithProxy.model_validate(split(**{name: None}))) == {}


def test_adapters_by_ray_and_what_is_no_argument_are_refused_of_one_engine_too() -> None:
    with pytest.raises(ValueError, match=r"llm_config\.lora_config"):
        build_app({"llm_config": phase(lora_config={})})
    with pytest.raises(ValueError, match="ingress_deployment_config: beside llm_config"):
        build_app({"llm_config": phase(), "ingress_deployment_config": {"num_replicas": 3}})
