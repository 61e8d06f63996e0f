"""From a document and a machine to a plan: machines of many kinds, none of them this one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diptych.catalog.instances import GIB
from diptych.errors import SetupError, StartError
from diptych.local import planning
from diptych.local.environment import service_environment
from diptych.local.hardware import Hardware
from diptych.local.paths import ServicePaths
from diptych.local.plan import Plan
from diptych.local.planning import Model, make_plan
from diptych.models import ModelShape, shipped_config
from diptych.spec import Document

LAYERS, KV_HEADS, HEAD = 4, 2, 64
H200 = 141 * GIB


@pytest.fixture
def model(tmp_path: Path) -> Model:
    directory = tmp_path / "model"
    directory.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "hidden_size": 256,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(b"\0" * 4096)
    return Model(directory, "embedded", embedded=True)


@pytest.fixture
def paths() -> ServicePaths:
    paths = ServicePaths.of("planned")
    paths.create()
    return paths


Planned = Callable[..., tuple[Plan, list[str]]]


@pytest.fixture
def plan(model: Model, paths: ServicePaths, monkeypatch: pytest.MonkeyPatch) -> Planned:
    """Plan a document on a machine; what was decided, and what was said about it."""

    def make(
        cores: int = 8,
        memory: float = 64 * GIB,
        gpus: tuple[int, ...] = (),
        cuda: bool = False,
        **fields: Any,
    ) -> tuple[Plan, list[str]]:
        hardware = Hardware(tuple(range(cores)), int(memory), int(memory), gpus)
        monkeypatch.setattr(planning, "detect", lambda: hardware)
        monkeypatch.setattr(planning, "has_cuda_engine", lambda: cuda)
        monkeypatch.setattr(planning, "choose_port", lambda asked, taken: (asked or 8000, None))
        said: list[str] = []
        document = Document.model_validate({"name": "planned", **fields})
        return make_plan(document, model, paths, said.append), said

    return make


def config_of(plan: Plan, phase: str) -> dict[str, Any]:
    arguments: dict[str, Any] = plan.serve_config["applications"][0]["args"]
    found: dict[str, Any] = arguments["llm_config" if phase == "aggregated" else f"{phase}_config"]
    return found


def variables(plan: Plan, phase: str) -> dict[str, str]:
    found: dict[str, str] = config_of(plan, phase)["runtime_env"]["env_vars"]
    return found


def test_two_cores_are_one_for_each_phase(plan: Planned) -> None:
    made, said = plan(cores=2)
    assert (variables(made, "prefill")["DIPTYCH_CORES"], variables(made, "decode")["DIPTYCH_CORES"]) == (
        "0",
        "1",
    )
    assert said == []


def test_on_one_core_both_phases_share_it_and_that_is_said(plan: Planned) -> None:
    made, said = plan(cores=1)
    assert variables(made, "prefill")["DIPTYCH_CORES"] == variables(made, "decode")["DIPTYCH_CORES"] == "0"
    assert variables(made, "prefill")["OMP_NUM_THREADS"] == "1"
    assert said == ["2 replicas share 1 cores: they will slow each other down."]


def test_on_sixty_four_cores_no_core_belongs_to_two_phases(plan: Planned) -> None:
    made, _ = plan(cores=64, prefill={"cores": 40}, decode={"num_replicas": 2})
    assert variables(made, "prefill")["OMP_NUM_THREADS"] == "40"
    groups = [variables(made, phase)["DIPTYCH_CORES"].split(";") for phase in ("prefill", "decode")]
    assert [len(group) for group in groups] == [1, 2]
    cores = [int(core) for group in groups for replica in group for core in replica.split(",")]
    assert sorted(cores) == list(range(64))


def test_half_a_gibibyte_of_memory_is_refused_and_nothing_is_left_planned(
    plan: Planned, paths: ServicePaths
) -> None:
    with pytest.raises(StartError, match=r"Too little memory: .* 0\.5 GiB available of 0\.5 GiB"):
        plan(memory=GIB / 2)
    assert not paths.api_key.exists()


def test_the_kv_cache_is_sized_for_the_type_that_the_engine_gets(plan: Planned) -> None:
    """float32 for the embedded model, twice the checkpoint's bfloat16."""
    made, _ = plan(engine_kwargs={"max_model_len": 1_000_000})
    per_token = LAYERS * 2 * KV_HEADS * HEAD * 4
    assert config_of(made, "decode")["engine_kwargs"]["kv_cache_memory_bytes"] >= 1_000_000 * per_token
    assert config_of(made, "decode")["engine_kwargs"]["dtype"] == "float32"


