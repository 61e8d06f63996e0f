"""The one room for Ray Serve LLM's internals: every name of `ray.llm._internal` that we extend or call.

Checked on Ray 2.58 (vLLM 0.26) and Ray 2.60 (vLLM 0.29). When a Ray version moves one of these, it is
mended here and nowhere else.
"""

import contextlib
import pickle
import uuid
from typing import Any

import ray
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
from ray.serve._private.common import ReplicaID, RequestMetadata
from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter

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
    "remember",
    "remembers",
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
        References to the answers, to be awaited one by one: a replica that is gone keeps no other waiting. None
        while the handle knows of no replica. Blocks while it looks the replicas up.
    """
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=True)
    router = getattr(handle._router, "_asyncio_router", handle._router).request_router
    if router is None or not handle.running_replicas_populated():
        return []
    replicas = list(router._replica_id_set) if only is None else [ReplicaID(only, handle.deployment_id)]
    calls = []
    for replica in replicas:
        call_id = f"{method}-{uuid.uuid4()}"
        metadata = RequestMetadata(request_id=call_id, internal_request_id=call_id, call_method=method)
        with contextlib.suppress(ValueError):  # it is gone
            actor = ray.get_actor(replica.to_full_id_str(), namespace="serve")
            calls.append(actor.handle_request.remote(pickle.dumps(metadata), *arguments))
    return calls


def remember(key: str) -> None:
    """Have the cluster remember a key for as long as its head lives. Blocks for a call to the head."""
    internal_kv._internal_kv_put(key.encode(), b"1", namespace=_NAMESPACE)


def remembers(key: str) -> bool:
    """Whether the cluster remembers a key. Blocks for a call to the head."""
    return bool(internal_kv._internal_kv_exists(key.encode(), namespace=_NAMESPACE))
