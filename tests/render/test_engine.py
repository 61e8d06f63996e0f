"""What engines on a cluster are told, and why: for hybrids, by transport, and what wins over what."""

from typing import Any

import pytest

from diptych.catalog.arguments import VERSIONS, engine_arguments
from diptych.models import ModelShape, shipped_config
from diptych.render import engine
from diptych.render.engine import engine_settings, kv_backend
from diptych.render.inputs import Facts
from diptych.spec import Document, Phase

HYBRID, DENSE = "Qwen/Qwen3.5-9B", "Qwen/Qwen3-8B"
PHASES: tuple[Phase, ...] = ("prefill", "decode")


def document(**fields: Any) -> Document:
    return Document.model_validate({"on": "eks", "model": DENSE} | fields)


def facts(model: str) -> Facts:
    config = shipped_config(model)
    assert config is not None
    return Facts(shape=ModelShape.from_config(config))


@pytest.mark.parametrize("phase", PHASES)
def test_a_hybrid_model_gets_all_that_a_split_of_it_needs(phase: Phase) -> None:
    settings = engine_settings(document(model=HYBRID), phase, facts(HYBRID))
    assert settings.kwargs["enforce_eager"] is True
    assert settings.kwargs["async_scheduling"] is False
    assert settings.kwargs["disable_hybrid_kv_cache_manager"] is False
    assert settings.kwargs["enable_prefix_caching"] is False
    assert settings.environment["VLLM_SSM_CONV_STATE_LAYOUT"] == "DS"


@pytest.mark.parametrize(
    ("model", "topology"), [(DENSE, "split"), (HYBRID, "aggregated")], ids=["dense", "hybrid, aggregated"]
)
def test_other_models_and_topologies_keep_what_hybrids_give_up(model: str, topology: str) -> None:
    settings = engine_settings(document(model=model, topology=topology), "decode", facts(model))
    given_up = {"enforce_eager", "async_scheduling", "enable_prefix_caching", "VLLM_SSM_CONV_STATE_LAYOUT"}
    assert not given_up & {*settings.kwargs, *settings.environment}


def test_the_documents_own_arguments_win_and_have_no_reason_of_ours() -> None:
    own = document(
        model=HYBRID, engine_kwargs={"max_model_len": 4096}, decode={"engine_kwargs": {"dtype": "half"}}
    )
    decode = engine_settings(own, "decode", facts(HYBRID))
    assert (decode.kwargs["max_model_len"], decode.kwargs["dtype"]) == (4096, "half")
    assert "max_model_len" not in decode.reasons
    assert "dtype" not in engine_settings(own, "prefill", facts(HYBRID)).kwargs


def test_every_setting_of_ours_has_a_reason() -> None:
    settings = engine_settings(document(model=HYBRID), "decode", facts(HYBRID))
    ours = {*settings.kwargs, *settings.environment, *settings.pod_environment} - {"kv_transfer_config"}
    assert {*settings.reasons} == ours | {"kv_transfer.backend"}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_engine_of_each_version_knows_every_argument_and_takes_its_value(version: str) -> None:
    known = engine_arguments(version)
    assert known is not None
    for name, value in engine_settings(document(model=HYBRID), "prefill", facts(HYBRID)).kwargs.items():
        assert known[name].accepts(value), name


def test_the_context_is_the_models_own_up_to_a_length_that_leaves_room_for_several() -> None:
    assert engine_settings(document(), "decode", facts(DENSE)).kwargs["max_model_len"] == engine.MOST_TOKENS
    assert "max_model_len" not in engine_settings(document(), "decode", Facts()).kwargs