def test_kv_cache_memory_of_the_document_wins_over_the_default_and_vllms_own_name_over_both(
    plan: Planned,
) -> None:
    made, _ = plan(
        prefill={"kv_cache_memory": "300MiB"},
        decode={"kv_cache_memory": "300MiB", "engine_kwargs": {"kv_cache_memory_bytes": 7 * 2**20}},
    )
    assert config_of(made, "prefill")["engine_kwargs"]["kv_cache_memory_bytes"] == 300 * 2**20
    assert config_of(made, "decode")["engine_kwargs"]["kv_cache_memory_bytes"] == 7 * 2**20


def test_the_context_is_the_models_unless_the_document_says_otherwise(plan: Planned) -> None:
    made, _ = plan(decode={"engine_kwargs": {"max_model_len": 512}})
    assert config_of(made, "prefill")["engine_kwargs"]["max_model_len"] == 4096
    assert config_of(made, "decode")["engine_kwargs"]["max_model_len"] == 512


def test_gpus_without_a_cuda_engine_are_left_alone(plan: Planned) -> None:
    made, _ = plan(gpus=(H200, H200), cuda=False)
    assert made.num_gpus == 0
    assert "num_gpus" not in config_of(made, "decode")["deployment_config"]["ray_actor_options"]


def test_with_two_gpus_each_phase_has_one_for_itself(plan: Planned) -> None:
    made, said = plan(gpus=(H200, H200), cuda=True)
    assert (made.num_gpus, said) == (2, [])
    for phase in ("prefill", "decode"):
        config = config_of(made, phase)
        assert config["deployment_config"]["ray_actor_options"]["num_gpus"] == 1
        assert config["engine_kwargs"]["gpu_memory_utilization"] == 0.9
        assert config["engine_kwargs"]["kv_transfer_config"]["kv_buffer_device"] == "cuda"
        assert "kv_cache_memory_bytes" not in config["engine_kwargs"]
        assert "enforce_eager" not in config["engine_kwargs"]


def test_with_one_gpu_both_phases_share_it_and_its_memory_and_that_is_said(plan: Planned) -> None:
    made, said = plan(gpus=(H200,), cuda=True)
    assert made.num_gpus == 1
    assert said == ["2 replicas share 1 GPU(s): each gets 50% of one and of its memory."]
    budget = 0.0
    for phase in ("prefill", "decode"):
        config = config_of(made, phase)
        assert config["deployment_config"]["ray_actor_options"]["num_gpus"] == 0.5
        budget += config["engine_kwargs"]["kv_cache_memory_bytes"]
    assert 0.5 * H200 < budget < 0.9 * H200


@pytest.mark.parametrize("gpus", [1, 2], ids=["a shared GPU", "a GPU each"])
def test_what_the_document_gives_a_kv_cache_holds_on_gpus_too(plan: Planned, gpus: int) -> None:
    own = {"kv_cache_memory_bytes": 3 * GIB}
    made, _ = plan(
        gpus=(H200,) * gpus, cuda=True, prefill={"kv_cache_memory": "2GiB"}, decode={"engine_kwargs": own}
    )
    found = [
        config_of(made, phase)["engine_kwargs"]["kv_cache_memory_bytes"] for phase in ("prefill", "decode")
    ]
    assert found == [2 * GIB, 3 * GIB]


