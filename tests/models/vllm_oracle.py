"""What vLLM itself makes of a model's config: run as a program, with requests as JSON on standard input.

Models are built on torch's meta device, so that nothing is allocated. Four things are put in place of what a
machine without a GPU lacks; none changes a shape: torchvision (only image processing uses it), sparse attention
(the dense kind keeps the same cache), a kernel for experts without a gate, and the other GPUs of a group.
Quantised configs are built plain: this machine has no kernels for them.
"""

import contextlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

MAX_MODEL_LEN = 4096


class NoTorchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers imports of torchvision with modules that hold anything."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        module = MagicMock(name=spec.name)
        module.__path__, module.__version__ = [], "0.0"
        module.__spec__, module.__name__ = spec, spec.name
        return module

    def exec_module(self, module: Any) -> None:
        pass


def patch_vllm() -> None:
    """Look models' classes up in this process, and stand in for the kernels that a CPU lacks."""
    from vllm.model_executor.layers.fused_moe import config, unquantized_fused_moe_method
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
    from vllm.model_executor.models import registry
    from vllm.platforms.cpu import CpuPlatform

    registry._LazyRegisteredModel.inspect_model_cls = lambda self: registry._ModelInfo.from_model_cls(
        self.load_model_cls()
    )
    attention, check = CpuPlatform.get_attn_backend_cls.__func__, config.FusedMoEConfig.__post_init__
    select = unquantized_fused_moe_method.select_unquantized_moe_backend

    def dense(cls: Any, selected_backend: Any, attn_selector_config: Any, **kwargs: Any) -> Any:
        return attention(cls, selected_backend, attn_selector_config._replace(use_sparse=False), **kwargs)

    def unchecked(self: Any) -> None:
        with contextlib.suppress(NotImplementedError):
            check(self)

    def any_backend(*args: Any, **kwargs: Any) -> Any:
        try:
            return select(*args, **kwargs)
        except NotImplementedError:
            return UnquantizedMoeBackend.CPU, None

    CpuPlatform.get_attn_backend_cls = classmethod(dense)
    config.FusedMoEConfig.__post_init__ = unchecked
    unquantized_fused_moe_method.select_unquantized_moe_backend = any_backend


def build(config: dict[str, Any], tensor_parallel: int, directory: Path) -> tuple[Any, Any, int]:
    """The engine's config, the model on the meta device, as one GPU of a group holds it, and its context length."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import destroy_model_parallel, initialize_model_parallel, parallel_state
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

    plain = {k: v for k, v in config.items() if k not in ("quantization_config", "auto_map")}
    if str(plain["architectures"][0]).startswith("Qwen3VL"):  # vLLM's CPU platform wants it inside as well
        plain["text_config"] = {"architectures": ["Qwen3ForCausalLM"], **plain["text_config"]}
    (directory / "config.json").write_text(json.dumps(plain))
    engine = EngineArgs(
        model=str(directory),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=MAX_MODEL_LEN,
        enable_prefix_caching=False,
        block_size=16,
        mamba_ssm_cache_dtype="float32",  # what vLLM takes by itself on some CPUs, and not on others
    ).create_engine_config()
    longest = context_length(engine.model_config)  # models write into their config when they are built
    with set_current_vllm_config(engine):
        destroy_model_parallel()
        initialize_model_parallel(1)
        engine.parallel_config.tensor_parallel_size = tensor_parallel
        parallel_state._TP.world_size = tensor_parallel
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("meta"):
                model = initialize_model(engine)
        finally:
            torch.set_default_dtype(torch.float32)
    return engine, model, longest


def describe(engine: Any, model: Any, longest: int) -> dict[str, Any]:
    """Weights, the cache of each layer, and how vLLM groups and pages it."""
    from vllm.platforms import current_platform
    from vllm.v1.core import kv_cache_utils

    current_platform.update_block_size_for_backend(engine)
    engine.cache_config.kv_cache_layout = "LBNHC"
    engine.scheduler_config.disable_hybrid_kv_cache_manager = False
    layers = engine.compilation_config.static_forward_context
    found = {
        name: layer.get_kv_cache_spec(engine)
        for name, layer in layers.items()
        if hasattr(layer, "get_kv_cache_spec")
    }
    specs = {name: spec for name, spec in found.items() if spec is not None}
    recurrent = [spec for spec in specs.values() if type(spec).__name__ == "MambaSpec"]
    attention = [spec for spec in specs.values() if type(spec).__name__ != "MambaSpec"]
    groups = kv_cache_utils.get_kv_cache_groups(engine, dict(specs))
    return {
        "parameters": sum(tensor.numel() for tensor in model.parameters()),
        "weight_bytes": sum(tensor.numel() * tensor.element_size() for tensor in model.parameters()),
        "kv_bytes_per_token": sum(spec.page_size_bytes // spec.block_size for spec in attention),
        "state_bytes": sum(spec.state_content_size_bytes for spec in recurrent),
        "block_bytes": kv_cache_utils._pool_bytes_per_block(groups),
        "sequence_bytes": kv_cache_utils._max_memory_usage_bytes_from_groups(engine, groups),
        "groups": len(groups),
        "in_flight": engine.max_in_flight_tokens,
        "context_length": longest,
    }


def context_length(model: Any) -> int:
    """The longest sequence that vLLM takes where none is asked for."""
    from vllm.config.model import _get_and_verify_max_len

    return _get_and_verify_max_len(
        hf_config=model.hf_text_config,
        model_arch_config=model.model_arch_config,
        tokenizer_config=None,
        max_model_len=None,
        disable_sliding_window=False,
        sliding_window=None,
    )


def main() -> None:
    """Answer `{name: {"config", "tensor_parallel"}}` with `{name: description or {"error"}}`."""
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    requests = json.load(sys.stdin)
    sys.meta_path.append(NoTorchvision())
    from vllm.distributed import init_distributed_environment

    patch_vllm()
    answers = {}
    with tempfile.TemporaryDirectory() as directory:
        meeting = f"file://{directory}/meeting"
        init_distributed_environment(1, 0, distributed_init_method=meeting, local_rank=0, backend="gloo")
        for name, request in requests.items():
            try:
                answers[name] = describe(
                    *build(request["config"], request["tensor_parallel"], Path(directory))
                )
            except Exception as error:
                answers[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    Path(sys.argv[1]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
