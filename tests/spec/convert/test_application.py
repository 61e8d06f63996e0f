"""Ray Serve's side of a manifest."""

from typing import Any

import pytest

from diptych.spec import Document
from diptych.spec.convert import ConversionError
from spec.convert.manifest_values import convert, engine, said, split, whole

KV = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}


def test_a_bare_serve_config_is_enough() -> None:
    values, remarks = convert(split(engine(), engine()))
    assert values == {
        "version": 1,
        "name": "app",
        "on": "kubernetes",
        "model": {"source": "a/m", "name": "m"},
    }
    assert remarks == []


def test_without_a_source_the_name_is_one() -> None:
    values, _ = convert(split(engine("a/m", None), engine("a/m", None)))
    assert values["model"] == {"source": "a/m", "name": "a/m"}


def test_what_both_phases_say_is_shared_and_the_rest_is_theirs() -> None:
    prefill = {"max_model_len": 4096, "max_num_seqs": 4, "enable_prefix_caching": True, "seed": 1}
    decode = {"max_model_len": 4096, "max_num_seqs": 64, "enforce_eager": None, "seed": True}
    values, _ = convert(split(engine(engine_kwargs=prefill), engine(engine_kwargs=decode)))
    assert values["engine_kwargs"] == {"max_model_len": 4096}
    assert values["prefill"]["engine_kwargs"] == {"max_num_seqs": 4, "enable_prefix_caching": True, "seed": 1}
    assert values["decode"]["engine_kwargs"] == {"max_num_seqs": 64, "enforce_eager": None, "seed": True}


def test_one_engine_for_both_phases_is_the_aggregated_topology() -> None:
    config = engine(engine_kwargs={"tensor_parallel_size": 4}, deployment_config={"num_replicas": 2})
    values, _ = convert(whole(config))
    assert values["topology"] == "aggregated"
    assert values["engine_kwargs"] == {"tensor_parallel_size": 4}
    assert values["decode"] == {"num_replicas": 2}
    assert "prefill" not in values
    assert "kv_transfer" not in values


@pytest.mark.parametrize(
    "path",
    [
        "ray.serve.llm:build_dp_openai_app",
        "ray.serve.llm.build_dp_openai_app",
        "diptych.serving.builder:build_app",
    ],
)
def test_an_application_of_one_engine_may_be_named_alone(path: str) -> None:
    serve = {"applications": [{"import_path": path, "args": {"llm_config": engine()}}]}
    assert convert(serve)[0]["topology"] == "aggregated"


def test_diptychs_own_application_is_read_too() -> None:
    config = {"kv_connector": "NixlConnector", "kv_connector_module_path": "diptych.serving.connector"}
    kwargs = {"kv_transfer_config": config | {"kv_connector_extra_config": {"kv_lease_duration": 60}}}
    serve = split(
        engine(engine_kwargs=kwargs),
        engine(engine_kwargs=kwargs),
        import_path="diptych.serving.builder:build_app",
    )
    values, remarks = convert(serve)
    assert values["kv_transfer"] == {"lease_s": 60}
    assert [each for each in remarks if each.do] == []


def test_the_revision_belongs_to_the_model() -> None:
    values, _ = convert(whole(engine(engine_kwargs={"revision": "abc"})))
    assert values["model"]["revision"] == "abc"
    assert "engine_kwargs" not in values


def test_a_model_in_a_bucket_keeps_its_address() -> None:
    loading = {"model_id": "m", "model_source": {"bucket_uri": "s3://bucket/m", "extra_files": [1]}}
    values, remarks = convert(whole({"model_loading_config": loading}))
    assert values["model"] == {"source": "s3://bucket/m", "name": "m"}
    assert [each.where for each in remarks] == ["llm_configs.model_loading_config.model_source.extra_files"]


def test_a_folder_in_the_pods_is_kept_with_a_remark() -> None:
    values, remarks = convert(whole(engine(source="/models/m")))
    assert values["model"]["source"] == "/models/m"
    [line] = said(remarks, "llm_configs.model_loading_config.model_source")
    assert "make sure that the image has it, or set model.source" in line