def test_a_kv_cache_larger_than_the_share_of_a_gpu_is_refused_by_its_field(plan: Planned) -> None:
    with pytest.raises(StartError, match=r"decode is to have one of 80\.0 GiB") as refused:
        plan(gpus=(H200,), cuda=True, decode={"kv_cache_memory": "80GiB"})
    assert "Lower decode.kv_cache_memory" in (refused.value.hint or "")


def test_random_weights_take_as_much_of_a_gpu_as_the_models_own(plan: Planned) -> None:
    asked = {"gpus": (6 * GIB,) * 1, "cuda": True, "engine_kwargs": {"load_format": "dummy"}}
    with pytest.raises(StartError, match=r"holds 0\.\d GiB of weights"):
        plan(**asked)


def test_replicas_that_need_several_gpus_each_are_refused_where_there_are_too_few(plan: Planned) -> None:
    with pytest.raises(StartError, match="4 GPUs are needed, 2 are here"):
        plan(gpus=(H200, H200), cuda=True, engine_kwargs={"tensor_parallel_size": 2})


def test_a_gpu_too_small_to_share_is_refused_with_the_sum(plan: Planned) -> None:
    with pytest.raises(StartError, match="Too little GPU memory"):
        plan(gpus=(6 * GIB,), cuda=True)


def test_the_aggregated_topology_is_one_engine_as_decode_describes_it(plan: Planned) -> None:
    made, _ = plan(cores=4, topology="aggregated", decode={"engine_kwargs": {"max_num_seqs": 3}})
    config = config_of(made, "aggregated")
    assert variables(made, "aggregated")["DIPTYCH_CORES"] == "0,1,2,3"
    assert config["engine_kwargs"]["max_num_seqs"] == 3
    assert "kv_transfer_config" not in config["engine_kwargs"]
    assert (made.phases, made.engine_stages) == (["aggregated"], ["engine"])


def test_a_key_is_made_for_each_run_into_files_for_their_owner_only(
    plan: Planned, paths: ServicePaths
) -> None:
    made, _ = plan()
    first = paths.api_key.read_text()
    plan()
    assert paths.api_key.read_text() != first
    for path in (paths.api_key, paths.admin_key, paths.curl_header, paths.ray_token):
        assert path.stat().st_mode & 0o777 == 0o600
    key = paths.api_key.read_text().strip()
    assert len(key.split()) == 1
    assert paths.curl_header.read_text() == f"Authorization: Bearer {key}\n"
    assert key not in made.model_dump_json()


def test_an_admin_key_of_our_own_is_made_beside_whatever_keys_there_are(
    plan: Planned, paths: ServicePaths, own_keys: Path
) -> None:
    for access, key_file in (({}, paths.api_key), ({"api_key_file": str(own_keys)}, own_keys)):
        made, _ = plan(access=access)
        key, word = paths.admin_key.read_text().split()
        assert word == "admin"
        assert key not in key_file.read_text()
        assert key not in made.model_dump_json()
        assert made.admin_key_file == str(paths.admin_key)
        assert args_of(made)["access"] == {"api_key_file": [str(key_file), str(paths.admin_key)]}


def test_without_keys_admin_routes_still_have_one_and_that_is_said(
    plan: Planned, paths: ServicePaths
) -> None:
    made, said = plan(access={"api_keys": "none"})
    files = [str(paths.api_key), str(paths.admin_key)]
    assert args_of(made)["access"] == {"api_key_file": files, "open": True}
    assert any("need no key" in text for text in said)


def args_of(plan: Plan) -> Any:
    return plan.serve_config["applications"][0]["args"]


@pytest.fixture
def own_keys(tmp_path: Path) -> Path:
    path = tmp_path / "own-keys"
    path.write_text("first-key\nsecond-key\n")
    path.chmod(0o600)
    return path


