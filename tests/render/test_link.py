"""What the link is told: by model, backend and vLLM's version, under what the document says; and what is left."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from diptych.models.config import ModelShape
from diptych.render.engine import engine_settings
from diptych.render.inputs import Facts
from diptych.render.link import BACKEND, Link, link_settings
from diptych.spec import Document


def shape(**fields: Any) -> ModelShape:
    """Qwen3-8B's, with other fields."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16",
    }
    return ModelShape.from_config(config | fields)


HYBRID = {
    "model_type": "qwen3_next",
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "num_hidden_layers": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
SLIDING = {
    "sliding_window": 1024,
    "use_sliding_window": True,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}


def document(**fields: Any) -> Document:
    return Document.model_validate({"on": "eks", "model": "Qwen/Qwen3-8B", **fields})


def test_with_vllm_0_26_all_layers_are_one_block() -> None:
    found = link_settings(Link(shape(), "0.26.0"))
    assert found.kwargs == {"block_size": 64}
    assert found.connector == {"enable_cross_layers_blocks": "True"}
    assert found.environment == {"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_KV_CACHE_LAYOUT": "HND"}
    assert found.reasons.keys() == {*found.kwargs, *found.connector, *found.environment}


@pytest.mark.parametrize("vllm", ["0.29.0", None])
def test_where_vllm_can_t_blocks_are_larger(vllm: str | None) -> None:
    found = link_settings(Link(shape(), vllm))
    assert (found.kwargs, found.connector, found.environment) == ({"block_size": 128}, {}, {})


def test_layers_that_keep_different_things_are_not_one_block() -> None:
    assert link_settings(Link(shape(**SLIDING), "0.26.0")).kwargs == {"block_size": 128}


@pytest.mark.parametrize("unlike", [None, shape(**HYBRID)], ids=["unknown", "hybrid"])
def test_hybrid_and_unknown_models_keep_vllms_own_blocks(unlike: ModelShape | None) -> None:
    found = link_settings(Link(unlike, "0.26.0"))
    assert found.kwargs == {}
    why = "config is not known" if unlike is None else "pads them to its state's size"
    assert why in found.left["block_size"].reason


MLA = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}


def test_latent_attention_keeps_vllms_own_blocks() -> None:
    found = link_settings(Link(shape(**MLA), "0.26.0"))
    assert found.kwargs == {}
    assert "latent attention" in found.left["block_size"].reason


def test_in_the_hosts_memory_nothing_is_set() -> None:
    found = link_settings(Link(shape(), "0.26.0", in_host_memory=True))
    assert found.values == {}
    assert "from GPU to GPU" in found.left["block_size"].reason
    assert "shared memory" in found.left[BACKEND].reason


@pytest.mark.parametrize(
    ("link", "why"),
    [
        (Link(shape(), "0.26.0", across_layers=False), "the document refuses it"),
        (Link(None, "0.26.0"), "config is not known"),
        (Link(shape(**SLIDING), "0.26.0"), "don't all keep the same"),
        (Link(shape(), "0.26.0", drafts=True), "don't all keep the same"),
        (Link(shape(), None), "version is not known"),
        (Link(shape(), "0.29.0"), "only vLLM 0.26 has it"),
        (Link(shape(), "0.26.0", in_host_memory=True), "from GPU to GPU"),
    ],
)
def test_where_layers_are_blocks_apart_it_says_why(link: Link, why: str) -> None:
    found = link_settings(link)
    assert found.connector == {}
    assert why in found.left["enable_cross_layers_blocks"].reason
    assert "enable_cross_layers_blocks" not in link_settings(Link(shape(), "0.26.0")).left


@pytest.mark.parametrize(
    ("backend", "why"), [("LIBFABRIC", "all worker pods have EFA"), ("UCX", "not all worker pods have EFA")]
)
def test_on_a_cluster_efa_decides_the_backend(backend: str, why: str) -> None:
    found = link_settings(Link(shape(), "0.26.0", backend, on_cluster=True))
    assert found.fields == {BACKEND: backend}
    assert why in found.reasons[BACKEND]


def test_between_gpus_of_one_machine_it_is_vllms_own() -> None:
    found = link_settings(Link(shape(), "0.26.0"))
    assert found.fields == {}
    assert "NVLink" in found.left[BACKEND].reason


@pytest.mark.parametrize(
    ("backend", "threads"), [(None, "4"), ("UCX", "4"), ("LIBFABRIC", "NIXL's own"), ("GDS", "NIXL's own")]
)
def test_threads_are_left_and_only_ucx_is_given_a_number(backend: str | None, threads: str) -> None:
    assert link_settings(Link(shape(), "0.26.0", backend)).left["num_threads"].value == threads