@pytest.mark.parametrize("source", ["gs://bucket/m", "a b", "https://example.com/m"])
def test_a_model_that_can_not_be_served_is_an_error_unless_another_is_given(source: str) -> None:
    with pytest.raises(ConversionError, match=r"The manifest's model\.source is '") as caught:
        convert(whole(engine(source=source)))
    assert caught.value.hint == "Give a model that can be served: --model."
    values, _ = convert(whole(engine(source=source)), model="a/other")
    assert values["model"] == {"source": "a/other", "name": "m"}


def test_two_models_in_two_phases_are_remarked_on() -> None:
    values, remarks = convert(split(engine(source="a/x"), engine(source="a/y")))
    assert values["model"]["source"] == "a/y"
    [line] = said(remarks, "prefill_config.model_loading_config")
    assert "its source is 'a/x', and decode's is 'a/y', which was taken; both phases serve one model" in line


def kv(**extra: Any) -> dict[str, Any]:
    return engine(engine_kwargs={"kv_transfer_config": KV | {"kv_connector_extra_config": extra}})


def test_the_kv_transfers_settings_get_their_fields() -> None:
    config = KV | {
        "kv_load_failure_policy": "fail",
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"backends": ["UCX"], "kv_lease_duration": 30, "num_threads": 4},
    }
    each = engine(engine_kwargs={"kv_transfer_config": config})
    values, _ = convert(split(each, each))
    assert values["kv_transfer"] == {
        "backend": "UCX",
        "lease_s": 30,
        "kv_load_failure_policy": "fail",
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"num_threads": 4},
    }


def test_phases_that_differ_in_the_transfer_are_remarked_on() -> None:
    values, remarks = convert(split(kv(backends=["LIBFABRIC"]), kv(backends=["UCX"])))
    assert values["kv_transfer"]["backend"] == "LIBFABRIC"
    assert said(remarks, "kv_transfer_config") == [
        "kv_transfer_config: the phases differ in backend, and a document has one value for both; "
        "check kv_transfer.backend"
    ]


@pytest.mark.parametrize(
    ("backends", "taken"), [(["LIBFABRIC", "UCX"], "LIBFABRIC"), (["GDS"], None), ("UCX", None)]
)
def test_several_or_unknown_backends_are_remarked_on(backends: Any, taken: str | None) -> None:
    values, remarks = convert(split(kv(backends=backends), kv(backends=backends)))
    assert values.get("kv_transfer", {}).get("backend") == taken
    assert len([each for each in remarks if each.where.endswith(".backends")]) == 2


def test_another_connector_is_remarked_on() -> None:
    each = engine(engine_kwargs={"kv_transfer_config": {"kv_connector": "LMCacheConnectorV1"}})
    _, remarks = convert(split(each, each))
    lines = [str(each) for each in remarks if each.where.endswith("kv_connector")]
    assert len(lines) == 2
    assert "it is 'LMCacheConnectorV1', and Diptych always uses NixlConnector" in lines[0]


def test_the_first_ports_come_out_of_the_experimental_configs() -> None:
    prefill = engine(experimental_configs={"NIXL_SIDE_CHANNEL_PORT_BASE": 21000})
    values, remarks = convert(split(prefill, engine(experimental_configs={"num_ingress_replicas": 2})))
    assert values["kv_transfer"] == {"ports": {"prefill": 21000}}
    assert [each.where for each in remarks] == ["decode_config.experimental_configs.num_ingress_replicas"]