def test_the_users_own_key_file_is_used_where_it_lies(
    plan: Planned, paths: ServicePaths, own_keys: Path
) -> None:
    made, _ = plan(access={"api_key_file": str(own_keys)})
    assert made.api_key_file == str(own_keys)
    assert paths.curl_header.read_text() == "Authorization: Bearer first-key\n"
    assert not paths.api_key.exists()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.chmod(0o644), "can be read by others"),
        (lambda path: path.write_text("\n# none\n"), "holds no key"),
        (lambda path: path.write_text("dk-1\ndk-2 dk-3\n"), "has more than keys on line 2"),
        (lambda path: path.write_text("admin\ndk-1 priority\n"), "has more than keys on lines 1, 2"),
        (lambda path: path.unlink(), "cannot be read: No such file"),
    ],
)
def test_a_key_file_that_will_not_do_is_an_error_that_names_it(
    plan: Planned, own_keys: Path, spoil: Callable[[Path], Any], said: str
) -> None:
    spoil(own_keys)
    with pytest.raises(SetupError, match=said) as caught:
        plan(access={"api_key_file": str(own_keys)})
    assert str(own_keys) in caught.value.message
    assert "dk-" not in caught.value.message + caught.value.hint


def test_the_first_key_of_a_file_is_the_one_for_curl_without_what_it_may(
    plan: Planned, paths: ServicePaths, own_keys: Path
) -> None:
    own_keys.write_text("# ours\n\ndk-1 priority=3 admin\ndk-2\n")
    plan(access={"api_key_file": str(own_keys)})
    assert paths.curl_header.read_text() == "Authorization: Bearer dk-1\n"


def test_keys_in_a_variable_reach_a_private_file_and_no_process(
    plan: Planned, paths: ServicePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEYS", "first-key priority=1\nsecond-key")
    made, _ = plan(access={"api_key_env": "MY_KEYS"})
    assert paths.api_key.read_text() == "first-key priority=1\nsecond-key\n"
    assert paths.api_key.stat().st_mode & 0o777 == 0o600
    assert "first-key" not in made.model_dump_json()
    environment = service_environment("run", "127.0.0.1", paths.ray_token, made.withheld_variables)
    assert "MY_KEYS" not in environment


def test_keys_in_a_variable_that_share_a_line_are_refused_and_not_shown(
    plan: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEYS", "first-key second-key")
    with pytest.raises(SetupError, match="The variable MY_KEYS has more than keys on line 1") as caught:
        plan(access={"api_key_env": "MY_KEYS"})
    assert "second-key" not in caught.value.message + caught.value.hint


def test_a_variable_with_keys_that_is_not_set_is_an_error_that_names_it(
    plan: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MY_KEYS", raising=False)
    with pytest.raises(SetupError, match=r"MY_KEYS, which access\.api_key_env names, is not set"):
        plan(access={"api_key_env": "MY_KEYS"})


def test_a_hybrid_models_state_lies_as_nixl_can_move_it(
    plan: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    hybrid = ModelShape.from_config(shipped_config("Qwen/Qwen3.5-9B") or {})
    monkeypatch.setattr(planning, "_shape", lambda model: hybrid)
    made, _ = plan(model={"source": "embedded"}, decode={"kv_cache_memory": "512MiB"})
    for phase in ("prefill", "decode"):
        config = made.serve_config["applications"][0]["args"][f"{phase}_config"]
        assert config["runtime_env"]["env_vars"]["VLLM_SSM_CONV_STATE_LAYOUT"] == "DS"


def test_a_plan_is_the_same_after_it_was_written_and_read(plan: Planned, paths: ServicePaths) -> None:
    made, _ = plan()
    made.save(paths.plan)
    assert Plan.load(paths.plan) == made
    assert paths.plan.stat().st_mode & 0o777 == 0o600
