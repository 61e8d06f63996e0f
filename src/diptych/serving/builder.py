"""Builds the application that Ray Serve runs.

`build_app` takes the arguments of `ray.serve.llm:build_pd_openai_app` (a drop-in for it) or, for the aggregated
topology, one `llm_config`; and beside them `access`, `orchestrator` and `transport`, which are ours. What of Ray's
arguments has no meaning here is refused (`stock`).
"""

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.deployment import Application
from ray.serve.llm import LLMConfig

from diptych.serving.access import behind_haproxy
from diptych.serving.asked import transport_of
from diptych.serving.decode_server import DataParallelDecodeServer, DecodeServer
from diptych.serving.facing import AggregatedServer, DataParallelAggregatedServer
from diptych.serving.generation import settings_digest
from diptych.serving.prefill_server import DataParallelPrefillServer, PrefillServer
from diptych.serving.ray_llm import PDServingArgs, build_llm_deployment
from diptych.serving.settings import settings_of
from diptych.serving.stock import ingress_options, refuse_beside_whole, refuse_others

# A dead engine is noticed within HEALTH_CHECK_PERIOD_S and its replica replaced after three failed checks.
HEALTH_CHECK_PERIOD_S = 4.0
HEALTH_CHECK_TIMEOUT_S = 10.0
# So often a replica that faces clients is asked whether it refuses prompts, for Serve's own proxy to know.
REFUSALS_TOLD_PERIOD_S = 1.0
_ROUTERS = "diptych.serving.router"


def build_app(args: dict[str, Any]) -> Application:
    """Build the split application, or the aggregated one when `llm_config` is given.

    Args:
        args: `prefill_config` and `decode_config` as for Ray's builder, or `llm_config`; and optionally `access`
            (who may: `access.AccessMiddleware`'s arguments), `orchestrator` (`settings.Settings`) and `transport`
            (what is asked of the KV transfer: `asked.transport_of`).

    Raises:
        pydantic.ValidationError: the configurations do not fit each other or Ray's schema.
        ValueError: `orchestrator` or `transport` has a name or value that there is none of, or an argument of Ray's
            builder is one that has no meaning here.
    """
    own = dict(args)
    facing: dict[str, Any] = {name: own.pop(name, None) or {} for name in ("access", "orchestrator")}
    settings_of(facing["orchestrator"])
    transport = transport_of(own.pop("transport", None))
    digest = settings_digest(own)
    facing["digest"] = digest
    if "llm_config" in own:
        refuse_beside_whole(own)
        whole = LLMConfig.model_validate(own["llm_config"])
        refuse_others(whole, "llm_config")
        server = _server(whole, AggregatedServer, DataParallelAggregatedServer)
        return _deploy(whole, "Aggregated:", serve.ingress()(server), facing, _facing_router(whole))
    config = PDServingArgs.model_validate(own)
    options = ingress_options(config)
    server = _server(config.prefill_config, PrefillServer, DataParallelPrefillServer)
    router = _routed("ChosenReplicaRouter")
    prefill = _deploy(config.prefill_config, "Prefill:", server, {"digest": digest}, router)
    server = _server(config.decode_config, DecodeServer, DataParallelDecodeServer)
    bound = facing | {"prefill_server": prefill, "transport": transport}
    bound["gated"] = _least_replicas(config.prefill_config) > 0  # nobody would start one
    return _deploy(
        config.decode_config,
        "Decode:",
        serve.ingress()(server),
        bound,
        {**_facing_router(config.decode_config), **options},
    )


def _routed(name: str, **more: Any) -> dict[str, Any]:
    config = RequestRouterConfig(request_router_class=f"{_ROUTERS}:{name}", **more)
    return {"request_router_config": config}


def _facing_router(config: LLMConfig) -> dict[str, Any]:
    """The router of what faces clients, unless the user chose one, or replicas start only when a request waits.

    HAProxy chooses among them itself, and Serve refuses a router of theirs beside it.
    """
    if behind_haproxy():
        return {}
    if "request_router_config" in config.deployment_config or not _least_replicas(config):
        return {}
    return _routed("FacingRouter", request_routing_stats_period_s=REFUSALS_TOLD_PERIOD_S)


def _least_replicas(config: LLMConfig) -> int:
    """How many there are at least; 0: none before a request waits."""
    scales = config.deployment_config.get("autoscaling_config")
    least: int = scales.get("min_replicas", 1) if isinstance(scales, Mapping) else 1
    return least


def _server(config: Any, alone: type, data_parallel: type) -> type:
    return data_parallel if config.engine_kwargs.get("data_parallel_size", 1) > 1 else alone


def _deploy(
    config: LLMConfig,
    prefix: str,
    cls: Any,
    bound: dict[str, Any],
    more: Mapping[str, Any],
) -> Application:
    options = {
        "health_check_period_s": HEALTH_CHECK_PERIOD_S,
        "health_check_timeout_s": HEALTH_CHECK_TIMEOUT_S,
        **more,
    }
    return build_llm_deployment(
        config, name_prefix=prefix, bind_kwargs=bound, deployment_cls=cls, override_serve_options=options
    )