def test_vllm_has_what_is_said_to_be_left_to_it() -> None:
    worker = find_spec("vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker")
    if worker is None or worker.origin is None:
        pytest.skip("no vLLM here")
    source = "".join(Path(worker.origin).read_text().split())
    assert '"backends",["UCX"]' in source
    assert '"num_threads",4' in source
    assert "nixl_agent_config(num_threads=num_threads" in source
    assert (
        "nixl_agent_config(backends=self.nixl_backends,capture_telemetry=True)iflen(non_ucx_backends)>0"
        in source
    )


def test_decode_pulls_with_the_connector_that_is_shipped() -> None:
    shipped = (Path(__file__).parents[2] / "src/diptych/serving/connector.py").read_text()
    assert link_settings(Link(None, None)).ways["push or pull"].value == "pull"
    assert "NixlPullConnectorWorker)" in shipped
    assert "Push" not in shipped


SERVING = Path(__file__).parents[2] / "src/diptych/serving"


def test_graphs_are_warmed_before_a_replica_is_ready() -> None:
    assert link_settings(Link(None, None)).ways["warm-up of graphs"].value == "before ready"
    start = (SERVING / "phase.py").read_text().split("async def _start_engine")[1].split("def ")[0]
    assert "await self._warm_up()" in start


def test_handshakes_are_made_by_the_proof_at_the_start() -> None:
    way = link_settings(Link(None, None)).ways["warm-up of handshakes"]
    assert way.value == "at the start"
    assert "pass_gate(" in (SERVING / "decode_server.py").read_text()
    assert "while self._period_s:" in (SERVING / "proof.py").read_text()


@pytest.mark.parametrize("shape_", [None, shape(), shape(**HYBRID), shape(**SLIDING), shape(**MLA)])
@pytest.mark.parametrize("vllm", [None, "0.26.0", "0.29.0"])
@pytest.mark.parametrize("backend", [None, "UCX", "LIBFABRIC"])
@pytest.mark.parametrize("in_host_memory", [False, True])
def test_every_situation_has_each_setting_once_with_a_reason(
    shape_: ModelShape | None, vllm: str | None, backend: str | None, in_host_memory: bool
) -> None:
    found = link_settings(
        Link(shape_, vllm, backend, on_cluster=backend is not None, in_host_memory=in_host_memory)
    )
    names = [*found.values, *found.left, *found.ways]
    assert len(names) == len(set(names))
    assert {BACKEND, "block_size", "enable_cross_layers_blocks", "num_threads", "push or pull"} <= {*names}
    assert found.values.keys() == found.reasons.keys()
    assert all(found.reasons.values())
    assert all(way.reason for way in (*found.left.values(), *found.ways.values()))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_both_phases_on_a_cluster_get_it_with_its_reasons(phase: Any) -> None:
    found = engine_settings(document(), phase, Facts(shape=shape()))
    assert found.kwargs["block_size"] == 64
    assert (
        found.kwargs["kv_transfer_config"]["kv_connector_extra_config"]["enable_cross_layers_blocks"]
        == "True"
    )
    assert found.environment["VLLM_KV_CACHE_LAYOUT"] == "HND"
    assert "block_size" in found.reasons


def test_the_document_wins() -> None:
    made = document(
        engine_kwargs={"block_size": 32},
        kv_transfer={"kv_connector_extra_config": {"enable_cross_layers_blocks": "False"}},
    )
    found = engine_settings(made, "decode", Facts(shape=shape()))
    assert found.kwargs["block_size"] == 32
    assert "VLLM_USE_V2_MODEL_RUNNER" not in found.environment
    assert "block_size" not in found.reasons


def test_the_aggregated_topology_and_the_hosts_memory_need_none() -> None:
    for made in (document(topology="aggregated"), document(kv_transfer={"kv_buffer_device": "cpu"})):
        assert "block_size" not in engine_settings(made, "decode", Facts(shape=shape())).kwargs


def test_with_a_model_that_drafts_layers_are_not_one_block() -> None:
    made = document(engine_kwargs={"speculative_config": {"method": "dspark", "model": "a/b"}})
    found = engine_settings(made, "decode", Facts(shape=shape()))
    assert found.kwargs["block_size"] == 128
    assert "VLLM_USE_V2_MODEL_RUNNER" not in found.environment
