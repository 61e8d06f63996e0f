"""Builds the application that Ray Serve runs.

`build_app` takes the arguments of `ray.serve.llm:build_pd_openai_app` (a drop-in for it) or, for the aggregated
topology, one `llm_config`; and beside them `access`, which is ours.
"""

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.deployment import Application
from ray.serve.llm import LLMConfig

from diptych.serving.generation import settings_digest
from diptych.serving.ray_llm import PDServingArgs, build_llm_deployment
from diptych.serving.servers import (
    AggregatedServer,
    DataParallelAggregatedServer,
    DataParallelDecodeServer,
    DataParallelPrefillServer,
    DecodeServer,
    PrefillServer,
)
from diptych.serving.settings import settings_of

# A dead engine is noticed within HEALTH_CHECK_PERIOD_S and its replica replaced after three failed checks.
HEALTH_CHECK_PERIOD_S = 4.0
HEALTH_CHECK_TIMEOUT_S = 10.0
_ROUTED = {
    "request_router_config": RequestRouterConfig(
        request_router_class="diptych.serving.router:ChosenReplicaRouter"
    )
}


def build_app(args: dict[str, Any]) -> Application:
    """Build the split application, or the aggregated one when `llm_config` is given.

    Args:
        args: `prefill_config` and `decode_config` as for Ray's builder, or `llm_config`; and optionally `access`
            (who may: `access.AccessMiddleware`'s arguments) and `orchestrator` (`settings.Settings`).

    Raises:
        pydantic.ValidationError: the configurations do not fit each other or Ray's schema.
        ValueError: `orchestrator` has a name or value that there is none of.
    """
    own = dict(args)
    facing: dict[str, Any] = {name: own.pop(name, None) or {} for name in ("access", "orchestrator")}
    settings_of(facing["orchestrator"])
    digest = settings_digest(own)
    facing["digest"] = digest
    if "llm_config" in own:
        whole = LLMConfig.model_validate(own["llm_config"])
        server = _server(whole, AggregatedServer, DataParallelAggregatedServer)
        return _deploy(whole, "Aggregated:", serve.ingress()(server), facing)
    config = PDServingArgs.model_validate(own)
    server = _server(config.prefill_config, PrefillServer, DataParallelPrefillServer)
    prefill = _deploy(config.prefill_config, "Prefill:", server, {"digest": digest}, _ROUTED)
    server = _server(config.decode_config, DecodeServer, DataParallelDecodeServer)
    bound = facing | {"prefill_server": prefill}
    return _deploy(config.decode_config, "Decode:", serve.ingress()(server), bound)


def _server(config: Any, alone: type, data_parallel: type) -> type:
    return data_parallel if config.engine_kwargs.get("data_parallel_size", 1) > 1 else alone


def _deploy(
    config: LLMConfig,
    prefix: str,
    cls: Any,
    bound: dict[str, Any],
    more: Mapping[str, Any] | None = None,
) -> Application:
    options = {
        "health_check_period_s": HEALTH_CHECK_PERIOD_S,
        "health_check_timeout_s": HEALTH_CHECK_TIMEOUT_S,
        **(more or {}),
    }
    return build_llm_deployment(
        config, name_prefix=prefix, bind_kwargs=bound, deployment_cls=cls, override_serve_options=options
    )
