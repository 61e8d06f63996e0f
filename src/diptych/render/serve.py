"""The Ray Serve configuration that a document stands for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diptych.spec import Document, PhaseSection

APPLICATION = "diptych"
IMPORT_PATH = "diptych.serving.builder:build_app"
CONNECTOR_MODULE = "diptych.serving.connector"
_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


@dataclass(frozen=True)
class PhasePlace:
    """What one phase gets of the machine, per replica.

    `cores` has one tuple of core numbers per replica (empty: not bound), `kv_cache_bytes` is None where the engine
    sizes its own KV cache (GPUs, by `gpu_memory_utilization`), `gpus` is how many GPUs, or which share of one
    (0 on CPUs),
    `side_channel_port` is the first of the ports on which replicas meet for a KV transfer.
    """

    cores: tuple[tuple[int, ...], ...] = ()
    kv_cache_bytes: int | None = None
    gpus: float = 0.0
    side_channel_port: int = 0


@dataclass(frozen=True)
class Place:
    """What was found out about the place: where the model lies, its defaults there, and each phase's share."""

    model_path: str
    model_name: str
    host: str
    phases: Mapping[str, PhasePlace]
    api_key_file: str | None = None
    engine_defaults: Mapping[str, Any] | None = None
    environment: Mapping[str, str] | None = None


def serve_config(document: Document, place: Place) -> dict[str, Any]:
    """The configuration as Ray Serve's `applications` schema has it.

    `phases` of the place are "prefill" and "decode", or "aggregated" for that topology.
    """
    if document.topology == "aggregated":
        args = {"llm_config": _llm_config(document, place, "aggregated", document.decode)}
    else:
        args = {
            "prefill_config": _llm_config(document, place, "prefill", document.prefill),
            "decode_config": _llm_config(document, place, "decode", document.decode),
        }
    if place.api_key_file:
        args["access"] = {"api_key_file": place.api_key_file}
    application = {"name": APPLICATION, "import_path": IMPORT_PATH, "route_prefix": "/", "args": args}
    return {"applications": [application]}


def _llm_config(document: Document, place: Place, phase: str, settings: PhaseSection) -> dict[str, Any]:
    share = place.phases[phase]
    resources = {"num_cpus": 0} | ({"num_gpus": share.gpus} if share.gpus else {})
    return {
        "model_loading_config": {"model_id": place.model_name, "model_source": place.model_path},
        # On this machine the replica itself holds its GPUs, and its engine inherits them. Ray's "gpu" kind would
        # start a Ray worker per GPU and a task that only looks at the hardware: two more processes per engine.
        "accelerator_config": {"kind": "cpu"},
        "placement_group_config": {"bundles": [{"CPU": 1}]},
        "log_engine_metrics": False,
        "callback_config": {"callback_class": "diptych.serving.engine.LocalModelCallback"},
        "runtime_env": {"env_vars": _environment(place, share)},
        "engine_kwargs": _engine_kwargs(document, place, phase, settings),
        "deployment_config": {
            "num_replicas": settings.num_replicas,
            "ray_actor_options": resources,
        },
        "experimental_configs": {"NIXL_SIDE_CHANNEL_PORT_BASE": share.side_channel_port},
    }


def _engine_kwargs(document: Document, place: Place, phase: str, settings: PhaseSection) -> dict[str, Any]:
    """Defaults of the place, then the document's shared settings, then the phase's own: later ones win."""
    share = place.phases[phase]
    kwargs: dict[str, Any] = dict(place.engine_defaults or {})
    if share.kv_cache_bytes is not None:
        kwargs["kv_cache_memory_bytes"] = share.kv_cache_bytes
    kwargs |= document.engine_kwargs
    kwargs |= settings.engine_kwargs
    if phase in _KV_ROLES:
        kwargs["kv_transfer_config"] = _kv_transfer_config(document, phase, on_gpu=share.gpus > 0)
    return kwargs


def _kv_transfer_config(document: Document, phase: str, *, on_gpu: bool) -> dict[str, Any]:
    extra: dict[str, Any] = {"kv_lease_duration": document.kv_transfer.lease_s}
    if document.kv_transfer.backend != "auto":
        extra["backends"] = [document.kv_transfer.backend]
    extra |= document.kv_transfer.kv_connector_extra_config
    return {
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": _KV_ROLES[phase],
        "kv_buffer_device": "cuda" if on_gpu else "cpu",
        "engine_id": phase,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }


def _environment(place: Place, share: PhasePlace) -> dict[str, str]:
    variables = dict(place.environment or {})
    variables["VLLM_NIXL_SIDE_CHANNEL_HOST"] = place.host
    if share.cores:
        variables["DIPTYCH_CORES"] = core_groups(share.cores)
        variables["OMP_NUM_THREADS"] = str(len(share.cores[0]))
    return variables


def core_groups(cores: Sequence[Sequence[int]]) -> str:
    """The cores of each replica as `DIPTYCH_CORES` has them.

    >>> core_groups(((0, 1), (2, 3)))
    '0,1;2,3'
    """
    return ";".join(",".join(str(core) for core in group) for group in cores)