class TestTheBackend:
    def test_is_libfabric_where_every_worker_pod_has_efa(self) -> None:
        settings = engine_settings(document(), "prefill", Facts())
        transfer = settings.kwargs["kv_transfer_config"]
        assert transfer["kv_connector_extra_config"]["backends"] == ["LIBFABRIC"]
        assert settings.pod_environment["FI_PROVIDER"] == "efa"
        assert "LIBFABRIC" in settings.reasons["kv_transfer.backend"]

    def test_is_ucx_by_name_where_one_phase_has_none(self) -> None:
        mixed = document(prefill={"nodes": {"instance_type": "g6.xlarge"}})
        for phase in PHASES:
            settings = engine_settings(mixed, phase, Facts())
            transfer = settings.kwargs["kv_transfer_config"]
            assert transfer["kv_connector_extra_config"]["backends"] == ["UCX"]
            assert settings.pod_environment["UCX_RCACHE_MAX_UNRELEASED"] == "1024"

    def test_is_the_documents_where_it_names_one(self) -> None:
        settings = engine_settings(document(kv_transfer={"backend": "UCX"}), "decode", Facts())
        assert settings.kwargs["kv_transfer_config"]["kv_connector_extra_config"]["backends"] == ["UCX"]
        assert "kv_transfer.backend" not in settings.reasons

    def test_is_left_alone_on_this_machine_and_without_a_split(self) -> None:
        assert kv_backend(Document()) is None
        assert kv_backend(document(topology="aggregated")) is None
        assert (
            "kv_transfer_config"
            not in engine_settings(document(topology="aggregated"), "decode", Facts()).kwargs
        )


def test_huge_pages_and_fork_safety_exclude_each_other() -> None:
    with_pages = document(decode={"resources": {"hugepages_2mi": "10GiB"}})
    prefill, decode = (engine_settings(with_pages, phase, Facts()).pod_environment for phase in PHASES)
    assert ("FI_EFA_FORK_SAFE" in prefill, "FI_EFA_USE_HUGE_PAGE" in prefill) == (True, False)
    assert ("FI_EFA_FORK_SAFE" in decode, "FI_EFA_USE_HUGE_PAGE" in decode) == (False, True)


def test_the_documents_transfer_settings_reach_the_connector() -> None:
    section = {"lease_s": 70, "kv_load_failure_policy": "fail", "kv_buffer_device": "cpu"}
    transfer = engine_settings(document(kv_transfer=section), "prefill", Facts()).kwargs["kv_transfer_config"]
    assert transfer["kv_connector_extra_config"]["kv_lease_duration"] == 70
    assert (transfer["kv_load_failure_policy"], transfer["kv_buffer_device"]) == ("fail", "cpu")


def test_the_revision_is_in_the_staged_folder_or_told_to_the_engine() -> None:
    model = {"source": DENSE, "revision": "v2"}
    staged = engine_settings(document(model=model), "decode", Facts()).kwargs
    fetching = document(model=model, staging={"enabled": False})
    assert "revision" not in staged
    assert engine_settings(fetching, "decode", Facts()).kwargs["revision"] == "v2"
    assert engine_settings(fetching, "decode", Facts(model_revision="abc")).kwargs["revision"] == "abc"


def test_a_kv_cache_of_a_given_size_is_asked_for() -> None:
    sized = document(decode={"kv_cache_memory": "2GiB"})
    assert engine_settings(sized, "decode", Facts()).kwargs["kv_cache_memory_bytes"] == 2 * 2**30
    assert "kv_cache_memory_bytes" not in engine_settings(sized, "prefill", Facts()).kwargs


def test_the_models_own_id_means_its_staged_files_since_engines_do_not_ask_the_hub() -> None:
    named = {
        "tokenizer": DENSE,
        "speculative_config": {"method": "mtp", "model": DENSE},
        "hf_config_path": "/opt/c",
    }
    found = engine_settings(document(engine_kwargs=named), "decode", Facts()).kwargs
    assert found["tokenizer"] == found["speculative_config"]["model"] == "/models/Qwen--Qwen3-8B/main"
    assert found["hf_config_path"] == "/opt/c"
    fetched = document(engine_kwargs=named, staging={"enabled": False})
    assert named.items() <= engine_settings(fetched, "decode", Facts()).kwargs.items()
