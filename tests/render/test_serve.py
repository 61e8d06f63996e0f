"""The Ray Serve configuration of a document: accepted by Ray's own classes, and what wins over what."""

import json
from pathlib import Path
from typing import Any

import pytest

from diptych.render.inputs import Facts
from diptych.render.serve import PhasePlace, Place, cluster_serve_config, core_groups, serve_config
from diptych.spec import Document
from render.golden_documents import DOCUMENTS, example

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


def test_an_admin_key_lies_beside_the_clients(key_file: Path) -> None:
    config = rendered(Document(), api_key_file=str(key_file), admin_key_file="/admin")
    assert config["applications"][0]["args"]["access"] == {"api_key_file": [str(key_file), "/admin"]}


def test_an_endpoint_here_may_let_clients_in_without_a_key(key_file: Path) -> None:
    config = rendered(document(access={"api_keys": "none"}), api_key_file=str(key_file))
    assert config["applications"][0]["args"]["access"] == {"api_key_file": str(key_file), "open": True}


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


CLUSTER_DOCUMENTS = sorted({*DOCUMENTS} - {"local"})


def on_cluster(**fields: Any) -> dict[str, Any]:
    return cluster_serve_config(document(**{"on": "eks", "model": "Qwen/Qwen3-8B"} | fields), Facts())


class TestOnACluster:
    @pytest.mark.parametrize("name", CLUSTER_DOCUMENTS)
    def test_ray_accepts_all_of_it(self, name: str) -> None:
        schema, llm = pytest.importorskip("ray.serve.schema"), pytest.importorskip("ray.serve.llm")
        builder = pytest.importorskip("ray.llm._internal.serve.serving_patterns.prefill_decode.builder")
        parsed = schema.ServeDeploySchema.model_validate(cluster_serve_config(*example(name)))
        ours = {"access", "orchestrator", "transport"}
        args = {key: value for key, value in parsed.applications[0].args.items() if key not in ours}
        if "llm_config" in args:
            llm.LLMConfig.model_validate(args["llm_config"])
        else:
            builder.PDServingArgs.model_validate(args)

    @pytest.mark.parametrize("name", CLUSTER_DOCUMENTS)
    def test_ray_places_each_replica_on_gpus_of_its_own_phase(self, name: str) -> None:
        llm = pytest.importorskip("ray.serve.llm")
        server = pytest.importorskip("ray.llm._internal.serve.core.server.llm_server")
        args = cluster_serve_config(*example(name))["applications"][0]["args"]
        for config in (value for key, value in args.items() if key.endswith("config")):
            phase = {"kv_producer": "prefill", "kv_consumer": "decode", None: "aggregated"}[
                config["engine_kwargs"].get("kv_transfer_config", {}).get("kv_role")
            ]
            replica = config["deployment_config"]["ray_actor_options"]
            bundles = server._merge_replica_actor_and_child_actor_bundles(
                llm.LLMConfig.model_validate(config).get_engine_config().placement_bundles,
                {"CPU": replica["num_cpus"], "GPU": replica.get("num_gpus", 0)},
            )
            assert len(bundles) == config["engine_kwargs"].get("tensor_parallel_size", 1)
            assert all((bundle["GPU"], bundle[phase]) == (1, 0.001) for bundle in bundles)

    def test_a_replica_that_fits_a_pod_stays_in_one_and_another_takes_as_few_as_it_can(self) -> None:
        def strategy(gpus: int) -> str:
            config = on_cluster(
                nodes={"instance_type": "g6.12xlarge"}, engine_kwargs={"tensor_parallel_size": gpus}
            )
            found: str = phase_config(config, "decode")["placement_group_config"]["strategy"]
            return found

        assert (strategy(4), strategy(8)) == ("STRICT_PACK", "PACK")

    def test_parts_of_a_data_parallel_replica_are_placed_one_by_one(self) -> None:
        config = phase_config(on_cluster(decode={"engine_kwargs": {"data_parallel_size": 2}}), "decode")
        assert config["placement_group_config"]["bundle_per_worker"] == {"GPU": 1, "decode": 0.001}
        assert config["engine_kwargs"]["data_parallel_size"] == 2

    def test_the_replicas_are_as_many_as_the_document_says_or_as_many_as_are_needed(self) -> None:
        scaling = {"min_replicas": 1, "max_replicas": 3, "target_ongoing_requests": 4}
        config = on_cluster(
            prefill={"autoscaling_config": scaling}, decode={"num_replicas": 2, "max_ongoing_requests": 64}
        )
        prefill, decode = (
            phase_config(config, phase)["deployment_config"] for phase in ("prefill", "decode")
        )
        assert prefill["autoscaling_config"] == scaling
        assert "num_replicas" not in prefill
        assert (decode["num_replicas"], decode["max_ongoing_requests"]) == (2, 64)

    def test_the_phases_meet_at_the_documents_ports_and_at_no_address_of_ours(self) -> None:
        config = on_cluster(kv_transfer={"ports": {"prefill": 30000, "decode": 31000}})
        for phase, port in (("prefill", 30000), ("decode", 31000)):
            found = phase_config(config, phase)
            assert found["experimental_configs"] == {"NIXL_SIDE_CHANNEL_PORT_BASE": port}
            assert "VLLM_NIXL_SIDE_CHANNEL_HOST" not in found["runtime_env"]["env_vars"]

    def test_the_keys_are_always_asked_for(self) -> None:
        for fields in ({}, {"access": {"api_keys": "none"}}):
            access = on_cluster(**fields)["applications"][0]["args"]["access"]
            assert access == {"api_key_file": "/etc/diptych/api-keys/keys"}

    @pytest.mark.parametrize(
        ("model", "staged", "source", "is_local"),
        [
            ("Qwen/Qwen3-8B", True, "/models/Qwen--Qwen3-8B/main", True),
            ("Qwen/Qwen3-8B", False, "Qwen/Qwen3-8B", False),
            ("s3://bucket/a/model", True, "/models/s3--bucket--a--model", True),
            ("s3://bucket/a/model", False, "s3://bucket/a/model", False),
            ("/opt/model", True, "/opt/model", True),
        ],
    )
    def test_the_engine_loads_what_is_staged_and_ray_fetches_nothing_beside_it(
        self, model: str, staged: bool, source: str, is_local: bool
    ) -> None:
        config = phase_config(on_cluster(model=model, staging={"enabled": staged}), "prefill")
        assert config["model_loading_config"]["model_source"] == source
        assert ("callback_config" in config) is is_local

    def test_engines_count_for_prometheus_through_ray(self) -> None:
        assert phase_config(on_cluster(), "decode")["log_engine_metrics"] is True

    def test_the_endpoint_has_the_documents_port_on_all_of_the_pods_addresses(self) -> None:
        assert on_cluster(access={"port": 9000})["http_options"] == {"host": "0.0.0.0", "port": 9000}


