"""The one room for Ray Serve LLM's internals: every name of `ray.llm._internal` that we extend or call.

Checked on Ray 2.58 (vLLM 0.26) and Ray 2.60 (vLLM 0.29). When a Ray version moves one of these, it is
mended here and nowhere else.
"""

from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.llm._internal.serve.core.configs.openai_api_models import (
    ChatCompletionRequest,
    CompletionRequest,
    ErrorResponse,
)
from ray.llm._internal.serve.core.ingress.utils import (
    NON_STREAMING_RESPONSE_TYPES,
)
from ray.llm._internal.serve.core.ingress.utils import (
    _sanitize_chat_completion_request as materialise_chat_messages,
)
from ray.llm._internal.serve.core.protocol import RawRequestInfo
from ray.llm._internal.serve.core.server.builder import build_llm_deployment
from ray.llm._internal.serve.core.server.llm_server import LLMServer
from ray.llm._internal.serve.engines.vllm.kv_transfer.base import base_prefill_kv_transfer_params
from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine
from ray.llm._internal.serve.serving_patterns.data_parallel.dp_server import DPServer
from ray.llm._internal.serve.serving_patterns.prefill_decode.builder import PDServingArgs
from ray.llm._internal.serve.serving_patterns.prefill_decode.pd_server import (
    DPPDDecodeServer,
    DPPDPrefillServer,
    PDDecodeServer,
    PDPrefillServer,
)
from ray.llm._internal.serve.utils.broadcast import broadcast

__all__ = [
    "NON_STREAMING_RESPONSE_TYPES",
    "CallbackBase",
    "ChatCompletionRequest",
    "CompletionRequest",
    "DPPDDecodeServer",
    "DPPDPrefillServer",
    "DPServer",
    "ErrorResponse",
    "LLMServer",
    "PDDecodeServer",
    "PDPrefillServer",
    "PDServingArgs",
    "RawRequestInfo",
    "VLLMEngine",
    "base_prefill_kv_transfer_params",
    "broadcast",
    "build_llm_deployment",
    "materialise_chat_messages",
]
