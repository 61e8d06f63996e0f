"""Ray Serve's side of a manifest: one application with its engines."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from diptych.spec.convert.environment import leave_variables
from diptych.spec.convert.parts import ConversionError, Part, Reason
from diptych.spec.fields import RESERVED_ENGINE_KWARGS, Phase, is_path
from diptych.spec.phases import AutoscalingSection
from diptych.spec.problems import shown

CONNECTOR = "NixlConnector"
BACKENDS = ("LIBFABRIC", "UCX")
# What `num_replicas: auto` stands for in Ray Serve.
_AUTO = {"min_replicas": 1, "max_replicas": 100, "target_ongoing_requests": 2}

_BY_DIPTYCH: Reason = ("Diptych sets it itself", "")
_RENAMED = {
    "target_num_ongoing_requests_per_replica": "target_ongoing_requests",
    "upscale_smoothing_factor": "upscaling_factor",
    "downscale_smoothing_factor": "downscaling_factor",
}
_CONNECTOR_LEFT: Mapping[str, Reason] = {
    "kv_role": ("Diptych gives each phase its role", ""),
    "engine_id": ("each replica gets one of its own", ""),
    "kv_connector_module_path": ("Diptych has a connector of its own over it", ""),
    "kv_rank": ("NixlConnector does not use it", ""),
    "kv_parallel_size": ("NixlConnector does not use it", ""),
    "kv_ip": ("NixlConnector does not use it", ""),
    "kv_port": ("NixlConnector does not use it", "set kv_transfer.ports if the defaults don't do"),
}
_DEPLOYMENT_LEFT: Mapping[str, Reason] = {
    "name": ("Diptych names its deployments", ""),
    "max_concurrent_queries": ("Ray Serve has it no longer", "set max_ongoing_requests in the phase"),
    "health_check_period_s": _BY_DIPTYCH,
    "health_check_timeout_s": _BY_DIPTYCH,
    "graceful_shutdown_wait_loop_s": _BY_DIPTYCH,
    "graceful_shutdown_timeout_s": _BY_DIPTYCH,
}
_ENGINE_LEFT: Mapping[str, Reason] = {
    "lora_config": (
        "Diptych loads no LoRA adapters from a bucket",
        "put them into the image, and name them in engine_kwargs: enable_lora, lora_modules",
    ),
    "log_engine_metrics": ("Diptych collects the engines' metrics anyway", ""),
    "callback_config": ("Diptych has callbacks of its own", "put what yours do into the image"),
    "resources_per_bundle": ("Ray has it no longer; it follows from the parallel sizes", ""),
    "server_cls": ("Diptych has servers of its own", ""),
}
_ARGUMENTS_LEFT: Mapping[str, Reason] = dict.fromkeys(
    (
        "ingress_cls_config",
        "ingress_deployment_config",
        "proxy_cls_config",
        "proxy_deployment_config",
        "access",
    ),
    ("Diptych has an ingress of its own", ""),
)


@dataclass(frozen=True)
class Engine:
    """What one `llm_config` says, in a document's terms.

    Args:
        model: fields of the document's `model`.
        engine_kwargs: arguments of vLLM.
        kv_transfer: fields of the document's `kv_transfer`.
        settings: fields of a phase of the document.
        port: the first port for KV transfers.
        accelerator: Ray's name for the GPU.
        resources: Ray's own resources that a replica asks for; they tell its worker group.
    """

    model: dict[str, Any]
    engine_kwargs: dict[str, Any]
    kv_transfer: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    port: int | None = None
    accelerator: str | None = None
    resources: frozenset[str] = frozenset()


Engines = dict[Phase, Engine]
"""The engines by phase; decode alone where one does both."""


def engines_of(arguments: Part, model_id: str | None) -> Engines:
    """The engines that an application's `args` describe; `model_id` chooses among several models.

    Raises:
        ConversionError: they can't be read, or no model is chosen.
    """
    arguments.leave_all(_ARGUMENTS_LEFT)
    if "prefill_config" in arguments.values or "decode_config" in arguments.values:
        phases: tuple[Phase, Phase] = ("prefill", "decode")
        engines: Engines = {phase: _engine(_config(arguments, f"{phase}_config")) for phase in phases}
        _compare_models(engines, arguments)
    elif "llm_config" in arguments.values:
        engines = {"decode": _engine(_config(arguments, "llm_config"))}
    else:
        engines = {"decode": _engine(_chosen(arguments, model_id))}
    arguments.close()
    return engines


def accelerator_resource(accelerator: str) -> str:
    """Ray's own resource of nodes with such a GPU."""
    return f"accelerator_type:{accelerator}"


