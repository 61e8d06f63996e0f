"""Arguments of Ray's own builder that mean something else here, or nothing: taken over where they can be, else refused.

Ray's application has an ingress deployment before decode, and loads LoRA adapters from a bucket when a request names
one. Here decode's replicas face clients themselves, and adapters are vLLM's own (`lora_modules`).
"""

from collections.abc import Mapping
from typing import Any

from diptych.serving.engine import CONNECTOR

OF_ANY_REPLICA = frozenset(
    {
        "graceful_shutdown_timeout_s",
        "graceful_shutdown_wait_loop_s",
        "logging_config",
        "max_ongoing_requests",
        "max_queued_requests",
    }
)
"""Options of a deployment that mean for decode what they mean for an ingress before it."""

_INGRESS = "there is no ingress deployment: decode's replicas face clients themselves"


def ingress_options(config: Any) -> dict[str, Any]:
    """What `ingress_deployment_config` says for decode's deployment; decode's own `deployment_config` wins over it.

    Args:
        config: Ray's `PDServingArgs`.

    Raises:
        ValueError: an argument can't be taken over; the message names it and what to do.
    """
    for name in ("prefill_config", "decode_config"):
        refuse_others(getattr(config, name), name)
        _refuse_connector(getattr(config, name), name)
    _refuse_ingress_class(config.ingress_cls_config)
    _refuse_proxy(config)
    options = dict(config.ingress_deployment_config or {})
    for name in options:
        if name not in OF_ANY_REPLICA:
            raise ValueError(
                f"ingress_deployment_config.{name} can't be taken over, since {_INGRESS}. Leave it out, or say for "
                f"them what you need in decode_config.deployment_config.{name}. "
                f"Taken over are {', '.join(sorted(OF_ANY_REPLICA))}."
            )
    return {
        name: value for name, value in options.items() if name not in config.decode_config.deployment_config
    }


def refuse_beside_whole(arguments: Mapping[str, Any]) -> None:
    """Refuse what is given beside one `llm_config`.

    Raises:
        ValueError: there is something; the message names it.
    """
    beside = sorted(arguments.keys() - {"llm_config"})
    if beside:
        raise ValueError(
            f"{', '.join(beside)}: beside llm_config (one engine for both phases) build_app takes access, "
            "orchestrator and transport only. Leave it out, or give prefill_config and decode_config instead."
        )


def refuse_others(config: Any, where: str) -> None:
    """Refuse what one `LLMConfig` asks for and does not get here.

    Args:
        config: the configuration.
        where: the argument that it is.

    Raises:
        ValueError: a field has no meaning here; the message names it and what to do.
    """
    if config.lora_config is not None:
        raise ValueError(
            f"{where}.lora_config loads LoRA adapters by Ray's ingress, and {_INGRESS}. Leave it out and name the "
            "adapters in engine_kwargs of both phases: enable_lora: true, lora_modules: [{name: NAME, path: FOLDER}]."
        )
    if config.server_cls is not None:
        raise ValueError(
            f"{where}.server_cls names a class of deployments, and Diptych has its own. Leave it out."
        )


def _refuse_connector(config: Any, where: str) -> None:
    transfer = config.engine_kwargs["kv_transfer_config"]
    name = transfer.get("kv_connector") if isinstance(transfer, dict) else transfer.kv_connector
    if name != CONNECTOR:
        raise ValueError(
            f"{where}.engine_kwargs.kv_transfer_config.kv_connector is {name!r}: KV cache moves by {CONNECTOR} only. "
            f"Set it to {CONNECTOR}, in both phases."
        )


def _refuse_proxy(config: Any) -> None:
    """Ray 2.58 takes both arguments, of a proxy that it no longer has, and ignores them; later ones take neither."""
    for name in ("proxy_cls_config", "proxy_deployment_config"):
        if getattr(config, name, None) is not None:
            raise ValueError(
                f"{name} is for a proxy before both phases, and there is none: decode's replicas face clients and ask "
                "prefill themselves. Leave it out; what yours does belongs before the endpoint, in a proxy."
            )


def _refuse_ingress_class(config: Any) -> None:
    is_stock = config.ingress_cls.__module__.partition(".")[0] == "ray"
    given = {"ingress_cls": not is_stock, "ingress_extra_kwargs": bool(config.ingress_extra_kwargs)}
    for name in (name for name, is_given in given.items() if is_given):
        raise ValueError(
            f"ingress_cls_config.{name} is for an ingress of your own, and {_INGRESS}. Leave it out; what yours does "
            "belongs before the endpoint, in a proxy."
        )
