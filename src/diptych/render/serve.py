"""The Ray Serve configuration that a document stands for, on this machine and on a cluster."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diptych.render import names, staging
from diptych.render.engine import SCHEDULING_POLICY, engine_settings, kv_backend, kv_transfer_config
from diptych.render.inputs import Facts
from diptych.render.layout import WorkerGroup, group_name, worker_groups
from diptych.render.link import LinkSettings
from diptych.render.transport import transport
from diptych.spec import Document, Phase

APPLICATION = "diptych"
IMPORT_PATH = "diptych.serving.builder:build_app"
LOCAL_MODEL = {"callback_class": "diptych.serving.engine.LocalModelCallback"}

DRAIN_S = 120
"""Seconds in which a replica that is taken away finishes the answers it is writing."""

_LAST_PROMPTS_S = 30
"""At least so many of them are for the prompts that a prefill replica still has when it is taken away."""

_SHARE = 0.001
"""Of the resource that a phase's pods have, for each bundle: enough to be bound to them."""


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
    """What was found out about the place: where the model lies, its defaults there, and each phase's share.

    `api_key_file` has the clients' keys, `admin_key_file` one for Diptych itself; `link` is for engines on GPUs.
    """

    model_path: str
    model_name: str
    host: str
    phases: Mapping[str, PhasePlace]
    api_key_file: str | None = None
    admin_key_file: str | None = None
    engine_defaults: Mapping[str, Any] | None = None
    environment: Mapping[str, str] | None = None
    link: LinkSettings = field(default_factory=LinkSettings)


def serve_config(document: Document, place: Place) -> dict[str, Any]:
    """The configuration for this machine, as Ray Serve's `applications` schema has it.

    `phases` of the place are "prefill" and "decode", or "aggregated" for that topology.
    """
    configs = {phase: _local_config(document, place, phase) for phase in document.phases}
    return {"applications": [_application(document, configs, _local_access(document, place))]}


def cluster_serve_config(document: Document, facts: Facts) -> dict[str, Any]:
    """The configuration for a cluster, as a RayService's `serveConfigV2` has it.

    Each replica is bound to the pods of its phase by the Ray resource that has the phase's name.

    Raises:
        DocumentError: the model is not one for clusters.
    """
    configs = {group.phase: _cluster_config(document, facts, group) for group in worker_groups(document)}
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": names.serve_port(document)},
        "applications": [_application(document, configs, {"api_key_file": names.API_KEYS_FILE})],
    }


def drain_s(document: Document, phase: Phase) -> int:
    """Seconds that a replica of `phase` on a cluster may take to end after it was told to.

    A decode replica finishes the answers it is writing. A prefill replica computes the prompts that it has, which
    nobody waits for longer than `orchestrator.prefill_deadline_s`, and keeps their KV cache until decode has fetched
    it or the lease ends.
    """
    if document.topology == "aggregated" or phase == "decode":
        return DRAIN_S
    last_prompts_s = max(_LAST_PROMPTS_S, math.ceil(document.orchestrator.prefill_deadline_s))
    return max(DRAIN_S, document.kv_transfer.lease_s + last_prompts_s)


def _local_access(document: Document, place: Place) -> dict[str, Any]:
    """Where the keys are, and whether clients on this machine need one; nothing where nobody knows yet."""
    files = [file for file in (place.api_key_file, place.admin_key_file) if file]
    access: dict[str, Any] = {"api_key_file": files if len(files) > 1 else files[0]} if files else {}
    return access | ({"open": True} if document.access.api_keys == "none" else {})


def _application(
    document: Document, configs: Mapping[Phase, dict[str, Any]], access: Mapping[str, Any]
) -> dict[str, Any]:
    if document.topology == "aggregated":
        args: dict[str, Any] = {"llm_config": configs["decode"]}
    else:
        args = {f"{phase}_config": config for phase, config in configs.items()}
    if access:
        args["access"] = dict(access)
    orchestrator = document.orchestrator.written(split=document.topology == "split")
    if orchestrator:
        args["orchestrator"] = orchestrator
    asked = transport(document)
    if asked:
        args["transport"] = asked
    return {"name": APPLICATION, "import_path": IMPORT_PATH, "route_prefix": "/", "args": args}