@pytest.mark.parametrize(
    ("deployment", "fields"),
    [
        ({"num_replicas": 3, "max_ongoing_requests": 64}, {"num_replicas": 3, "max_ongoing_requests": 64}),
        (
            {"autoscaling_config": {"min_replicas": 1, "max_replicas": 4, "upscale_delay_s": 10}},
            {"autoscaling_config": {"min_replicas": 1, "max_replicas": 4, "upscale_delay_s": 10}},
        ),
        (
            {"num_replicas": "auto", "autoscaling_config": {"max_replicas": 8}},
            {"autoscaling_config": {"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 2}},
        ),
        (
            {"num_replicas": "auto"},
            {"autoscaling_config": {"min_replicas": 1, "max_replicas": 100, "target_ongoing_requests": 2}},
        ),
        (
            {"autoscaling_config": {"target_num_ongoing_requests_per_replica": 5, "max_replicas": 2}},
            {"autoscaling_config": {"target_ongoing_requests": 5, "max_replicas": 2}},
        ),
    ],
)
def test_replicas_and_autoscaling_keep_ray_serves_names(
    deployment: dict[str, Any], fields: dict[str, Any]
) -> None:
    values, _ = convert(whole(engine(deployment_config=deployment)))
    assert values["decode"] == fields
    Document.model_validate(values)


def test_a_value_that_no_document_takes_is_left_out_with_what_to_do() -> None:
    config = engine(
        deployment_config={"num_replicas": "2", "autoscaling_config": None, "max_ongoing_requests": 0}
    )
    values, remarks = convert(whole(config))
    assert "decode" not in values
    assert [str(each) for each in remarks] == [
        "decode.num_replicas: it is '2', and must be a whole number; write it without quotes",
        "decode.max_ongoing_requests: it is 0, and must be at least 1; give 1 or more",
    ]


def test_bundles_follow_from_the_parallel_sizes_and_are_remarked_on_where_they_don_t() -> None:
    kwargs = {"tensor_parallel_size": 4}
    same = engine(engine_kwargs=kwargs, placement_group_config={"bundles": [{"CPU": 1, "GPU": 1}] * 4})
    assert convert(whole(same))[1] == []
    per_worker = engine(engine_kwargs=kwargs, placement_group_config={"bundle_per_worker": {"GPU": 1}})
    assert convert(whole(per_worker))[1] == []
    other = engine(placement_group_config={"bundles": [{"GPU": 1}] * 2, "strategy": "PACK"})
    _, remarks = convert(whole(other))
    assert said(remarks, "llm_configs.placement_group_config") == [
        "llm_configs.placement_group_config: it asks for 2 GPUs for each replica, and the parallel sizes for 1; "
        "set tensor_parallel_size in engine_kwargs; the GPUs follow from it"
    ]


@pytest.mark.parametrize(
    ("fields", "where", "words"),
    [
        ({"lora_config": {"a": 1}}, "llm_configs.lora_config", "Diptych loads no LoRA adapters"),
        (
            {"runtime_env": {"env_vars": {"HF_TOKEN": "hf_secret"}}},
            "llm_configs.runtime_env.env_vars.HF_TOKEN",
            "a token in clear text is not copied; keep it in a secret, and name that in model.token_secret",
        ),
        (
            {"runtime_env": {"env_vars": {"NIXL_BACKEND": "UCX"}}},
            "llm_configs.runtime_env.env_vars.NIXL_BACKEND",
            "vLLM ignores it",
        ),
        (
            {"runtime_env": {"pip": ["x"]}},
            "llm_configs.runtime_env.pip",
            "list them in image.packages",
        ),
        ({"llm_engine": "SGLang"}, "llm_configs.llm_engine", "Diptych serves with vLLM only"),
        (
            {"accelerator_config": {"kind": "tpu"}},
            "llm_configs.accelerator_config.kind",
            "Diptych serves on NVIDIA GPUs and on CPUs",
        ),
        (
            {"engine_kwargs": {"served_model_name": "other"}},
            "llm_configs.engine_kwargs.served_model_name",
            "it is the name for clients",
        ),
        (
            {"engine_kwargs": {"distributed_executor_backend": "ray"}},
            "llm_configs.engine_kwargs.distributed_executor_backend",
            "Diptych chooses how an engine starts its workers",
        ),
        (
            {"deployment_config": {"request_router_config": {"a": 1}}},
            "llm_configs.deployment_config.request_router_config",
            "a document has no field for it",
        ),
        (
            {"accelerator_type": "L4"},
            "decode: accelerator_type",
            "set nodes.selector to the labels of such nodes",
        ),
    ],
)
def test_what_has_no_field_is_named_with_the_reason(fields: dict[str, Any], where: str, words: str) -> None:
    _, remarks = convert(whole(engine(**fields)))
    [line] = said(remarks, where)
    assert words in line
    assert not any("hf_secret" in str(each) for each in remarks)


def test_a_name_that_no_service_can_have_is_left_out() -> None:
    values, remarks = convert(whole(engine(), name="My_App"))
    assert "name" not in values
    assert "which can't name a service" in said(remarks, "name")[0]
    assert convert(whole(engine(), name="My_App"), name="my-app")[0]["name"] == "my-app"


@pytest.mark.parametrize("value", ["/configs/prefill.yaml", None, [1]])
def test_an_engine_that_is_not_written_out_is_an_error(value: Any) -> None:
    with pytest.raises(ConversionError, match="prefill_config is ") as caught:
        convert(split(value, engine()))
    assert ("Put what that file holds" in caught.value.hint) is isinstance(value, str)


def test_of_several_models_one_must_be_chosen() -> None:
    serve = whole(engine("x", "a/x"), engine("y", "a/y"))
    with pytest.raises(ConversionError, match="several models: x, y") as caught:
        convert(serve)
    assert caught.value.hint == "Say which with --app MODEL."
    assert convert(serve, app="y")[0]["model"]["source"] == "a/y"
    with pytest.raises(ConversionError, match="none called 'z'"):
        convert(serve, app="z")


def test_no_model_is_an_error() -> None:
    for serve in (whole(), whole({"model_loading_config": {}}), whole({})):
        with pytest.raises(ConversionError):
            convert(serve)


@pytest.mark.parametrize("allowed", [True, False])
def test_whether_a_fallback_is_allowed_is_carried_over_from_diptychs_own_application(allowed: bool) -> None:
    serve = split(engine(), engine(), import_path=TestTheOrchestrator.OWN)
    serve["applications"][0]["args"]["transport"] = {"backend": "UCX", "allow_fallback": allowed}
    values, remarks = convert(serve)
    assert Document.model_validate(values).kv_transfer.allow_fallback is allowed
    assert [each.where for each in remarks if "transport" in each.where and "kv_" not in each.where] == []


class TestTheOrchestrator:
    OWN = "diptych.serving.builder:build_app"

    def converted(self, path: str, settings: Any) -> tuple[dict[str, Any], list[str]]:
        serve = split(engine(), engine(), import_path=path)
        serve["applications"][0]["args"]["orchestrator"] = settings
        values, remarks = convert(serve)
        return values, [each.where for each in remarks if each.where.startswith("orchestrator")]

    def test_of_diptychs_own_application_is_carried_over(self) -> None:
        settings = {"prefill": 512, "canary_period_s": 0, "queues": {"decode": {"requests": 8}}}
        values, remarks = self.converted(self.OWN, settings)
        assert (values["orchestrator"], remarks) == (settings, [])
        assert Document.model_validate(values).orchestrator.canary_period_s == 0

    def test_is_left_out_with_a_remark_where_no_document_can_hold_it(self) -> None:
        values, remarks = self.converted(self.OWN, {"prefill": "sometimes", "recovery_backlog_s": 5})
        assert (values["orchestrator"], remarks) == ({"recovery_backlog_s": 5}, ["orchestrator.prefill"])
        values, remarks = self.converted(self.OWN, 5)
        assert ("orchestrator" in values, remarks) == (False, ["orchestrator"])

    def test_of_another_application_is_not_taken(self) -> None:
        values, remarks = self.converted("ray.serve.llm:build_pd_openai_app", {"prefill": 512})
        assert ("orchestrator" in values, remarks) == (False, ["orchestrator"])
