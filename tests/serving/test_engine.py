"""What an engine is told where its configuration leaves it open."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")
pytest.importorskip("vllm")

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from diptych.serving import connector
from diptych.serving.engine import Engine
from diptych.serving.ray_llm import VLLMEngine


def prepared(
    monkeypatch: pytest.MonkeyPatch, engine_kwargs: dict[str, Any], **transfer: Any
) -> tuple[Any, Any]:
    """The arguments and the configuration with which the engine starts, when Ray makes these of its own."""
    made = SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=2, data_parallel_size=1, worker_extension_cls=""),
        scheduler_config=SimpleNamespace(policy=engine_kwargs.get("scheduling_policy", "fcfs")),
        kv_transfer_config=SimpleNamespace(
            **{"kv_connector": "NixlConnector", "kv_connector_module_path": None, "engine_id": "e"} | transfer
        ),
    )
    arguments = SimpleNamespace(scheduling_policy=made.scheduler_config.policy)
    monkeypatch.setattr(VLLMEngine, "_prepare_engine_config", lambda *_: (arguments, None, made))
    engine = Engine.__new__(Engine)
    engine.llm_config = SimpleNamespace(engine_kwargs=engine_kwargs)
    told, _, config = engine._prepare_engine_config(None)
    return told, config


def test_nixls_connector_is_the_one_that_records_kv_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    _, config = prepared(monkeypatch, {})
    assert KVConnectorFactory.get_connector_class(config.kv_transfer_config) is connector.NixlConnector


@pytest.mark.parametrize(
    "given",
    [{"kv_connector_module_path": "mine"}, {"kv_connector": "MultiConnector"}],
    ids=["a module of the user's", "another connector"],
)
def test_a_connector_that_the_user_chose_stays(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    _, config = prepared(monkeypatch, {}, **given)
    asked = {"kv_connector": "NixlConnector", "kv_connector_module_path": None} | given
    transfer = config.kv_transfer_config
    assert {name: getattr(transfer, name) for name in asked} == asked


@pytest.mark.parametrize(
    ("engine_kwargs", "policy"), [({}, "priority"), ({"scheduling_policy": "fcfs"}, "fcfs")]
)
def test_priorities_count_unless_the_user_chose_otherwise(
    monkeypatch: pytest.MonkeyPatch, engine_kwargs: dict[str, str], policy: str
) -> None:
    told, config = prepared(monkeypatch, engine_kwargs)
    assert (told.scheduling_policy, config.scheduler_config.policy) == (policy, policy)
