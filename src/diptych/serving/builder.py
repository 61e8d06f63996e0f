"""Builds the application that Ray Serve runs.

`build_app` takes the arguments of `ray.serve.llm:build_pd_openai_app` (a drop-in for it) or, for the aggregated
topology, one `llm_config`; and beside them `access`, which is ours.
"""

from typing import Any

from ray import serve
from ray.serve.deployment import Application
from ray.serve.llm import LLMConfig

from diptych.serving.ray_llm import PDServingArgs, build_llm_deployment
from diptych.serving.servers import (
    AggregatedServer,
    DataParallelAggregatedServer,
    DataParallelDecodeServer,
    DataParallelPrefillServer,
    DecodeServer,
    PrefillServer,
)

# A dead engine is noticed within HEALTH_CHECK_PERIOD_S and its replica replaced after three failed checks.
HEALTH_CHECK_PERIOD_S = 4.0
HEALTH_CHECK_TIMEOUT_S = 10.0


def build_app(args: dict[str, Any]) -> Application:
    """Build the split application, or the aggregated one when `llm_config` is given.

    Args:
        args: `prefill_config` and `decode_config` as for Ray's builder, or `llm_config`; and optionally
            `access: {api_key_file: PATH}`.

    Raises:
        pydantic.ValidationError: the configurations do not fit each other or Ray's schema.
    """
    own = dict(args)
    access = own.pop("access", None) or {}
    facing = {"api_key_file": access.get("api_key_file")}
    if "llm_config" in own:
        whole = LLMConfig.model_validate(own["llm_config"])
        server = _server(whole, AggregatedServer, DataParallelAggregatedServer)
        return _deploy(whole, "Aggregated:", serve.ingress()(server), facing)
    config = PDServingArgs.model_validate(own)
    server = _server(config.prefill_config, PrefillServer, DataParallelPrefillServer)
    facing["prefill_server"] = _deploy(config.prefill_config, "Prefill:", server, {})
    server = _server(config.decode_config, DecodeServer, DataParallelDecodeServer)
    return _deploy(config.decode_config, "Decode:", serve.ingress()(server), facing)


def _server(config: Any, alone: type, data_parallel: type) -> type:
    return data_parallel if config.engine_kwargs.get("data_parallel_size", 1) > 1 else alone


def _deploy(config: LLMConfig, prefix: str, cls: Any, bound: dict[str, Any]) -> Application:
    health = {
        "health_check_period_s": HEALTH_CHECK_PERIOD_S,
        "health_check_timeout_s": HEALTH_CHECK_TIMEOUT_S,
    }
    return build_llm_deployment(
        config, name_prefix=prefix, bind_kwargs=bound, deployment_cls=cls, override_serve_options=health
    )