def model_ids(arguments: Mapping[str, Any]) -> list[str]:
    """The names for clients of the models that an application's `args` describe."""
    configs = [arguments.get(name) for name in ("decode_config", "llm_config")]
    several = arguments.get("llm_configs")
    configs += several if isinstance(several, list) else []
    loading = [config.get("model_loading_config") for config in configs if isinstance(config, dict)]
    return [str(each.get("model_id")) for each in loading if isinstance(each, dict)]


def _config(arguments: Part, name: str) -> Part:
    value = arguments.values.get(name)
    if not isinstance(value, dict):
        what = "is missing" if value is None else f"is {shown(value)}, and must be a mapping"
        hint = (
            "Put what that file holds in its place." if isinstance(value, str) else "Complete the manifest."
        )
        raise ConversionError(f"{arguments.place(name)} {what}.", hint)
    return arguments.part(name)


def _chosen(arguments: Part, model_id: str | None) -> Part:
    configs = arguments.take("llm_configs")
    if not isinstance(configs, list) or not configs:
        raise ConversionError(
            f"{arguments.place('llm_configs')} holds no model.", "Give a manifest that serves one."
        )
    ids = model_ids(arguments.values)
    if len(configs) == 1:
        number = 0
    elif model_id in ids and len(ids) == len(configs):
        number = ids.index(model_id)
    else:
        raise ConversionError(
            f"The application serves several models: {', '.join(ids)}.", "Say which with --app MODEL."
        )
    whole = Part({f"llm_configs[{n}]": config for n, config in enumerate(configs)}, arguments.where, [])
    return Part(
        _config(whole, f"llm_configs[{number}]").values,
        arguments.place("llm_configs" if len(configs) == 1 else f"llm_configs[{number}]"),
        arguments.remarks,
    )


def _engine(config: Part) -> Engine:
    kwargs = config.part("engine_kwargs")
    model = _model(config.part("model_loading_config"), kwargs)
    kv_transfer = _kv_transfer(kwargs.part("kv_transfer_config"))
    settings, resources = _deployment(config.part("deployment_config"))
    for name, (why, _) in RESERVED_ENGINE_KWARGS.items():
        if name not in kwargs.seen and kwargs.take(name) != model["name"]:
            kwargs.leave(name, (why, ""))
    engine_kwargs = {name: value for name, value in kwargs.values.items() if name not in kwargs.seen}
    resources |= _bundles(config.part("placement_group_config"), engine_kwargs)
    experiments = config.part("experimental_configs")
    port = experiments.take("NIXL_SIDE_CHANNEL_PORT_BASE")
    experiments.close()
    leave_variables(config.part("runtime_env"))
    hardware = config.part("accelerator_config")
    if hardware.take("kind") not in (None, "gpu", "cpu"):
        hardware.remark("kind", ("Diptych serves on NVIDIA GPUs and on CPUs", "choose nodes that have some"))
    if str(config.take("llm_engine") or "vLLM").lower() != "vllm":
        config.remark("llm_engine", ("Diptych serves with vLLM only", "look over engine_kwargs"))
    accelerator = config.take("accelerator_type")
    if accelerator:
        resources |= {accelerator_resource(accelerator)}
    config.leave_all(_ENGINE_LEFT)
    config.close()
    return Engine(model, engine_kwargs, kv_transfer, settings, port, accelerator, resources)


def _model(loading: Part, kwargs: Part) -> dict[str, Any]:
    name = loading.take("model_id")
    source = loading.take("model_source")
    if isinstance(source, dict):
        mirror = loading.part("model_source")
        source = mirror.take("bucket_uri")
        mirror.close()
    source = source or name
    if not isinstance(source, str):
        raise ConversionError(f"{loading.where} names no model.", "Complete the manifest, or give --model.")
    if is_path(source):
        why = "it is a folder in the pods of this manifest"
        loading.remark("model_source", (why, "make sure that the image has it, or set model.source"))
    loading.leave("tokenizer_source", ("Ray Serve LLM does not use it", "set tokenizer in engine_kwargs"))
    loading.close()
    return {"source": source, "name": name, "revision": kwargs.take("revision")}


