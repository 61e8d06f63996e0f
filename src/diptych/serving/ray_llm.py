"""The one room for Ray's internals: every name of its that we extend or call.

It serves the versions in `ray_versions`, whose names are the same, and refuses others at once: they would fail later,
and elsewhere. When a Ray version moves one of these, it is mended here and nowhere else.
"""
# ruff: noqa: E402 - the version comes first

import contextlib
import pickle
import uuid
from collections.abc import Callable
from typing import Any

import ray

from diptych.serving.ray_versions import require_ray

require_ray(ray.__version__)

import ray.serve._private.replica as replica_module
from ray.experimental import internal_kv
from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.llm._internal.serve.core.configs.openai_api_models import ChatCompletionRequest
from ray.llm._internal.serve.core.server.builder import build_llm_deployment
from ray.llm._internal.serve.core.server.llm_server import LLMServer
from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine
from ray.llm._internal.serve.serving_patterns.data_parallel.dp_server import DPServer
from ray.llm._internal.serve.serving_patterns.prefill_decode.builder import PDServingArgs
from ray.llm._internal.serve.serving_patterns.prefill_decode.pd_server import (
    DPPDDecodeServer,
    DPPDPrefillServer,
    PDDecodeServer,
    PDOrchestratorMixin,
    PDPrefillServer,
)
from ray.serve._private.common import ReplicaID, RequestMetadata, ServeComponentType
from ray.serve._private.logging_utils import configure_component_logger
from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter
from ray.serve.schema import LoggingConfig

__all__ = [
    "CallbackBase",
    "ChatCompletionRequest",
    "DPPDDecodeServer",
    "DPPDPrefillServer",
    "DPServer",
    "LLMServer",
    "PDDecodeServer",
    "PDOrchestratorMixin",
    "PDPrefillServer",
    "PDServingArgs",
    "PowerOfTwoChoicesRequestRouter",
    "VLLMEngine",
    "build_llm_deployment",
    "call_every_replica",
    "change_grpc_address",
    "remember",
    "remembers",
    "replica_names",
    "set_up_replica_log",
]

_NAMESPACE = b"diptych"


def call_every_replica(handle: Any, method: str, *arguments: Any, only: str | None = None) -> list[Any]:
    """Call a method of every replica that a handle knows, past Serve's routing.

    Args:
        handle: to the deployment.
        method: of its class.
        arguments: of the method.
        only: the name of the one replica to call, also when Serve is taking it away; None: all that are there.

    Returns:
        References to the answers, to be awaited one by one: a replica that is gone keeps no other waiting. Empty
        while the handle knows of no replica. Blocks while it looks the replicas up.
    """
    known = _replicas(handle)
    if known is None:
        return []
    replicas = known if only is None else [ReplicaID(only, handle.deployment_id)]
    calls = []
    for replica in replicas:
        call_id = f"{method}-{uuid.uuid4()}"
        metadata = RequestMetadata(request_id=call_id, internal_request_id=call_id, call_method=method)
        with contextlib.suppress(ValueError):  # it is gone
            actor = ray.get_actor(replica.to_full_id_str(), namespace="serve")
            calls.append(actor.handle_request.remote(pickle.dumps(metadata), *arguments))
    return calls


def replica_names(handle: Any) -> set[str] | None:
    """The replicas to which a handle sends calls: those that Serve takes away are not among them.

    None while the handle knows nothing yet. Does not block once it does.
    """
    known = _replicas(handle)
    return None if known is None else {each.unique_id for each in known}


def _replicas(handle: Any) -> list[Any] | None:
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=True)
    router = getattr(handle._router, "_asyncio_router", handle._router).request_router
    if router is None or not handle.running_replicas_populated():
        return None
    return list(router._replica_id_set)


def remember(key: str) -> None:
    """Have the cluster remember a key for as long as its head lives. Blocks for a call to the head."""
    internal_kv._internal_kv_put(key.encode(), b"1", namespace=_NAMESPACE)


def remembers(key: str) -> bool:
    """Whether the cluster remembers a key. Blocks for a call to the head."""
    return bool(internal_kv._internal_kv_exists(key.encode(), namespace=_NAMESPACE))


def change_grpc_address(changed: Callable[[str], str]) -> None:
    """Have Serve bind this replica's gRPC server elsewhere; before it starts the server.

    Args:
        changed: makes the address of Serve's (`[::]:PORT`).
    """
    bind = replica_module.add_port_to_grpc_server

    def bind_there(server: Any, address: str) -> int:
        port: int = bind(server, changed(address))
        return port

    replica_module.add_port_to_grpc_server = bind_there


def set_up_replica_log(context: Any) -> None:
    """Have Serve set up a replica's log, as it does when the replica starts.

    Args:
        context: of the replica, as Serve gives it (`serve.get_replica_context()`).
    """
    config = context._deployment_config.logging_config or {}
    configure_component_logger(
        component_type=ServeComponentType.REPLICA,
        component_name="_".join(name for name in (context.app_name, context.deployment) if name),
        component_id=context.replica_id.unique_id,
        logging_config=config if isinstance(config, LoggingConfig) else LoggingConfig(**config),
    )