def test_the_documents_failure_policy_and_buffer_hold_on_this_machine_too() -> None:
    config = rendered(document(kv_transfer={"kv_load_failure_policy": "fail", "kv_buffer_device": "cuda"}))
    transfer = phase_config(config, "decode")["engine_kwargs"]["kv_transfer_config"]
    assert (transfer["kv_load_failure_policy"], transfer["kv_buffer_device"]) == ("fail", "cuda")


@pytest.mark.parametrize("on", ["local", "kubernetes", "eks"])
def test_the_orchestrator_gets_what_the_document_sets_and_no_more(on: str) -> None:
    def arguments(**fields: Any) -> dict[str, Any]:
        made = document(on=on, **({} if on == "local" else {"model": "Qwen/Qwen3-8B"}), **fields)
        config = rendered(made) if on == "local" else cluster_serve_config(made, Facts())
        found: dict[str, Any] = config["applications"][0]["args"]
        return found

    given = {"prefill": 512, "queues": {"prefill": {"tokens": 9000}, "decode": {"requests": 8}}}
    assert "orchestrator" not in arguments()
    assert arguments(orchestrator=given)["orchestrator"] == given
    whole = arguments(orchestrator=given, topology="aggregated")
    assert whole["orchestrator"] == {"queues": {"decode": {"requests": 8}}}


def test_the_engines_serve_by_priority_unless_the_document_says_otherwise() -> None:
    config = rendered(document(decode={"engine_kwargs": {"scheduling_policy": "fcfs"}}))
    policies = {phase: phase_config(config, phase)["engine_kwargs"]["scheduling_policy"] for phase in SPLIT}
    assert policies == {"prefill": "priority", "decode": "fcfs"}


@pytest.mark.parametrize(
    ("settings", "prefill_s"),
    [
        ({}, 150),
        ({"kv_transfer": {"lease_s": 300}}, 330),
        ({"kv_transfer": {"lease_s": 10}}, 120),
        ({"orchestrator": {"prefill_deadline_s": 90.5}}, 211),
    ],
)
def test_a_prefill_replica_has_time_to_keep_what_decode_has_not_fetched(
    settings: dict[str, Any], prefill_s: int
) -> None:
    config = cluster_serve_config(document(on="eks", model="Qwen/Qwen3-8B", **settings), Facts())
    ends = {
        phase: phase_config(config, phase)["deployment_config"]["graceful_shutdown_timeout_s"]
        for phase in SPLIT
    }
    assert ends == {"prefill": prefill_s, "decode": 120}


def test_a_service_here_ends_as_quickly_as_ray_lets_it() -> None:
    config = rendered(document(kv_transfer={"lease_s": 3600}))
    for phase in SPLIT:
        assert "graceful_shutdown_timeout_s" not in phase_config(config, phase)["deployment_config"]