def _kv_transfer(config: Part) -> dict[str, Any]:
    connector = config.take("kv_connector")
    if connector not in (None, CONNECTOR):
        why = f"it is {shown(connector)}, and Diptych always uses {CONNECTOR}"
        config.remark("kv_connector", (why, "check what you rely on"))
    extra = config.part("kv_connector_extra_config")
    backends = extra.take("backends")
    known = [each for each in backends if each in BACKENDS] if isinstance(backends, list) else []
    if backends and backends != known[:1]:
        why = f"NIXL gets one backend here, {' or '.join(BACKENDS)}"
        extra.remark("backends", (why, "set kv_transfer.backend" if not known else f"{known[0]} was taken"))
    fields = {
        "backend": known[0] if known else None,
        "lease_s": extra.take("kv_lease_duration"),
        "kv_load_failure_policy": config.take("kv_load_failure_policy"),
        "kv_buffer_device": config.take("kv_buffer_device"),
        "kv_connector_extra_config": {
            name: value for name, value in extra.values.items() if name not in extra.seen
        },
    }
    config.leave_all(_CONNECTOR_LEFT)
    config.close()
    return {name: value for name, value in fields.items() if value not in (None, {})}


def _deployment(config: Part) -> tuple[dict[str, Any], frozenset[str]]:
    settings: dict[str, Any] = {"max_ongoing_requests": config.take("max_ongoing_requests")}
    replicas = config.take("num_replicas")
    autoscaling = dict(_autoscaling(config.part("autoscaling_config")))
    if autoscaling or replicas == "auto":
        settings["autoscaling_config"] = (_AUTO if replicas == "auto" else {}) | autoscaling
    else:
        settings["num_replicas"] = replicas
    actor = config.part("ray_actor_options")
    resources = frozenset(actor.part("resources").values)
    leave_variables(actor.part("runtime_env"))
    actor.leave_all(dict.fromkeys(("num_cpus", "num_gpus", "memory"), _BY_DIPTYCH))
    actor.close()
    config.leave_all(_DEPLOYMENT_LEFT)
    config.close()
    return {name: value for name, value in settings.items() if value is not None}, resources


def _autoscaling(config: Part) -> Iterator[tuple[str, Any]]:
    for name in AutoscalingSection.model_fields:
        if name in config.values:
            yield name, config.take(name)
    for old, new in _RENAMED.items():
        if config.values.get(old) is not None:
            config.remark(old, (f"Ray Serve calls it {new} now", ""))
            yield new, config.take(old)
    config.close()


def _bundles(config: Part, kwargs: Mapping[str, Any]) -> frozenset[str]:
    """Compare the bundles' GPUs with the parallel sizes, which they follow from; Ray's own resources in them."""
    per_worker, bundles = config.take("bundle_per_worker"), config.take("bundles")
    sizes = [kwargs.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline")]
    workers = 1
    for size in sizes:
        workers *= size if isinstance(size, int) else 1
    each = [per_worker] * workers if isinstance(per_worker, dict) else bundles or []
    each = [bundle for bundle in each if isinstance(bundle, dict)]
    gpus = sum(bundle.get("GPU", 0) for bundle in each)
    if gpus not in (0, workers):
        why = f"it asks for {gpus:g} GPUs for each replica, and the parallel sizes for {workers}"
        config.remark("", (why, "set tensor_parallel_size in engine_kwargs; the GPUs follow from it"))
    config.leave("strategy", ("Diptych places an engine's workers itself", ""))
    config.close()
    return frozenset(name for bundle in each for name in bundle if name not in ("CPU", "GPU", "memory"))


def _compare_models(engines: Engines, arguments: Part) -> None:
    prefill, decode = engines["prefill"].model, engines["decode"].model
    for name in ("source", "name", "revision"):
        if prefill[name] != decode[name]:
            why = f"its {name} is {shown(prefill[name])}, and decode's is {shown(decode[name])}, which was taken"
            do = "both phases serve one model: check which it is"
            arguments.remark("prefill_config.model_loading_config", (why, do))
