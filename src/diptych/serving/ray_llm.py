"""The one room for Ray Serve LLM's internals: every name of `ray.llm._internal` that we extend or call.

Checked on Ray 2.58 (vLLM 0.26) and Ray 2.60 (vLLM 0.29). When a Ray version moves one of these, it is
mended here and nowhere else.
"""

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
from ray.llm._internal.serve.utils.broadcast import broadcast

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
    "VLLMEngine",
    "broadcast",
    "build_llm_deployment",
]
