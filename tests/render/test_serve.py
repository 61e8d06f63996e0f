"""The Ray Serve configuration of a document: accepted by Ray's own classes, and what wins over what."""

import json
from pathlib import Path
from typing import Any

import pytest

from diptych.render.serve import PhasePlace, Place, core_groups, serve_config
from diptych.spec import Document

SPLIT = {"prefill": PhasePlace(((0,),), 2**28, 0.0, 20000), "decode": PhasePlace(((1,),), 2**28, 0.0, 20064)}
AGGREGATED = {"aggregated": PhasePlace(((0, 1),), 2**28, 0.0, 20000)}
KEY = "dk-very-secret"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "api-key"
    path.write_text(KEY)
    return path


def rendered(document: Document, place: dict[str, PhasePlace] | None = None, **more: Any) -> dict[str, Any]:
    default = AGGREGATED if document.topology == "aggregated" else SPLIT
    return serve_config(
        document, Place("/models/m", document.model.name, "127.0.0.1", place or default, **more)
    )


def phase_config(config: dict[str, Any], phase: str) -> dict[str, Any]:
    found: dict[str, Any] = config["applications"][0]["args"][f"{phase}_config"]
    return found


def document(**fields: Any) -> Document:
    return Document.model_validate(fields)


@pytest.mark.parametrize("topology", ["split", "aggregated"])
def test_ray_serve_accepts_the_whole_configuration(topology: str, key_file: Path) -> None:
    schema = pytest.importorskip("ray.serve.schema")
    config = rendered(document(topology=topology), api_key_file=str(key_file))
    parsed = schema.ServeDeploySchema.model_validate(json.loads(json.dumps(config)))
    assert [application.import_path for application in parsed.applications] == [
        "diptych.serving.builder:build_app"
    ]


def test_ray_serve_llm_accepts_each_phases_configuration() -> None:
    llm = pytest.importorskip("ray.serve.llm")
    config = rendered(document(prefill={"num_replicas": 1}, decode={"num_replicas": 3}))
    for phase in ("prefill", "decode"):
        parsed = llm.LLMConfig.model_validate(phase_config(config, phase))
        assert parsed.model_id == "smollm2-135m-instruct"
        assert parsed.deployment_config["num_replicas"] == (1 if phase == "prefill" else 3)


def test_the_phases_are_kv_producer_and_kv_consumer_of_one_connector() -> None:
    config = rendered(Document())
    transfer = {phase: phase_config(config, phase)["engine_kwargs"]["kv_transfer_config"] for phase in SPLIT}
    assert transfer["prefill"]["kv_role"] == "kv_producer"
    assert transfer["decode"]["kv_role"] == "kv_consumer"
    for one in transfer.values():
        assert one["kv_connector"] == "NixlConnector"
        assert one["kv_connector_module_path"] == "diptych.serving.connector"
        assert one["kv_buffer_device"] == "cpu"
    assert transfer["prefill"]["engine_id"] != transfer["decode"]["engine_id"]


def test_a_phases_own_arguments_win_over_the_shared_ones_and_those_over_the_places() -> None:
    config = rendered(
        document(
            engine_kwargs={"dtype": "bfloat16", "max_num_seqs": 8},
            decode={"engine_kwargs": {"max_num_seqs": 2}},
        ),
        engine_defaults={"dtype": "float32", "max_num_seqs": 64, "enforce_eager": True},
    )
    prefill, decode = (phase_config(config, phase)["engine_kwargs"] for phase in ("prefill", "decode"))
    assert (prefill["dtype"], prefill["max_num_seqs"], prefill["enforce_eager"]) == ("bfloat16", 8, True)
    assert (decode["dtype"], decode["max_num_seqs"], decode["enforce_eager"]) == ("bfloat16", 2, True)


def test_the_backend_and_the_lease_reach_the_connector_with_what_is_passed_through() -> None:
    config = rendered(
        document(kv_transfer={"backend": "LIBFABRIC", "lease_s": 70, "kv_connector_extra_config": {"x": 1}})
    )
    for phase in ("prefill", "decode"):
        transfer = phase_config(config, phase)["engine_kwargs"]["kv_transfer_config"]
        assert transfer["kv_connector_extra_config"] == {
            "kv_lease_duration": 70,
            "backends": ["LIBFABRIC"],
            "x": 1,
        }


def test_the_backend_is_left_to_nixl_unless_one_is_named() -> None:
    transfer = phase_config(rendered(Document()), "decode")["engine_kwargs"]["kv_transfer_config"]
    assert "backends" not in transfer["kv_connector_extra_config"]


def test_the_key_is_named_by_its_file_and_never_written(key_file: Path) -> None:
    config = rendered(Document(), api_key_file=str(key_file))
    assert config["applications"][0]["args"]["access"] == {"api_key_file": str(key_file)}
    assert KEY not in json.dumps(config)


def test_without_a_key_file_there_is_no_access_section() -> None:
    assert "access" not in rendered(Document())["applications"][0]["args"]


def test_the_aggregated_topology_has_one_engine_and_no_kv_transfer() -> None:
    arguments = rendered(document(topology="aggregated"))["applications"][0]["args"]
    assert set(arguments) == {"llm_config"}
    assert "kv_transfer_config" not in arguments["llm_config"]["engine_kwargs"]


def test_replicas_hold_gpus_where_the_place_gives_them_and_keep_their_kv_cache_there() -> None:
    gpu = {
        "prefill": PhasePlace(gpus=1.0, side_channel_port=20000),
        "decode": PhasePlace(gpus=0.5, side_channel_port=20064),
    }
    config = rendered(Document(), gpu)
    held = {
        phase: phase_config(config, phase)["deployment_config"]["ray_actor_options"]["num_gpus"]
        for phase in gpu
    }
    assert held == {"prefill": 1.0, "decode": 0.5}
    engine = phase_config(config, "decode")["engine_kwargs"]
    assert engine["kv_transfer_config"]["kv_buffer_device"] == "cuda"
    assert "kv_cache_memory_bytes" not in engine


def test_each_replicas_cores_are_told_in_one_variable() -> None:
    place = SPLIT | {"decode": PhasePlace(((1, 2), (3, 4)), 2**28, 0.0, 20064)}
    variables = phase_config(rendered(document(decode={"num_replicas": 2}), place), "decode")["runtime_env"][
        "env_vars"
    ]
    assert variables["DIPTYCH_CORES"] == core_groups(((1, 2), (3, 4))) == "1,2;3,4"
    assert variables["OMP_NUM_THREADS"] == "2"