def _local_config(document: Document, place: Place, phase: Phase) -> dict[str, Any]:
    share = place.phases[group_name(document, phase)]
    resources = {"num_cpus": 0} | ({"num_gpus": share.gpus} if share.gpus else {})
    return {
        "model_loading_config": {"model_id": place.model_name, "model_source": place.model_path},
        # On this machine the replica itself holds its GPUs, and its engine inherits them. Ray's "gpu" kind would
        # start a Ray worker per GPU and a task that only looks at the hardware: two more processes per engine.
        "accelerator_config": {"kind": "cpu"},
        "placement_group_config": {"bundles": [{"CPU": 1}]},
        "log_engine_metrics": False,
        "callback_config": LOCAL_MODEL,
        "runtime_env": {"env_vars": _local_environment(place, share)},
        "engine_kwargs": _local_engine_kwargs(document, place, phase),
        "deployment_config": {
            "num_replicas": document.phases[phase].num_replicas,
            "ray_actor_options": resources,
        },
        "experimental_configs": {"NIXL_SIDE_CHANNEL_PORT_BASE": share.side_channel_port},
    }


def _local_engine_kwargs(document: Document, place: Place, phase: Phase) -> dict[str, Any]:
    """Defaults of the place, then the document's shared settings, then the phase's own: later ones win."""
    share = place.phases[group_name(document, phase)]
    kwargs: dict[str, Any] = {
        "scheduling_policy": SCHEDULING_POLICY,
        **(place.engine_defaults or {}),
        **place.link.kwargs,
    }
    if share.kv_cache_bytes is not None:
        kwargs["kv_cache_memory_bytes"] = share.kv_cache_bytes
    kwargs |= document.engine_kwargs_for(phase)
    if document.topology == "split":
        kwargs["kv_transfer_config"] = kv_transfer_config(
            document, phase, on_gpu=share.gpus > 0, backend=kv_backend(document), link=place.link
        )
    return kwargs


def _local_environment(place: Place, share: PhasePlace) -> dict[str, str]:
    variables = {**(place.environment or {}), **place.link.environment}
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


def _cluster_config(document: Document, facts: Facts, group: WorkerGroup) -> dict[str, Any]:
    settings = engine_settings(document, group.phase, facts)
    config: dict[str, Any] = {
        "model_loading_config": {
            "model_id": document.model.name,
            "model_source": staging.model_path(document, facts),
        },
        **_hardware(group),
        "log_engine_metrics": True,
    }
    if staging.is_local(document):
        config["callback_config"] = LOCAL_MODEL
    return config | {
        # The address for KV transfers is not among them: Ray's NIXL backend takes each replica's own node's.
        "runtime_env": {"env_vars": dict(settings.environment)},
        "engine_kwargs": dict(settings.kwargs),
        "deployment_config": _deployment(document, group),
        "experimental_configs": {
            "NIXL_SIDE_CHANNEL_PORT_BASE": getattr(document.kv_transfer.ports, group.phase)
        },
    }


def _hardware(group: WorkerGroup) -> dict[str, Any]:
    """Where a replica's parts run: with one GPU all in the replica, as on this machine, else a Ray worker per GPU.

    Parts of a data-parallel replica are replicas of their own to Ray, which multiplies them.
    """
    if group.gpus_per_replica == 1:
        return {
            "accelerator_config": {"kind": "cpu"},
            "placement_group_config": {"bundles": [{group.name: _SHARE}]},
        }
    return {
        "accelerator_config": {"kind": "gpu"},
        "placement_group_config": {
            "bundle_per_worker": {"GPU": 1, group.name: _SHARE},
            "strategy": "PACK" if group.pods_per_replica > 1 else "STRICT_PACK",
        },
    }


def _deployment(document: Document, group: WorkerGroup) -> dict[str, Any]:
    section = document.phases[group.phase]
    if section.autoscaling_config is not None:
        scale: dict[str, Any] = {
            "autoscaling_config": section.autoscaling_config.model_dump(exclude_none=True)
        }
    else:
        scale = {"num_replicas": section.num_replicas}
    if section.max_ongoing_requests is not None:
        scale["max_ongoing_requests"] = section.max_ongoing_requests
    return scale | {
        "graceful_shutdown_timeout_s": drain_s(document, group.phase),
        "ray_actor_options": {"num_cpus": 0} | ({"num_gpus": 1} if group.gpus_per_replica == 1 else {}),
    }
